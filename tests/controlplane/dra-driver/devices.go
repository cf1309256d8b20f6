package main

import (
	"crypto/sha1"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

type (
	attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	capacity   = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
)

// gpu is a GPU of the node.
type gpu struct {
	Index      int    `json:"index"`
	UUID       string `json:"uuid"`
	PCIBusID   string `json:"pciBusId"`
	Model      string `json:"model"`
	NUMANode   *int64 `json:"numaNode"`
	MIGEnabled bool   `json:"migEnabled"`

	minor   int
	address string
	taints  []resourceapi.DeviceTaint
}

// The kinds of devices.
const (
	whole   = "gpu"
	part    = "mig"
	virtual = "vfio"
)

// device is what can be allocated of a GPU.
type device struct {
	kind string
	gpu  *gpu
	// The profile and the first memory slice of a MIG device.
	profile profile
	start   int
}

// profile is a profile of MIG devices.
type profile struct {
	name                   string
	id, slices, processors int
}

// Of the driver's profiles, the smallest and the largest.
var profiles = []profile{{"1g", 19, 1, 16}, {"7g", 0, 8, 132}}

const memorySlices = 8

// profileName returns the name of a MIG device's profile, such as 1g.10gb.
func (d *device) profileName() string {
	size := d.gpu.memory() / memorySlices * int64(d.profile.slices)
	return fmt.Sprintf("%s.%dgb", d.profile.name, (size+1<<29)>>30)
}

func (d *device) name() string {
	switch d.kind {
	case virtual:
		return fmt.Sprint("gpu-vfio-", d.gpu.Index) // by PCI address
	case part:
		name := strings.ReplaceAll(d.profileName(), ".", "")
		return fmt.Sprintf("gpu-%d-mig-%s-%d-%d", d.gpu.minor, name, d.profile.id, d.start)
	default:
		return fmt.Sprint("gpu-", d.gpu.minor)
	}
}

// devices returns what can be allocated of a GPU, by name.
func (g *gpu) devices(known gates) map[string]*device {
	var all []*device
	mig := known.mig && g.generation().mig
	if mig {
		for _, profile := range profiles {
			// The smallest profiles leave the last memory slice alone.
			for start := 0; start+profile.slices <= max(profile.slices, memorySlices-1); start++ {
				all = append(all, &device{kind: part, gpu: g, profile: profile, start: start})
			}
		}
	}
	// A GPU that MIG splits, and has no MIG devices, is not announced.
	if !g.MIGEnabled || mig && g.generation().toggles {
		all = append(all, &device{kind: whole, gpu: g})
	}
	if known.passthrough {
		all = append(all, &device{kind: virtual, gpu: g})
	}
	byName := map[string]*device{}
	for _, one := range all {
		byName[one.name()] = one
	}
	return byName
}

// generation is what follows from the model of a GPU.
type generation struct {
	architecture, compute string
	// MIG can split it, and without a reset.
	mig, toggles bool
}

func (g *gpu) generation() generation {
	for part, known := range map[string]generation{
		"V100":  {"Volta", "7.0.0", false, false},
		"A100":  {"Ampere", "8.0.0", true, false},
		"A6000": {"Ampere", "8.6.0", false, false},
		"L40S":  {"Ada Lovelace", "8.9.0", false, false},
		"H100":  {"Hopper", "9.0.0", true, true},
		"H200":  {"Hopper", "9.0.0", true, true},
		"B200":  {"Blackwell", "10.0.0", true, true},
	} {
		if strings.Contains(g.Model, part) {
			return known
		}
	}
	return generation{"Unknown", "1.0.0", false, false}
}

// memory returns the bytes of a GPU that runs no program: less than its name says, and no multiple of
// a MiB.
func (g *gpu) memory() int64 {
	gigabytes := int64(80)
	for _, word := range strings.FieldsFunc(g.Model, func(r rune) bool { return r == ' ' || r == '-' }) {
		if number, found := strings.CutSuffix(word, "GB"); found {
			if parsed, err := strconv.ParseInt(number, 10, 64); err == nil {
				gigabytes = parsed
			}
		}
	}
	return gigabytes<<30 - 500<<20 - 4096
}

func text(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}

func version(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{VersionValue: &value}
}

// place adds where a GPU is. The root is the one of its bus.
func (g *gpu) place(all attributes) attributes {
	all["resource.kubernetes.io/pciBusID"] = text(g.address)
	domain, rest, _ := strings.Cut(g.address, ":")
	bus, _, _ := strings.Cut(rest, ":")
	all["resource.kubernetes.io/pcieRoot"] = text("pci" + domain + ":" + bus)
	if g.NUMANode != nil {
		all["resource.kubernetes.io/numaNode"] = resourceapi.DeviceAttribute{IntValue: g.NUMANode}
	}
	return all
}

func (d *device) attributes() attributes {
	known := d.gpu.generation()
	if d.kind == virtual {
		return d.gpu.place(attributes{
			"type":           text(virtual),
			"uuid":           text(uuidOf(d.gpu.address)),
			"deviceID":       text("0x2330"),
			"vendorID":       text("0x10de"),
			"productName":    text(d.gpu.Model),
			"iommuFDEnabled": {BoolValue: new(false)},
		})
	}
	all := attributes{
		"type":                  text(d.kind),
		"productName":           text(d.gpu.Model),
		"brand":                 text("Nvidia"),
		"architecture":          text(known.architecture),
		"cudaComputeCapability": version(known.compute),
		"driverVersion":         version("580.95.5"),
		"cudaDriverVersion":     version("13.0.0"),
	}
	if d.kind == part {
		// It does not exist before a claim needs it, so it has no UUID.
		all["parentUUID"] = text(d.gpu.UUID)
		all["profile"] = text(d.profileName())
	} else {
		all["uuid"] = text(d.gpu.UUID)
		all["addressingMode"] = text("None")
	}
	return d.gpu.place(all)
}

func amount(value int64) resourceapi.DeviceCapacity {
	return resourceapi.DeviceCapacity{Value: *resource.NewQuantity(value, resource.BinarySI)}
}

func (d *device) capacity(known gates) capacity {
	memory := d.gpu.memory()
	split := known.mig && d.gpu.generation().mig
	switch {
	case d.kind == virtual:
		return capacity{"addressableMemory": amount(128 << 30)}
	case d.kind == part:
		slices := int64(d.profile.slices)
		return capacity{
			"memory":          amount(memory / memorySlices * slices),
			"multiprocessors": amount(int64(d.profile.processors)),
		}
	case split:
		return capacity{"memory": amount(memory), "multiprocessors": amount(132)}
	default:
		return capacity{"memory": amount(memory)}
	}
}

// counters returns the counters of some memory slices of a GPU that has this capacity.
func counters(of capacity, start, count int) map[string]resourceapi.Counter {
	all := map[string]resourceapi.Counter{}
	for name, one := range of {
		all[string(name)] = resourceapi.Counter{Value: one.Value}
	}
	for slice := start; slice < start+count; slice++ {
		all[fmt.Sprint("memory-slice-", slice)] = resourceapi.Counter{Value: resource.MustParse("1")}
	}
	return all
}

func (g *gpu) counterSet() string {
	return fmt.Sprintf("gpu-%d-counter-set", g.minor)
}

// published returns the device as it is published.
func (d *device) published(known gates) resourceapi.Device {
	one := resourceapi.Device{Name: d.name(), Attributes: d.attributes(), Capacity: d.capacity(known)}
	if known.mig && d.gpu.generation().mig {
		start, count := d.start, d.profile.slices
		if d.kind == whole {
			count = memorySlices
		}
		one.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{
			CounterSet: d.gpu.counterSet(),
			Counters:   counters(one.Capacity, start, count),
		}}
	}
	if known.sharing() && d.kind != virtual {
		share(&one, known.consumable)
	}
	if d.kind == whole {
		one.Taints = d.gpu.taints
	}
	return one
}

// share lets several claims have the device at a time.
func share(one *resourceapi.Device, option string) {
	one.AllowMultipleAllocations = new(true)
	memory, found := one.Capacity["memory"]
	if !found {
		return
	}
	step := resource.MustParse("1Mi")
	most := *resource.NewQuantity(memory.Value.Value()/step.Value()*step.Value(), resource.BinarySI)
	least, normal := resource.MustParse("0"), resource.MustParse("0")
	if option == "memory" {
		least, normal = step.DeepCopy(), most.DeepCopy()
	}
	memory.Value = most.DeepCopy()
	memory.RequestPolicy = &resourceapi.CapacityRequestPolicy{
		Default:    &normal,
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: new(most.DeepCopy()), Step: &step},
	}
	one.Capacity["memory"] = memory
	if count, err := strconv.Atoi(option); err == nil && count > 0 {
		all, single := *resource.NewQuantity(int64(count), resource.DecimalSI), resource.MustParse("1")
		one.Capacity["shares"] = resourceapi.DeviceCapacity{
			Value: all,
			RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: new(single.DeepCopy()),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{
					Min: new(single.DeepCopy()), Max: new(all.DeepCopy()), Step: new(single.DeepCopy()),
				},
			},
		}
	}
}

// pool returns the slices of a node: one with all devices in the order of Go's maps, which is random;
// with MIG devices, one with all counters and then one for each GPU, sorted, as for Kubernetes from
// 1.35 on.
func pool(all map[string]map[string]*device, known gates) resourceslice.Pool {
	if !known.mig {
		var slice resourceslice.Slice
		for _, devices := range all {
			for _, one := range devices {
				slice.Devices = append(slice.Devices, one.published(known))
			}
		}
		return resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	}
	var shared resourceslice.Slice
	var ofGPUs []resourceslice.Slice
	for _, address := range slices.Sorted(maps.Keys(all)) {
		var slice resourceslice.Slice
		var owner *gpu
		for _, name := range slices.Sorted(maps.Keys(all[address])) {
			one := all[address][name]
			owner = one.gpu
			slice.Devices = append(slice.Devices, one.published(known))
		}
		if owner != nil && owner.generation().mig {
			whole := device{kind: whole, gpu: owner}
			shared.SharedCounters = append(shared.SharedCounters, resourceapi.CounterSet{
				Name:     owner.counterSet(),
				Counters: counters(whole.capacity(known), 0, memorySlices),
			})
		}
		ofGPUs = append(ofGPUs, slice)
	}
	return resourceslice.Pool{Slices: append([]resourceslice.Slice{shared}, ofGPUs...)}
}

// busID returns a PCI address as the kernel writes it: NVML's has a domain of eight digits.
func busID(address string) string {
	address = strings.ToLower(address)
	if domain, rest, _ := strings.Cut(address, ":"); len(domain) == 8 {
		return strings.TrimPrefix(domain, "0000") + ":" + rest
	}
	return address
}

// uuidOf returns the UUID that follows from a PCI address (RFC 9562, version 5, namespace DNS).
func uuidOf(address string) string {
	namespace := []byte{0x6b, 0xa7, 0xb8, 0x10, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}
	sum := sha1.Sum(append(namespace, address...))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
