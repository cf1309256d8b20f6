package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const (
	domainsName    = "compute-domain.nvidia.com"
	domainsPlugins = kubelet + "/plugins/" + domainsName
	channel        = "channel"
	daemon         = "daemon"
	// The pauses between two tries to prepare a claim, and how long the driver tries.
	shortest, longest, patience = 250 * time.Millisecond, 3 * time.Second, 45 * time.Second
)

// domains is the part of NVIDIA's second driver that a kubelet sees, written from the source of
// NVIDIA/k8s-dra-driver-gpu (v0.5.0-dev) at commit 22407113785e78c7: a node has the devices channel-0
// and daemon-0, and a channel is prepared when the daemon of the node is ready. Here, a daemon is any
// pod with daemon-0, and as ready as its pod. There are no ComputeDomains, no CDI files, and no checkpoint.
type domains struct {
	client kubernetes.Interface
	lock   sync.Mutex
	// By device, the claim that has it.
	prepared map[string]*resourceapi.ResourceClaim
}

func startDomains(ctx context.Context, client kubernetes.Interface, node string) error {
	if err := os.MkdirAll(domainsPlugins, 0o755); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, &domains{client: client, prepared: map[string]*resourceapi.ResourceClaim{}},
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node),
		kubeletplugin.DriverName(domainsName),
		kubeletplugin.Serialize(false),
		kubeletplugin.PluginDataDirectoryPath(domainsPlugins),
		kubeletplugin.RegistrarDirectoryPath(registry),
	)
	if err != nil {
		return err
	}
	var slice resourceslice.Slice
	for _, kind := range []string{channel, daemon} {
		slice.Devices = append(slice.Devices, resourceapi.Device{
			Name:       kind + "-0",
			Attributes: attributes{"type": text(kind), "id": {IntValue: new(int64(0))}},
		})
	}
	pools := map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{slice}}}
	return helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools})
}

// PrepareResourceClaims tries for as long as the driver does.
func (d *domains) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		began := time.Now()
		for wait := shortest; ; wait = min(2*wait, longest) {
			time.Sleep(wait)
			devices, err := d.prepare(ctx, claim)
			results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
			if err == nil || ctx.Err() != nil || time.Since(began)+longest > patience {
				break
			}
		}
	}
	return results, nil
}

func (d *domains) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if claim.Status.Allocation == nil {
		return nil, errors.New("no allocation set in ResourceClaim")
	}
	var devices []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != domainsName {
			continue
		}
		other, taken := d.prepared[result.Device]
		if taken && other.UID != claim.UID {
			return nil, fmt.Errorf("requested device %s is already allocated to different claim %s", result.Device, other.UID)
		}
		if result.Device == channel+"-0" && !taken && !d.isServed(ctx) {
			return nil, errors.New("error asserting ComputeDomain Ready: current node not ready in ComputeDomain")
		}
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
		})
	}
	for _, one := range devices {
		d.prepared[one.DeviceName] = claim
	}
	return devices, nil
}

// isServed tells whether the pod of the node's daemon is ready.
func (d *domains) isServed(ctx context.Context) bool {
	claim, found := d.prepared[daemon+"-0"]
	if !found {
		return false
	}
	for _, user := range claim.Status.ReservedFor {
		pod, err := d.client.CoreV1().Pods(claim.Namespace).Get(ctx, user.Name, metav1.GetOptions{})
		if err != nil {
			continue
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return false
}

// UnprepareResourceClaims forgets claims.
func (d *domains) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	ended := map[types.UID]error{}
	for _, claim := range claims {
		for device, of := range d.prepared {
			if of.UID == claim.UID {
				delete(d.prepared, device)
			}
		}
		ended[claim.UID] = nil
	}
	return ended, nil
}

// HandleError logs an error of the background, as the driver does.
func (*domains) HandleError(ctx context.Context, err error, message string) {
	runtime.HandleErrorWithContext(ctx, err, message)
}
