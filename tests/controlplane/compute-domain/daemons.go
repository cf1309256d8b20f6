package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const mostDaemons = 18

func (n *node) cliqueName(uid string) string { return uid + "." + n.clique }

// runDaemon is the daemon of a node: its container runs at once, enters itself into the clique, and is
// ready after the delay. A node without a clique has no IMEX daemon; the pod only says so.
func (p *plugins) runDaemon(ctx context.Context, node *node, pod *corev1.Pod) {
	node.lock.Lock()
	node.daemons++
	address := fmt.Sprintf("10.200.%d.%d", node.number, node.daemons%250+1)
	node.lock.Unlock()
	step := func(what string, do func() error) {
		if ctx.Err() == nil {
			retry(ctx, func() error {
				err := do()
				if err != nil && ctx.Err() == nil {
					log.Printf("daemon on %s: %s: %v", node.name, what, err)
				}
				return err
			})
		}
	}
	step("starting", func() error { return p.writePod(ctx, pod, address, corev1.ConditionFalse) })
	step("labelling the pod", func() error { return p.labelPod(ctx, pod, node.clique) })
	if node.clique != "" {
		step("joining the clique", func() error { return p.join(ctx, node, pod, address) })
	}
	pause(ctx, p.delay)
	step("getting ready", func() error { return p.writePod(ctx, pod, address, corev1.ConditionTrue) })
	if node.clique != "" {
		step("saying that it is ready", func() error {
			return p.changeClique(ctx, node, pod, func(daemons []entry) []entry {
				for index := range daemons {
					if daemons[index].name == node.name {
						daemons[index].status = ready
					}
				}
				return daemons
			})
		})
	}
}

// endDaemon leaves the clique and then deletes the pod, as the kubelet does once its container has ended.
func (p *plugins) endDaemon(ctx context.Context, node *node, pod *corev1.Pod) {
	retry(ctx, func() error {
		latest, err := p.clients.plain.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || latest.UID != pod.UID {
			return ignore(err)
		}
		if node.clique != "" {
			err = ignore(p.changeClique(ctx, node, pod, func(daemons []entry) []entry {
				mine := func(daemon entry) bool { return daemon.address == latest.Status.PodIP }
				return slices.DeleteFunc(daemons, mine)
			}))
		}
		if err != nil || latest.DeletionTimestamp == nil {
			return err
		}
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
		return ignore(p.clients.plain.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, now))
	})
}

// ignore takes what is gone already as done.
func ignore(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (p *plugins) writePod(ctx context.Context, pod *corev1.Pod, address string, is corev1.ConditionStatus) error {
	pods := p.clients.plain.CoreV1().Pods(pod.Namespace)
	latest, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return ignore(err)
	}
	now := metav1.Now()
	latest.Status.Phase = corev1.PodRunning
	latest.Status.PodIP, latest.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if latest.Status.StartTime == nil {
		latest.Status.StartTime = &now
	}
	kinds := []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady}
	others := slices.DeleteFunc(latest.Status.Conditions, func(one corev1.PodCondition) bool { return slices.Contains(kinds, one.Type) })
	for _, kind := range kinds {
		others = append(others, corev1.PodCondition{Type: kind, Status: is, LastTransitionTime: now})
	}
	latest.Status.Conditions = others
	_, err = pods.UpdateStatus(ctx, latest, metav1.UpdateOptions{})
	return ignore(err)
}

func (p *plugins) labelPod(ctx context.Context, pod *corev1.Pod, clique string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, cliqueLabel, clique)
	_, err := p.clients.plain.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return ignore(err)
}

// join creates the clique, if there is none, and then enters the daemon with the lowest free index.
func (p *plugins) join(ctx context.Context, node *node, pod *corev1.Pod, address string) error {
	uid := pod.Labels[domainLabel]
	cliques := p.clients.cliques.Namespace(p.namespace)
	_, err := cliques.Get(ctx, node.cliqueName(uid), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		fresh := &object{Object: fields{"apiVersion": api, "kind": "ComputeDomainClique"}}
		fresh.SetName(node.cliqueName(uid))
		fresh.SetLabels(map[string]string{domainLabel: uid, cliqueLabel: node.clique})
		own(fresh, pod)
		_, err = cliques.Create(ctx, fresh, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	full := false
	err = p.changeClique(ctx, node, pod, func(daemons []entry) []entry {
		for index := range daemons {
			if daemons[index].name == node.name {
				daemons[index].address = address
				return daemons
			}
		}
		index := int64(0)
		for slices.ContainsFunc(daemons, func(one entry) bool { return one.index == index }) {
			index++
		}
		if index >= mostDaemons {
			full = true
			return daemons
		}
		return append(daemons, entry{node.name, address, node.clique, notReady, index})
	})
	if full {
		return errors.New("no available indices within maxNodesPerIMEXDomain")
	}
	return err
}

func (p *plugins) changeClique(ctx context.Context, node *node, pod *corev1.Pod, change func([]entry) []entry) error {
	cliques := p.clients.cliques.Namespace(p.namespace)
	clique, err := cliques.Get(ctx, node.cliqueName(pod.Labels[domainLabel]), metav1.GetOptions{})
	if err != nil {
		return err
	}
	setEntries(clique, change(entries(clique, "nodeName", "daemons")), "nodeName", "daemons")
	own(clique, pod)
	_, err = cliques.Update(ctx, clique, metav1.UpdateOptions{})
	return err
}

// own makes a pod an owner: a clique is collected after all its daemons.
func own(clique *object, pod *corev1.Pod) {
	owners := clique.GetOwnerReferences()
	if !slices.ContainsFunc(owners, func(one metav1.OwnerReference) bool { return one.UID == pod.UID }) {
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
		clique.SetOwnerReferences(append(owners, owner))
	}
}
