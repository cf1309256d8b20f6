package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

const (
	// How long the plugin tries, and the kubelet waits for.
	patience = 45 * time.Second
	// The kubelet's pause after a failure, half as long again at most.
	syncPause = 10 * time.Second
	// The pauses of the plugin.
	shortest, longest = 250 * time.Millisecond, 3 * time.Second
)

// permanent is an error after which the plugin does not try again; the kubelet does.
type permanent struct{ error }

// parameters are those of claims that the controller's templates make.
type parameters struct {
	Kind     string `json:"kind"`
	DomainID string `json:"domainID"`
}

const channelConfig, daemonConfig = "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"

// retry calls until it succeeds, with the pauses of a daemon, without their jitter: 5 ms to 6 s.
func retry(ctx context.Context, do func() error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 6*time.Second) {
		err := do()
		if err == nil || !pause(ctx, wait) {
			return
		}
	}
}

// prepareAll prepares the claims of a pod, one after the other, and returns those that it began with. It
// ends when all are prepared, or with the pod.
func (p *plugins) prepareAll(ctx context.Context, node *node, pod *corev1.Pod) []types.UID {
	var begun []types.UID
	for index := range pod.Spec.ResourceClaims {
		for ctx.Err() == nil {
			claim, err := p.claim(ctx, node, pod, &pod.Spec.ResourceClaims[index])
			if err == nil && claim != nil {
				if !slices.Contains(begun, claim.UID) {
					begun = append(begun, claim.UID)
				}
				err = p.tryPrepare(ctx, node, claim, pod.UID)
			}
			if err == nil {
				break
			}
			log.Printf("cannot prepare the claims of pod %s/%s on %s: %v", pod.Namespace, pod.Name, node.name, err)
			pause(ctx, syncPause+rand.N(syncPause/2))
		}
	}
	return begun
}

// claim returns a claim of a pod; nil if it has no device of the node's plugin.
func (p *plugins) claim(ctx context.Context, node *node, pod *corev1.Pod, of *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	// The names of generated claims may have come after the pod was seen.
	latest, err := p.clients.plain.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	name, _, err := resourceclaim.Name(latest, of)
	if err != nil || name == nil {
		return nil, err
	}
	claim, err := p.clients.plain.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if !resourceclaim.IsReservedForPod(pod, claim, false) {
		return nil, fmt.Errorf("claim %s is not reserved for the pod", claim.Name)
	}
	if claim.Status.Allocation == nil || len(devices(node, claim)) == 0 {
		return nil, nil
	}
	return claim, nil
}

// devices returns the names of the node's devices that a claim has.
func devices(node *node, claim *resourceapi.ResourceClaim) []string {
	var names []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == driver && result.Pool == node.name {
			names = append(names, result.Device)
		}
	}
	return names
}

// tryPrepare tries for as long as the plugin does.
func (p *plugins) tryPrepare(ctx context.Context, node *node, claim *resourceapi.ResourceClaim, pod types.UID) error {
	began := time.Now()
	var err error
	for wait := shortest; ; wait = min(2*wait, longest) {
		if time.Since(began)+wait > patience || !pause(ctx, wait) {
			return cmp.Or(err, ctx.Err())
		}
		err = p.prepare(ctx, node, claim, pod)
		if err == nil || errors.As(err, &permanent{}) {
			return err
		}
		log.Printf("claim %s on %s: %v", claim.Name, node.name, err)
	}
}

// prepare prepares a claim, if it can do so now.
func (p *plugins) prepare(ctx context.Context, node *node, claim *resourceapi.ResourceClaim, pod types.UID) error {
	node.lock.Lock()
	defer node.lock.Unlock()
	if known := node.prepared[claim.UID]; known != nil {
		known.pods[pod] = true
		if known.complete {
			return nil
		}
	}
	wanted := devices(node, claim)
	for uid, known := range node.prepared {
		taken := func(name string) bool { return slices.Contains(wanted, name) }
		if uid != claim.UID && known.complete && slices.ContainsFunc(known.devices, taken) {
			return fmt.Errorf("a requested device is already allocated to different claim %s", uid)
		}
	}
	of, err := readParameters(claim)
	if err != nil {
		return err
	}
	known := &prepared{parameters: of, devices: wanted, pods: map[types.UID]bool{pod: true}}
	node.prepared[claim.UID] = known
	if err := p.apply(ctx, node, claim, of); err != nil {
		return err
	}
	known.complete = true
	return nil
}

func readParameters(claim *resourceapi.ResourceClaim) (parameters, error) {
	var of parameters
	for _, config := range claim.Status.Allocation.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != driver {
			continue
		}
		if err := json.Unmarshal(config.Opaque.Parameters.Raw, &of); err != nil {
			return of, permanent{fmt.Errorf("error decoding config parameters: %w", err)}
		}
	}
	if of.Kind != channelConfig && of.Kind != daemonConfig {
		return of, permanent{fmt.Errorf("error decoding config parameters: kind %q", of.Kind)}
	}
	return of, nil
}

func (p *plugins) apply(ctx context.Context, node *node, claim *resourceapi.ResourceClaim, of parameters) error {
	domain, err := p.domains.of(of.DomainID)
	if err != nil {
		return err
	}
	if of.Kind == daemonConfig {
		if domain == nil {
			return fmt.Errorf("compute domain not found: %s", of.DomainID)
		}
		return nil
	}
	if domain == nil {
		return permanent{fmt.Errorf("ComputeDomain not found: %s", of.DomainID)}
	}
	if domain.GetNamespace() != claim.Namespace {
		return permanent{errors.New("the ResourceClaim's namespace is different than the ComputeDomain's namespace")}
	}
	if err := p.label(ctx, node, of.DomainID); err != nil {
		return fmt.Errorf("error adding Node label for ComputeDomain: %w", err)
	}
	if !p.isReady(ctx, node, domain) {
		return errors.New("error asserting ComputeDomain Ready: current node not ready in ComputeDomain")
	}
	return nil
}

func (p *plugins) label(ctx context.Context, node *node, uid string) error {
	nodes := p.clients.plain.CoreV1().Nodes()
	known, err := nodes.Get(ctx, node.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	current, found := known.Labels[domainLabel]
	if found && current != uid {
		return errors.New("label already exists for a different ComputeDomain")
	}
	if found {
		return nil
	}
	if known.Labels == nil {
		known.Labels = map[string]string{}
	}
	known.Labels[domainLabel] = uid
	_, err = nodes.Update(ctx, known, metav1.UpdateOptions{})
	return err
}

// isReady asks the API server for the clique, and the informer for the status.
func (p *plugins) isReady(ctx context.Context, node *node, domain *object) bool {
	clique, err := p.clients.cliques.Namespace(p.namespace).Get(ctx, node.cliqueName(string(domain.GetUID())), metav1.GetOptions{})
	if err == nil && byName(entries(clique, "nodeName", "daemons"))[node.name].status == ready {
		return true
	}
	return byName(entries(domain, "name", "status", "nodes"))[node.name].status == ready
}

// unprepare takes a claim back from a pod, and the label from the node after the last pod.
func (p *plugins) unprepare(ctx context.Context, node *node, claim, pod types.UID) error {
	node.lock.Lock()
	defer node.lock.Unlock()
	known := node.prepared[claim]
	if known == nil {
		return nil
	}
	delete(known.pods, pod)
	if len(known.pods) > 0 {
		return nil
	}
	if known.parameters.Kind == channelConfig {
		of, err := p.clients.plain.CoreV1().Nodes().Get(ctx, node.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if of.Labels[domainLabel] == known.parameters.DomainID {
			delete(of.Labels, domainLabel)
			if _, err := p.clients.plain.CoreV1().Nodes().Update(ctx, of, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	delete(node.prepared, claim)
	return nil
}
