// NVIDIA's driver for ComputeDomains without its hardware: the controller, and what the API server sees
// of the kubelet plugins and of the daemons. It is written from the source of
// NVIDIA/k8s-dra-driver-gpu (v0.5.0-dev) at commit 22407113785e78c7 with the default feature gates
// (ComputeDomainCliques and IMEXDaemonsWithDNSNames are on):
//
//   - The controller makes, for each ComputeDomain and in this order: its finalizer, the claim template
//     of the daemons, their DaemonSet, the claim template of the workload, and the status. It watches
//     with informers, and makes at most 5 requests a second with each of two clients in the long run.
//     Each event is an item of its own in one queue with one worker, which begins after 5 ms, and tries
//     again after 10 ms, 20 ms, ... up to 1000 s.
//   - The plugin of a node publishes the devices channel-0 and daemon-0. For a claim of channel-0, it
//     labels the node, unless the label of another ComputeDomain is there, and waits until the daemon of
//     the node is ready: it begins after 250 ms, and tries again after 500 ms, ... up to 3 s, for 45 s.
//   - A daemon enters itself into the ComputeDomainClique of its clique, from where the controller
//     copies it into the status of the ComputeDomain every 2 s.
//
// The nodes have no kubelet: this program writes the status of the daemons' pods and ends them, and
// takes a claim back when its pod has ended or is gone. It neither starts a container nor writes a
// file, and keeps in memory which claims are prepared, where the plugin has a checkpoint. There is only
// one namespace of daemons, no election of a leader, and no variable FEATURE_GATES of the daemons.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	driver = "compute-domain.nvidia.com"
	group  = "resource.nvidia.com"
	api    = group + "/v1beta1"
	// The label of what belongs to a ComputeDomain, which is also the name of the finalizers.
	domainLabel = group + "/computeDomain"
	cliqueLabel = domainLabel + ".cliqueID"
	targetLabel = domainLabel + "Target"

	ready, notReady = "Ready", "NotReady"
)

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

// clients reach the API server. Those of the controller share its limits, one for what NVIDIA defined and
// one for all else.
type clients struct {
	core, nvidia dynamic.Interface
	// Those of the nodes, without limits: each has a plugin of its own.
	plain   kubernetes.Interface
	cliques dynamic.NamespaceableResourceInterface
}

func newClients(config *rest.Config, qps float64, burst int) (clients, error) {
	limited, free := rest.CopyConfig(config), rest.CopyConfig(config)
	limited.QPS, limited.Burst, free.QPS = float32(qps), burst, -1
	core, err := dynamic.NewForConfig(limited)
	if err != nil {
		return clients{}, err
	}
	nvidia, err := dynamic.NewForConfig(limited)
	if err != nil {
		return clients{}, err
	}
	plain, err := kubernetes.NewForConfig(free)
	if err != nil {
		return clients{}, err
	}
	cliques, err := dynamic.NewForConfig(free)
	if err != nil {
		return clients{}, err
	}
	return clients{core: core, nvidia: nvidia, plain: plain, cliques: cliques.Resource(cliqueResource)}, nil
}

// readNodes reads NAME=CLIQUE,NAME,...
func readNodes(text string) map[string]string {
	nodes := map[string]string{}
	for _, one := range strings.Split(text, ",") {
		if name, clique, _ := strings.Cut(one, "="); name != "" {
			nodes[name] = clique
		}
	}
	return nodes
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	namespace := flag.String("namespace", "dra-driver-nvidia-gpu", "the namespace of the daemons")
	nodes := flag.String("nodes", "", "the nodes with a plugin, and their cliques: NAME[=CLUSTER.CLIQUE],...")
	start := flag.Duration("daemon-start", 2*time.Second, "how long a daemon takes to be ready")
	qps := flag.Float64("kube-api-qps", 5, "the requests of the controller in a second")
	burst := flag.Int("kube-api-burst", 10, "its requests at once")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err, "reading the kubeconfig")
	all, err := newClients(config, *qps, *burst)
	check(err, "making the clients")

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	controller := newController(all, *namespace)
	plugins := newPlugins(all, *namespace, readNodes(*nodes), *start)
	check(plugins.start(ctx), "starting the plugins")
	check(controller.start(ctx), "starting the controller")
	controller.queue.run(ctx)
}
