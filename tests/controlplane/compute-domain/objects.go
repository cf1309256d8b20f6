package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	resync  = 10 * time.Minute
	clean   = 10 * time.Minute
	keep    = time.Hour
	byOwner = "domain"
)

var (
	domainResource   = schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "computedomains"}
	cliqueResource   = schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "computedomaincliques"}
	templateResource = schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaimtemplates"}
	daemonResource   = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	nodeResource     = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	podResource      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

type object = unstructured.Unstructured

// objects are the objects of a kind, as the API server has them, and what was written since.
type objects struct {
	kind     string
	client   dynamic.NamespaceableResourceInterface
	informer cache.SharedIndexInformer
	written  cache.MutationCache
}

func watch(kind string, client dynamic.Interface, resource schema.GroupVersionResource, namespace, selector string) *objects {
	options := func(options *metav1.ListOptions) { options.LabelSelector = selector }
	indexers := cache.Indexers{byOwner: domainOf}
	informer := dynamicinformer.NewFilteredDynamicInformer(client, resource, namespace, resync, indexers, options).Informer()
	written := cache.NewIntegerResourceVersionMutationCache(
		klog.Background(), informer.GetStore(), informer.GetIndexer(), keep, true)
	return &objects{kind, client.Resource(resource), informer, written}
}

// domainOf returns the UID of the ComputeDomain that an object is or belongs to.
func domainOf(known any) ([]string, error) {
	one, ok := known.(*object)
	if !ok {
		return nil, fmt.Errorf("unexpected %T", known)
	}
	if one.GetKind() == "ComputeDomain" {
		return []string{string(one.GetUID())}, nil
	}
	if uid, found := one.GetLabels()[domainLabel]; found {
		return []string{uid}, nil
	}
	return nil, nil
}

func (o *objects) start(ctx context.Context) error {
	go o.informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), o.informer.HasSynced) {
		return fmt.Errorf("informer cache sync for %s failed", o.kind)
	}
	return nil
}

// onChange calls for work whenever an object is there, or changes. Deletions call for none.
func (o *objects) onChange(queue queue, do func(context.Context, *object) error) error {
	handle := func(known any) {
		if one, ok := known.(*object); ok {
			queue.add(func(ctx context.Context) error { return do(ctx, one) })
		}
	}
	_, err := o.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, known any) { handle(known) },
	})
	return err
}

// list returns the objects as the API server has them.
func (o *objects) list() []*object {
	var all []*object
	for _, known := range o.informer.GetStore().List() {
		if one, ok := known.(*object); ok {
			all = append(all, one)
		}
	}
	return all
}

// of returns the object of a ComputeDomain, nil if there is none.
func (o *objects) of(uid string) (*object, error) {
	found, err := o.written.ByIndex(byOwner, uid)
	if err != nil {
		return nil, fmt.Errorf("error retrieving %s: %w", o.kind, err)
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0].(*object), nil
	default:
		return nil, fmt.Errorf("more than one %s found with same ComputeDomain UID", o.kind)
	}
}

// create makes the object of a ComputeDomain, unless there is one.
func (o *objects) create(ctx context.Context, uid string, wanted *object) error {
	if one, err := o.of(uid); err != nil || one != nil {
		return err
	}
	created, err := o.client.Namespace(wanted.GetNamespace()).Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("error creating %s: %w", o.kind, err)
	}
	o.written.Mutation(created)
	return nil
}

func (o *objects) delete(ctx context.Context, uid string) error {
	one, err := o.of(uid)
	if err != nil || one == nil || one.GetDeletionTimestamp() != nil {
		return err
	}
	err = o.client.Namespace(one.GetNamespace()).Delete(ctx, one.GetName(), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("error deleting %s: %w", o.kind, err)
	}
	return nil
}

// withoutFinalizer returns the object of a ComputeDomain without the driver's finalizer; nil if there is
// no object, or not that finalizer. What was deleted a moment ago may still look as if it were not.
func (o *objects) withoutFinalizer(uid string) (*object, error) {
	one, err := o.of(uid)
	if err != nil || one == nil {
		return nil, err
	}
	if one.GetDeletionTimestamp() == nil {
		return nil, fmt.Errorf("attempting to remove finalizer before %s marked for deletion", o.kind)
	}
	if !slices.Contains(one.GetFinalizers(), domainLabel) {
		return nil, nil
	}
	changed := one.DeepCopy()
	changed.SetFinalizers(slices.DeleteFunc(changed.GetFinalizers(), func(name string) bool { return name == domainLabel }))
	return changed, nil
}

func (o *objects) removeFinalizer(ctx context.Context, uid string) error {
	changed, err := o.withoutFinalizer(uid)
	if err != nil || changed == nil {
		return err
	}
	if _, err := o.client.Namespace(changed.GetNamespace()).Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("error updating %s: %w", o.kind, err)
	}
	o.written.Mutation(changed)
	return nil
}

// assertRemoved fails as long as the informer knows the object.
func (o *objects) assertRemoved(_ context.Context, uid string) error {
	found, err := o.informer.GetIndexer().ByIndex(byOwner, uid)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("error asserting removal of %s: still exists", o.kind)
	}
	return nil
}

// cleaner removes what belongs to ComputeDomains that are gone: now, every 10 minutes, and on request.
func (o *objects) cleaner(ctx context.Context, domains *objects, requests <-chan struct{}, remove func(context.Context, string) error) {
	ticker := time.NewTicker(clean)
	defer ticker.Stop()
	for {
		for _, one := range o.list() {
			uid := one.GetLabels()[domainLabel]
			if domain, err := domains.of(uid); err != nil || domain != nil {
				continue
			}
			log.Printf("Cleanup: stale %s found for ComputeDomain %q", o.kind, uid)
			if err := remove(ctx, uid); err != nil {
				log.Printf("Cleanup: %v", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-requests:
		}
	}
}
