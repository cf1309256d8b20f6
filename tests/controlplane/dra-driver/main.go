// A DRA driver for simulated GPUs that behaves as NVIDIA's does for real ones, written from the
// source of kubernetes-sigs/dra-driver-nvidia-gpu v0.5.0-dev at commit 95932046683719c4:
//
//   - A GPU is the device `gpu-MINOR`, by the number of its device file, which is not its index. It
//     has the attributes and the capacity that the driver publishes, versions as versions, and the
//     devices of a pool are in random order (the driver sorts them with DynamicMIG).
//   - Each prepared claim has a CDI file of its own, with device nodes and
//     NVIDIA_VISIBLE_DEVICES=void. The driver refuses a device that another claim has, unless one
//     of the two has admin access, or both share it (ConsumableShares; never a VFIO device).
//   - Behind the feature gates of the driver: taints by health (NVMLDeviceHealthCheck), shares
//     (ConsumableShares, with -consumable-shares), MIG devices with shared counters (DynamicMIG), and
//     devices for virtual machines (PassthroughSupport).
//
// Its MIG devices have fewer capacities than the driver's, and its CDI files neither hooks nor
// libraries. What it simulates comes from a recording of `nvlink-exporter record`; XIDs from lines in a file.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const (
	name     = "gpu.nvidia.com"
	kubelet  = "/var/lib/kubelet"
	plugins  = kubelet + "/plugins/" + name
	registry = kubelet + "/plugins_registry"
)

// gates are the feature gates that are on, and the option of one of them.
type gates struct {
	health, shares, mig, passthrough bool
	// "disabled", "memory", "unlimited" or a number.
	consumable string
}

// sharing tells whether several claims can have a device.
func (g gates) sharing() bool {
	return g.shares && g.consumable != "" && g.consumable != "disabled"
}

func readGates(text, consumable string) (gates, error) {
	known := gates{consumable: strings.TrimSpace(consumable)}
	for _, one := range strings.Split(text, ",") {
		switch one {
		case "":
		case "NVMLDeviceHealthCheck=true":
			known.health = true
		case "ConsumableShares=true":
			known.shares = true
		case "DynamicMIG=true":
			known.mig = true
		case "PassthroughSupport=true":
			known.passthrough = true
		default:
			return known, fmt.Errorf("unknown feature gate %q", one)
		}
	}
	if known.mig && known.passthrough || known.health && (known.mig || known.passthrough) {
		return known, fmt.Errorf("the feature gates %q are mutually exclusive", text)
	}
	return known, nil
}

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

// readGPUs reads the GPUs of a recording.
func readGPUs(path string) ([]*gpu, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var recording struct {
		Spec struct {
			GPUs []*gpu `json:"gpus"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(text, &recording); err != nil {
		return nil, err
	}
	gpus := recording.Spec.GPUs
	for _, one := range gpus {
		// As if the kernel had found the last GPU first.
		one.minor = (one.Index + 1) % len(gpus)
		one.address = busID(one.PCIBusID)
	}
	return gpus, nil
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	node := flag.String("node", "", "the name of the node")
	recording := flag.String("recording", "", "the GPUs of the node")
	cdi := flag.String("cdi", "", "the directory where the container runtime looks for CDI devices")
	dev := flag.String("dev", "", "the directory of the device files")
	events := flag.String("events", "", "the file to which tests write lines `xid UUID NUMBER`, `gpu-lost` or `unmonitored UUID`")
	featureGates := flag.String("feature-gates", "", "the feature gates that are on, as NAME=true,...")
	consumable := flag.String("consumable-shares", "", "how devices are shared with ConsumableShares")
	computeDomains := flag.Bool("compute-domains", false, "serve the devices of ComputeDomains too")
	flag.Parse()

	known, err := readGates(*featureGates, *consumable)
	check(err, "reading the feature gates")
	gpus, err := readGPUs(*recording)
	check(err, "reading the GPUs")
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err, "reading the kubeconfig")
	client, err := kubernetes.NewForConfig(config)
	check(err, "making a client")
	check(makeDeviceFiles(*dev, gpus), "making the device files")
	check(os.MkdirAll(plugins, 0o755), "making the directory of the socket")
	check(os.MkdirAll(registry, 0o755), "making the directory of registrations")

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	driver, err := newDriver(*node, gpus, known, cdiFiles{directory: *cdi, dev: *dev})
	check(err, "reading the checkpoint")
	helper, err := kubeletplugin.Start(ctx, driver,
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(*node),
		kubeletplugin.DriverName(name),
		kubeletplugin.Serialize(false),
		kubeletplugin.PluginDataDirectoryPath(plugins),
		kubeletplugin.RegistrarDirectoryPath(registry),
	)
	check(err, "starting the driver")
	driver.helper = helper
	check(driver.publish(ctx), "publishing the GPUs")
	if *computeDomains {
		check(startDomains(ctx, client, *node), "starting the driver of ComputeDomains")
	}
	if known.health {
		go driver.followHealth(ctx, *events)
	}
	<-ctx.Done()
	helper.Stop()
}
