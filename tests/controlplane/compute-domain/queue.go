package main

import (
	"context"
	"log"

	"k8s.io/client-go/util/workqueue"
)

// work is what an event calls for. Two events of an object are two of them: each waits by its own
// failures.
type work struct {
	do func(context.Context) error
}

type queue struct {
	items workqueue.TypedRateLimitingInterface[*work]
}

func newQueue() queue {
	limits := workqueue.DefaultTypedControllerRateLimiter[*work]()
	return queue{workqueue.NewTypedRateLimitingQueue(limits)}
}

func (q queue) add(do func(context.Context) error) {
	q.items.AddRateLimited(&work{do})
}

// run works until the context ends.
func (q queue) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		q.items.ShutDown()
	}()
	for {
		item, ended := q.items.Get()
		if ended {
			return
		}
		attempts := q.items.NumRequeues(item)
		if err := item.do(ctx); err != nil {
			log.Printf("Reconcile: %v (attempt %d)", err, attempts)
			q.items.AddRateLimited(item)
		} else {
			q.items.Forget(item)
		}
		q.items.Done(item)
	}
}
