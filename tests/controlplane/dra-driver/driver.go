package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// checkpoint is where the driver keeps the prepared claims: a restart forgets none.
const checkpoint = plugins + "/checkpoint.json"

// driver is the part of the driver that the kubelet calls.
type driver struct {
	lock   sync.Mutex
	node   string
	gates  gates
	cdi    cdiFiles
	helper *kubeletplugin.Helper
	gpus   []*gpu
	// What is published, by PCI address and name.
	devices map[string]map[string]*device
	// By UID of the claim.
	prepared map[types.UID]preparedClaim
}

// preparedClaim is a claim whose devices are ready.
type preparedClaim struct {
	Devices []preparedDevice
}

type preparedDevice struct {
	Request, Pool, Device, CDI string
	Admin                      bool
}

func newDriver(node string, gpus []*gpu, known gates, cdi cdiFiles) (*driver, error) {
	d := &driver{
		node: node, gates: known, cdi: cdi, gpus: gpus,
		devices:  map[string]map[string]*device{},
		prepared: map[types.UID]preparedClaim{},
	}
	for _, one := range gpus {
		d.devices[one.address] = one.devices(known)
	}
	text, err := os.ReadFile(checkpoint)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	return d, json.Unmarshal(text, &d.prepared)
}

func (d *driver) save() error {
	text, err := json.Marshal(d.prepared)
	if err != nil {
		return err
	}
	return os.WriteFile(checkpoint, text, 0o600)
}

// publish writes the ResourceSlices of the node.
func (d *driver) publish(ctx context.Context) error {
	pools := map[string]resourceslice.Pool{d.node: pool(d.devices, d.gates)}
	return d.helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools})
}

func (d *driver) find(name string) *device {
	for _, devices := range d.devices {
		if one, found := devices[name]; found {
			return one
		}
	}
	return nil
}

// PrepareResourceClaims makes the devices of claims ready for containers.
func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(ctx, claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if known, found := d.prepared[claim.UID]; found {
		return known.given(), nil
	}
	if claim.Status.Allocation == nil {
		return nil, errors.New("claim not yet allocated")
	}
	var known preparedClaim
	var devices []*device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != name {
			continue
		}
		admin := result.AdminAccess != nil && *result.AdminAccess
		if !admin {
			if err := d.refuseOverlap(result.Device); err != nil {
				return nil, err
			}
		}
		one := d.find(result.Device)
		if one == nil {
			return nil, fmt.Errorf("allocatable not found for device %q", result.Device)
		}
		devices = append(devices, one)
		known.Devices = append(known.Devices, preparedDevice{
			Request: result.Request,
			Pool:    result.Pool,
			Device:  result.Device,
			CDI:     cdiKind + "=" + cdiName(string(claim.UID), one),
			Admin:   admin,
		})
	}
	if err := d.cdi.write(string(claim.UID), devices); err != nil {
		return nil, err
	}
	d.prepared[claim.UID] = known
	if err := d.save(); err != nil {
		return nil, err
	}
	return known.given(), d.hideSiblings(ctx, devices)
}

// refuseOverlap returns an error if another claim has a device, unless several may.
func (d *driver) refuseOverlap(device string) error {
	found := d.find(device)
	shared := d.gates.sharing() && found != nil && found.kind != virtual
	for other, known := range d.prepared {
		for _, one := range known.Devices {
			if one.Device == device && !one.Admin && !shared {
				return fmt.Errorf("requested device %s is already allocated to different claim %s", device, other)
			}
		}
	}
	return nil
}

// hideSiblings publishes no other device of a GPU that is in use as one kind of device.
func (d *driver) hideSiblings(ctx context.Context, used []*device) error {
	if !d.gates.passthrough {
		return nil
	}
	for _, one := range used {
		for name, sibling := range d.devices[one.gpu.address] {
			if sibling.kind != one.kind {
				delete(d.devices[one.gpu.address], name)
			}
		}
	}
	return d.publish(ctx)
}

func (c preparedClaim) given() []kubeletplugin.Device {
	var all []kubeletplugin.Device
	for _, one := range c.Devices {
		all = append(all, kubeletplugin.Device{
			Requests: []string{one.Request}, PoolName: one.Pool, DeviceName: one.Device,
			CDIDeviceIDs: []string{one.CDI},
		})
	}
	return all
}

// UnprepareResourceClaims undoes what was done for claims.
func (d *driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	ended := map[types.UID]error{}
	for _, claim := range claims {
		ended[claim.UID] = d.unprepare(ctx, claim.UID)
	}
	return ended, nil
}

func (d *driver) unprepare(ctx context.Context, claim types.UID) error {
	known, found := d.prepared[claim]
	if !found {
		return nil
	}
	delete(d.prepared, claim)
	if err := d.cdi.remove(string(claim)); err != nil {
		return err
	}
	if err := d.save(); err != nil || !d.gates.passthrough {
		return err
	}
	for _, one := range known.Devices {
		gone := d.find(one.Device)
		if gone != nil && !d.isPrepared(one.Device) {
			d.devices[gone.gpu.address] = gone.gpu.devices(d.gates)
		}
	}
	return d.publish(ctx)
}

func (d *driver) isPrepared(device string) bool {
	for _, known := range d.prepared {
		if slices.ContainsFunc(known.Devices, func(one preparedDevice) bool { return one.Device == device }) {
			return true
		}
	}
	return false
}

// HandleError logs an error of the background, as the driver does.
func (*driver) HandleError(ctx context.Context, err error, message string) {
	runtime.HandleErrorWithContext(ctx, err, message)
}

// XIDs of applications: the GPU is healthy.
var harmless = []string{"13", "31", "43", "45", "68", "109"}

// followHealth taints GPUs by the lines that appear in a file. A taint stays until the driver starts
// again.
func (d *driver) followHealth(ctx context.Context, path string) {
	read := 0
	for ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		text, err := os.ReadFile(filepath.Clean(path))
		if err != nil {
			continue
		}
		lines := strings.Split(string(text), "\n")
		for ; read < len(lines)-1; read++ {
			d.hear(ctx, strings.Fields(lines[read]))
		}
	}
}

// hear taints what an event of NVML is about: an XID is of one GPU, the loss of a GPU is of all, because
// NVML does not tell which; and a GPU whose events it does not report stays usable.
func (d *driver) hear(ctx context.Context, event []string) {
	if len(event) == 0 {
		return
	}
	noSchedule, none := resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNone
	switch event[0] {
	case "xid":
		effect := noSchedule
		if slices.Contains(harmless, event[2]) {
			effect = none
		}
		d.taint(ctx, event[1], resourceapi.DeviceTaint{Key: name + "/xid", Value: event[2], Effect: effect})
	case "gpu-lost":
		d.taint(ctx, "", resourceapi.DeviceTaint{Key: name + "/gpu-lost", Effect: noSchedule})
	case "unmonitored":
		d.taint(ctx, event[1], resourceapi.DeviceTaint{Key: name + "/unmonitored", Effect: none})
	}
}

// taint taints a GPU, or all, in place of an earlier taint with the same key: an XID of an application
// lifts that of an XID before it.
func (d *driver) taint(ctx context.Context, uuid string, taint resourceapi.DeviceTaint) {
	d.lock.Lock()
	defer d.lock.Unlock()
	for _, one := range d.gpus {
		if uuid != "" && one.UUID != uuid {
			continue
		}
		one.taints = slices.DeleteFunc(slices.Clone(one.taints), func(known resourceapi.DeviceTaint) bool {
			return known.Key == taint.Key
		})
		one.taints = append(one.taints, taint)
	}
	if err := d.publish(ctx); err != nil {
		d.HandleError(ctx, err, "publishing a taint")
	}
}
