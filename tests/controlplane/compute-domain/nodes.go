package main

import (
	"context"
	"log"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// plugins are the kubelet plugins of all nodes, with as much of the kubelets as they need.
type plugins struct {
	clients   clients
	namespace string
	// How long a daemon takes to be ready.
	delay   time.Duration
	nodes   map[string]*node
	domains *objects

	lock sync.Mutex
	// How to end what is done for a pod, by its UID.
	pods map[types.UID]context.CancelFunc
}

// node is a node with a plugin.
type node struct {
	name, clique string
	number       int
	// One claim at a time is prepared or taken back.
	lock sync.Mutex
	// The claims that are prepared, by UID.
	prepared map[types.UID]*prepared
	daemons  int
}

// prepared is a claim that the plugin prepares or has prepared, and for which pods.
type prepared struct {
	parameters parameters
	devices    []string
	pods       map[types.UID]bool
	complete   bool
}

func newPlugins(all clients, namespace string, cliques map[string]string, delay time.Duration) *plugins {
	nodes := map[string]*node{}
	for name, clique := range cliques {
		nodes[name] = &node{name: name, clique: clique, number: len(nodes) + 1, prepared: map[types.UID]*prepared{}}
	}
	return &plugins{
		clients:   all,
		namespace: namespace,
		delay:     delay,
		nodes:     nodes,
		domains:   watch("ComputeDomain", all.nvidia, domainResource, "", ""),
		pods:      map[types.UID]context.CancelFunc{},
	}
}

func (p *plugins) start(ctx context.Context) error {
	if len(p.nodes) == 0 {
		return nil
	}
	if err := p.domains.start(ctx); err != nil {
		return err
	}
	for _, node := range p.nodes {
		go p.publish(ctx, node)
	}
	factory := informers.NewSharedInformerFactory(p.clients.plain, 0)
	handle := func(known any) {
		if pod, ok := known.(*corev1.Pod); ok {
			p.onPod(ctx, pod)
		}
	}
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, known any) { handle(known) },
		DeleteFunc: func(known any) {
			if unknown, ok := known.(cache.DeletedFinalStateUnknown); ok {
				known = unknown.Obj
			}
			if pod, ok := known.(*corev1.Pod); ok {
				p.end(pod.UID)
			}
		},
	})
	factory.Start(ctx.Done())
	return err
}

// publish publishes the devices of a node as soon as there is one of its name. Only the first channel is
// published: the plugin knows the others, and gives them with it where a claim wants all.
func (p *plugins) publish(ctx context.Context, node *node) {
	var owner *corev1.Node
	for owner == nil {
		known, err := p.clients.plain.CoreV1().Nodes().Get(ctx, node.name, metav1.GetOptions{})
		if err == nil {
			owner = known
		} else if !pause(ctx, time.Second) {
			return
		}
	}
	device := func(kind string) resourceapi.Device {
		return resourceapi.Device{
			Name: kind + "-0",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": {StringValue: &kind},
				"id":   {IntValue: new(int64)},
			},
		}
	}
	devices := []resourceapi.Device{device("channel"), device("daemon")}
	slices := []resourceslice.Slice{{Devices: devices}}
	_, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: driver,
		KubeClient: p.clients.plain,
		Owner:      &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID},
		Resources:  &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node.name: {Slices: slices}}},
	})
	if err != nil {
		log.Printf("cannot publish the devices of %s: %v", node.name, err)
	}
}

// pause tells whether the context still holds after this time.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

func (p *plugins) isDaemon(pod *corev1.Pod) bool {
	return pod.Namespace == p.namespace && pod.Labels[domainLabel] != ""
}

// onPod begins with a pod once it is bound to one of the nodes, and ends with it. A pod of the workload
// ends as the test wants; that of a daemon as soon as it is to be deleted.
func (p *plugins) onPod(ctx context.Context, pod *corev1.Pod) {
	node := p.nodes[pod.Spec.NodeName]
	if node == nil || len(pod.Spec.ResourceClaims) == 0 {
		return
	}
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	deleted := p.isDaemon(pod) && pod.DeletionTimestamp != nil
	p.lock.Lock()
	_, begun := p.pods[pod.UID]
	if !begun && !ended {
		ctx, cancel := context.WithCancel(ctx)
		p.pods[pod.UID] = cancel
		go p.follow(ctx, node, pod)
	}
	p.lock.Unlock()
	if ended || deleted {
		p.end(pod.UID)
	}
}

func (p *plugins) end(pod types.UID) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if cancel := p.pods[pod]; cancel != nil {
		cancel()
	}
}

// follow does all that is done for a pod, until its end.
func (p *plugins) follow(ctx context.Context, node *node, pod *corev1.Pod) {
	claims := p.prepareAll(ctx, node, pod)
	if ctx.Err() == nil {
		log.Printf("pod %s/%s can start on %s", pod.Namespace, pod.Name, node.name)
		if p.isDaemon(pod) {
			p.runDaemon(ctx, node, pod)
		}
	}
	<-ctx.Done()
	// What follows happens also after this program was told to end, as far as it gets.
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if p.isDaemon(pod) {
		p.endDaemon(rest, node, pod)
	}
	for _, claim := range claims {
		retry(rest, func() error { return p.unprepare(rest, node, claim, pod.UID) })
	}
}
