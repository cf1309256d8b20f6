package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	cdiKind = "k8s." + name + "/claim"
	// The numbers of NVIDIA's device files; those of the others are dynamic.
	nvidia, uvm, caps, vfio = 195, 510, 509, 508
)

// deviceFile is a device file of the node.
type deviceFile struct {
	path         string
	major, minor int
}

// controlFiles are those that every container with GPUs gets.
var controlFiles = []deviceFile{
	{"/dev/nvidiactl", nvidia, 255},
	{"/dev/nvidia-modeset", nvidia, 254},
	{"/dev/nvidia-uvm", uvm, 0},
	{"/dev/nvidia-uvm-tools", uvm, 1},
}

var vfioFile = deviceFile{"/dev/vfio/vfio", 10, 196}

func (g *gpu) file() deviceFile {
	return deviceFile{fmt.Sprint("/dev/nvidia", g.minor), nvidia, g.minor}
}

// files returns the device files of a device.
func (d *device) files() []deviceFile {
	switch d.kind {
	case virtual:
		return []deviceFile{{fmt.Sprint("/dev/vfio/", d.gpu.Index), vfio, d.gpu.Index}}
	case part:
		minor := 9*d.gpu.minor + d.start + 3
		return []deviceFile{d.gpu.file(), {fmt.Sprint("/dev/nvidia-caps/nvidia-cap", minor), caps, minor}}
	default:
		return []deviceFile{d.gpu.file()}
	}
}

// makeDeviceFiles makes the device files in a directory that stands for the root of the driver.
func makeDeviceFiles(root string, gpus []*gpu) error {
	files := append([]deviceFile{vfioFile}, controlFiles...)
	for _, one := range gpus {
		files = append(files, one.file())
		files = append(files, (&device{kind: virtual, gpu: one}).files()...)
	}
	for _, one := range files {
		path := filepath.Join(root, one.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		err := syscall.Mknod(path, syscall.S_IFCHR|0o666, one.major<<8|one.minor)
		if err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("mknod %s: %w", path, err)
		}
	}
	return nil
}

// cdiFiles are the files that tell the container runtime what a container of a claim gets.
type cdiFiles struct {
	directory, dev string
}

type (
	cdiNode struct {
		Path        string `json:"path"`
		HostPath    string `json:"hostPath,omitempty"`
		Type        string `json:"type,omitempty"`
		Major       int    `json:"major,omitempty"`
		Minor       int    `json:"minor,omitempty"`
		Permissions string `json:"permissions,omitempty"`
	}
	cdiEdits struct {
		Env         []string  `json:"env,omitempty"`
		DeviceNodes []cdiNode `json:"deviceNodes,omitempty"`
	}
	cdiDevice struct {
		Name  string   `json:"name"`
		Edits cdiEdits `json:"containerEdits"`
	}
)

func cdiName(claim string, one *device) string {
	return claim + "-" + one.name()
}

func (c cdiFiles) path(claim string) string {
	return filepath.Join(c.directory, "k8s."+name+"-claim_"+claim+".yaml")
}

func (c cdiFiles) node(file deviceFile) cdiNode {
	node := cdiNode{Path: file.path, Major: file.major, Minor: file.minor, Permissions: "rwm"}
	switch file.major {
	case caps: // made in the container only
		node.Type = "c"
	default: // the runtime asks the file
		node.HostPath = filepath.Join(c.dev, file.path)
	}
	return node
}

func (c cdiFiles) write(claim string, devices []*device) error {
	common := cdiEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}
	files := controlFiles
	var all []cdiDevice
	for _, one := range devices {
		if one.kind == virtual {
			files = []deviceFile{vfioFile}
		}
		edits := cdiEdits{}
		for _, file := range one.files() {
			edits.DeviceNodes = append(edits.DeviceNodes, c.node(file))
		}
		all = append(all, cdiDevice{Name: cdiName(claim, one), Edits: edits})
	}
	for _, file := range files {
		common.DeviceNodes = append(common.DeviceNodes, c.node(file))
	}
	text, err := json.Marshal(map[string]any{
		"cdiVersion": "0.5.0", "kind": cdiKind, "devices": all, "containerEdits": common,
	})
	if err != nil {
		return err
	}
	// The runtime watches the directory: it must not see half a file.
	hidden := filepath.Join(c.directory, "."+claim)
	if err := os.WriteFile(hidden, text, 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, c.path(claim))
}

func (c cdiFiles) remove(claim string) error {
	if err := os.Remove(c.path(claim)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
