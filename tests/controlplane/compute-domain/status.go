package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// entry is a node in the status of a ComputeDomain, or a daemon in a ComputeDomainClique.
type entry struct {
	name, address, clique, status string
	index                         int64
}

// entries reads those of a list. The name of the node has the key `name`.
func entries(one *object, name string, path ...string) []entry {
	list, _, _ := unstructured.NestedSlice(one.Object, path...)
	var all []entry
	for _, item := range list {
		if of, ok := item.(fields); ok {
			read := &object{Object: of}
			index, _, _ := unstructured.NestedInt64(of, "index")
			all = append(all, entry{text(read, name), text(read, "ipAddress"), text(read, "cliqueID"), text(read, "status"), index})
		}
	}
	return all
}

func setEntries(one *object, all []entry, name string, path ...string) {
	list := []any{}
	for _, of := range all {
		list = append(list, fields{
			name: of.name, "ipAddress": of.address, "cliqueID": of.clique, "index": of.index, "status": of.status,
		})
	}
	if len(list) == 0 {
		unstructured.RemoveNestedField(one.Object, path...)
		return
	}
	// Every path leads through objects.
	_ = unstructured.SetNestedSlice(one.Object, list, path...)
}

// globalStatus is Ready also where there is no daemon, if none is asked for.
func globalStatus(domain *object) string {
	nodes := entries(domain, "name", "status", "nodes")
	wanted, _, _ := unstructured.NestedInt64(domain.Object, "spec", "numNodes")
	waits := func(node entry) bool { return node.status == notReady }
	if int64(len(nodes)) < wanted || slices.ContainsFunc(nodes, waits) {
		return notReady
	}
	return ready
}

func (c *controller) writeStatus(ctx context.Context, domain *object, status string) (*object, error) {
	if err := unstructured.SetNestedField(domain.Object, status, "status", "status"); err != nil {
		return nil, err
	}
	return c.domains.client.Namespace(domain.GetNamespace()).UpdateStatus(ctx, domain, metav1.UpdateOptions{})
}

// updateStatus writes the status of a ComputeDomain, if it has changed.
func (c *controller) updateStatus(ctx context.Context, domain *object) error {
	status := globalStatus(domain)
	if text(domain, "status", "status") == status {
		return nil
	}
	updated, err := c.writeStatus(ctx, domain.DeepCopy(), status)
	if err == nil {
		c.domains.written.Mutation(updated)
	}
	return err
}

// onDaemons marks a ComputeDomain as ready whenever as many daemons are ready as it asks for: also if none
// is, and whatever else is missing.
func (c *controller) onDaemons(ctx context.Context, seen *object) error {
	domain, err := c.domains.of(seen.GetLabels()[domainLabel])
	if err != nil || domain == nil {
		return err
	}
	runs, _, _ := unstructured.NestedInt64(seen.Object, "status", "numberReady")
	wanted, _, _ := unstructured.NestedInt64(domain.Object, "spec", "numNodes")
	if runs != wanted {
		return nil
	}
	if _, err := c.writeStatus(ctx, domain.DeepCopy(), ready); err != nil {
		return fmt.Errorf("error updating nodes in ComputeDomain status: %w", err)
	}
	return nil
}

// follow writes the nodes of all ComputeDomains into their status every 2 seconds.
func (c *controller) follow(ctx context.Context) {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		pods := c.pods.list()
		for _, clique := range c.cliques.list() {
			c.cleanClique(ctx, clique, pods)
		}
		for _, domain := range c.domains.list() {
			c.writeNodes(ctx, domain, pods)
		}
	}
}

// cleanClique removes the daemons of nodes that no pod of any ComputeDomain is on.
func (c *controller) cleanClique(ctx context.Context, clique *object, pods []*object) {
	daemons := entries(clique, "nodeName", "daemons")
	running := slices.DeleteFunc(slices.Clone(daemons), func(daemon entry) bool {
		on := func(pod *object) bool { return text(pod, "spec", "nodeName") == daemon.name }
		return !slices.ContainsFunc(pods, on)
	})
	if len(running) == len(daemons) {
		return
	}
	changed := clique.DeepCopy()
	setEntries(changed, running, "nodeName", "daemons")
	if _, err := c.cliques.client.Namespace(c.namespace).Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		log.Printf("CliqueCleanup: error updating ComputeDomainClique %s: %v", clique.GetName(), err)
	}
}

// writeNodes takes the daemons of the cliques, and the pods that say that they have none.
func (c *controller) writeNodes(ctx context.Context, domain *object, pods []*object) {
	var nodes []entry
	for _, clique := range c.cliques.list() {
		if clique.GetLabels()[domainLabel] == string(domain.GetUID()) {
			nodes = append(nodes, entries(clique, "nodeName", "daemons")...)
		}
	}
	for _, pod := range pods {
		labels := pod.GetLabels()
		clique, said := labels[cliqueLabel]
		if labels[domainLabel] != string(domain.GetUID()) || !said || clique != "" {
			continue
		}
		of := entry{text(pod, "spec", "nodeName"), text(pod, "status", "podIP"), "", podStatus(pod), -1}
		if of.name != "" && of.address != "" {
			nodes = append(nodes, of)
		}
	}
	if maps.Equal(byName(entries(domain, "name", "status", "nodes")), byName(nodes)) {
		return
	}
	changed := domain.DeepCopy()
	setEntries(changed, nodes, "name", "status", "nodes")
	updated, err := c.writeStatus(ctx, changed, globalStatus(changed))
	if err != nil {
		log.Printf("CDStatusSync: error updating ComputeDomain %s status: %v", domain.GetName(), err)
		return
	}
	c.domains.written.Mutation(updated)
}

func byName(all []entry) map[string]entry {
	known := map[string]entry{}
	for _, one := range all {
		known[one.name] = one
	}
	return known
}

func podStatus(pod *object) string {
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	for _, item := range conditions {
		if of, ok := item.(fields); ok && of["type"] == "Ready" && of["status"] == "True" {
			return ready
		}
	}
	return notReady
}
