// A DRA driver for simulated GPUs, as NVIDIA's is for real ones: publishes them in a ResourceSlice
// with their UUIDs, and gives a container those of its claims by CDI.
//
// A container learns its GPUs from variables NVIDIA_GPU_INDEX=UUID.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const (
	name     = "gpu.nvidia.com"
	kind     = "k8s." + name + "/gpu"
	kubelet  = "/var/lib/kubelet"
	plugins  = kubelet + "/plugins/" + name
	registry = kubelet + "/plugins_registry"
)

type driver struct{}

// PrepareResourceClaims names the CDI device of each GPU; nothing else needs to be done.
func (driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var devices []kubeletplugin.Device
		for _, one := range claim.Status.Allocation.Devices.Results {
			if one.Driver != name {
				continue
			}
			devices = append(devices, kubeletplugin.Device{
				Requests:     []string{one.Request},
				PoolName:     one.Pool,
				DeviceName:   one.Device,
				CDIDeviceIDs: []string{kind + "=" + one.Device},
			})
		}
		prepared[claim.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	return prepared, nil
}

func (driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	ended := map[types.UID]error{}
	for _, claim := range claims {
		ended[claim.UID] = nil
	}
	return ended, nil
}

func (driver) HandleError(ctx context.Context, err error, message string) {
	runtime.HandleErrorWithContext(ctx, err, message)
}

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

// device returns the device of a GPU.
func device(index int, uuid string) resourceapi.Device {
	text := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: &value}
	}
	return resourceapi.Device{
		Name:       fmt.Sprint("gpu-", index),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": text("gpu"), "uuid": text(uuid)},
	}
}

// writeCDI writes what the container runtime does for each GPU.
func writeCDI(directory string, uuids []string) error {
	type edits struct {
		Env []string `json:"env"`
	}
	type one struct {
		Name  string `json:"name"`
		Edits edits  `json:"containerEdits"`
	}
	var devices []one
	for index, uuid := range uuids {
		env := []string{fmt.Sprintf("NVIDIA_GPU_%d=%s", index, uuid)}
		devices = append(devices, one{Name: fmt.Sprint("gpu-", index), Edits: edits{Env: env}})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": kind, "devices": devices})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, "gpu.json"), text, 0o644)
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	node := flag.String("node", "", "the name of the node")
	cdi := flag.String("cdi", "", "the directory where the container runtime looks for CDI devices")
	flag.Parse()
	uuids := flag.Args() // of the GPUs, by index

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err, "reading the kubeconfig")
	client, err := kubernetes.NewForConfig(config)
	check(err, "making a client")
	check(writeCDI(*cdi, uuids), "writing the CDI devices")
	check(os.MkdirAll(plugins, 0o755), "making the directory of the socket")
	check(os.MkdirAll(registry, 0o755), "making the directory of registrations")

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	helper, err := kubeletplugin.Start(ctx, driver{},
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(*node),
		kubeletplugin.DriverName(name),
		kubeletplugin.PluginDataDirectoryPath(plugins),
		kubeletplugin.RegistrarDirectoryPath(registry),
	)
	check(err, "starting the driver")
	var devices []resourceapi.Device
	for index, uuid := range uuids {
		devices = append(devices, device(index, uuid))
	}
	slices := []resourceslice.Slice{{Devices: devices}}
	pools := map[string]resourceslice.Pool{*node: {Slices: slices}}
	check(helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}), "publishing the GPUs")
	<-ctx.Done()
	helper.Stop()
}
