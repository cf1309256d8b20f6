package main

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// controller makes what belongs to ComputeDomains, and removes it.
type controller struct {
	clients   clients
	namespace string
	queue     queue
	domains   *objects
	// What belongs to them: the DaemonSets and their claim templates, and those of the workload.
	daemons, daemonTemplates, workload *objects
	// What their status comes from, and the nodes with a label.
	cliques, pods, nodes *objects
	cleanNodes           chan struct{}
}

func newController(all clients, namespace string) *controller {
	template := func(target string) *objects {
		selector := fmt.Sprintf("%s,%s in (%s)", domainLabel, targetLabel, target)
		return watch("ResourceClaimTemplate", all.core, templateResource, "", selector)
	}
	return &controller{
		clients:         all,
		namespace:       namespace,
		queue:           newQueue(),
		domains:         watch("ComputeDomain", all.nvidia, domainResource, "", ""),
		daemons:         watch("DaemonSet", all.core, daemonResource, namespace, domainLabel),
		daemonTemplates: template("Daemon"),
		workload:        template("Workload"),
		cliques:         watch("ComputeDomainClique", all.nvidia, cliqueResource, namespace, ""),
		pods:            watch("Pod", all.core, podResource, namespace, domainLabel),
		nodes:           watch("Node", all.core, nodeResource, "", domainLabel),
		cleanNodes:      make(chan struct{}, 1),
	}
}

func (c *controller) start(ctx context.Context) error {
	if err := c.domains.onChange(c.queue, c.onDomain); err != nil {
		return err
	}
	if err := c.daemons.onChange(c.queue, c.onDaemons); err != nil {
		return err
	}
	for _, one := range []*objects{c.domains, c.daemons, c.daemonTemplates, c.cliques, c.pods, c.workload, c.nodes} {
		if err := one.start(ctx); err != nil {
			return err
		}
	}
	never := make(chan struct{})
	remove := func(kind *objects) func(context.Context, string) error {
		return func(ctx context.Context, uid string) error {
			if err := kind.delete(ctx, uid); err != nil {
				return err
			}
			return kind.removeFinalizer(ctx, uid)
		}
	}
	go c.follow(ctx)
	go c.daemonTemplates.cleaner(ctx, c.domains, never, remove(c.daemonTemplates))
	go c.daemons.cleaner(ctx, c.domains, never, func(ctx context.Context, uid string) error {
		if err := c.deleteDaemons(ctx, uid); err != nil {
			return err
		}
		if err := c.daemonTemplates.removeFinalizer(ctx, uid); err != nil {
			return err
		}
		return c.daemons.removeFinalizer(ctx, uid)
	})
	go c.workload.cleaner(ctx, c.domains, never, remove(c.workload))
	go c.nodes.cleaner(ctx, c.domains, c.cleanNodes, c.unlabel)
	return nil
}

// onDomain makes what a ComputeDomain needs, or removes it. It makes the same step again and again while
// that fails, and none after it.
func (c *controller) onDomain(ctx context.Context, seen *object) error {
	uid := string(seen.GetUID())
	domain, err := c.domains.of(uid)
	if err != nil || domain == nil {
		return err
	}
	if domain.GetDeletionTimestamp() != nil {
		return c.remove(ctx, uid)
	}
	if err := c.addFinalizer(ctx, domain); err != nil {
		return fmt.Errorf("error adding finalizer: %w", err)
	}
	select {
	case c.cleanNodes <- struct{}{}:
	default:
	}
	if err := c.createDaemons(ctx, uid); err != nil {
		return fmt.Errorf("error creating DaemonSet: %w", err)
	}
	wanted := workloadTemplate(domain)
	if err := c.workload.create(ctx, uid, wanted); err != nil {
		return fmt.Errorf("error creating ResourceClaimTemplate '%s/%s': %w", wanted.GetNamespace(), wanted.GetName(), err)
	}
	// If the finalizer is new, this is not the latest version, and the API server refuses to write.
	if err := c.updateStatus(ctx, domain); err != nil {
		return fmt.Errorf("error updating global status on ComputeDomain '%s/%s': %w", domain.GetNamespace(), domain.GetName(), err)
	}
	return nil
}

func (c *controller) addFinalizer(ctx context.Context, domain *object) error {
	if slices.Contains(domain.GetFinalizers(), domainLabel) {
		return nil
	}
	changed := domain.DeepCopy()
	changed.SetFinalizers(append(changed.GetFinalizers(), domainLabel))
	_, err := c.domains.client.Namespace(domain.GetNamespace()).Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

func (c *controller) createDaemons(ctx context.Context, uid string) error {
	if one, err := c.daemons.of(uid); err != nil || one != nil {
		return err
	}
	if err := c.daemonTemplates.create(ctx, uid, daemonTemplate(c.namespace, uid)); err != nil {
		return err
	}
	return c.daemons.create(ctx, uid, daemonSet(c.namespace, uid))
}

// remove removes what belongs to a ComputeDomain, whoever uses it, and then its finalizer.
func (c *controller) remove(ctx context.Context, uid string) error {
	steps := []func(context.Context, string) error{
		c.workload.delete,
		c.deleteDaemons,
		c.unlabel,
		c.workload.removeFinalizer,
		c.workload.assertRemoved,
		c.daemonTemplates.removeFinalizer,
		c.daemons.removeFinalizer,
		c.daemonTemplates.assertRemoved,
		c.daemons.assertRemoved,
	}
	for _, step := range steps {
		if err := step(ctx, uid); err != nil {
			return err
		}
	}
	changed, err := c.domains.withoutFinalizer(uid)
	if err != nil || changed == nil {
		return err
	}
	_, err = c.domains.client.Namespace(changed.GetNamespace()).Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// deleteDaemons deletes the claim template only where there is a DaemonSet.
func (c *controller) deleteDaemons(ctx context.Context, uid string) error {
	if one, err := c.daemons.of(uid); err != nil || one == nil {
		return err
	}
	if err := c.daemonTemplates.delete(ctx, uid); err != nil {
		return err
	}
	return c.daemons.delete(ctx, uid)
}

// unlabel removes the label of a ComputeDomain from all nodes.
func (c *controller) unlabel(ctx context.Context, uid string) error {
	selector := metav1.ListOptions{LabelSelector: domainLabel + "=" + uid}
	nodes, err := c.nodes.client.List(ctx, selector)
	if err != nil {
		return fmt.Errorf("error retrieving nodes: %w", err)
	}
	for _, node := range nodes.Items {
		unstructured.RemoveNestedField(node.Object, "metadata", "labels", domainLabel)
		if _, err := c.nodes.client.Update(ctx, &node, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("error updating node %s: %w", node.GetName(), err)
		}
	}
	return nil
}
