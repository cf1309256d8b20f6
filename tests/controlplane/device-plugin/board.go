package main

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// board is the part of a recording that the plugin serves.
type board struct {
	Spec struct {
		GPUs []struct {
			Index    int
			UUID     string
			NUMANode *int64
		}
		Edges []struct{ A, B, Links int }
	}
}

// devices returns the devices by name: GPUs, or so many shares of each.
func (b *board) devices(shares int) map[string]*pluginapi.Device {
	all := map[string]*pluginapi.Device{}
	for _, gpu := range b.Spec.GPUs {
		names := []string{gpu.UUID}
		if shares > 0 {
			names = nil
		}
		for share := 0; share < shares; share++ {
			names = append(names, fmt.Sprintf("%s::%d", gpu.UUID, share))
		}
		for _, name := range names {
			device := &pluginapi.Device{ID: name, Health: pluginapi.Healthy}
			if gpu.NUMANode != nil {
				device.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: *gpu.NUMANode}}}
			}
			all[name] = device
		}
	}
	return all
}

func gpuOf(id string) string {
	gpu, _, _ := strings.Cut(id, "::")
	return gpu
}

// gpusOf returns the GPUs of devices, each once, in the order of the devices.
func gpusOf(ids []string) []string {
	var gpus []string
	seen := map[string]bool{}
	for _, id := range ids {
		if gpu := gpuOf(id); !seen[gpu] {
			seen[gpu] = true
			gpus = append(gpus, gpu)
		}
	}
	return gpus
}

func anyShare(ids []string) bool {
	for _, id := range ids {
		if strings.Contains(id, "::") {
			return true
		}
	}
	return false
}

// prefer returns which of the available devices a container should get.
func (p *plugin) prefer(available, required []string, size int) ([]string, error) {
	if anyShare(available) {
		return p.preferShares(available, required, size)
	}
	must := map[string]bool{}
	for _, id := range required {
		must[id] = true
	}
	var free []string
	for _, id := range available {
		if p.devices[id] != nil && !must[id] {
			free = append(free, id)
		}
	}
	sort.Strings(free)
	more := size - len(required)
	if more < 0 || len(free) < more {
		return nil, nil
	}
	if p.options.choice == "scattered" {
		return append(required, free[:more]...), nil
	}
	var best []string
	bestScore := score{-1, -1}
	for _, set := range subsets(free, more) {
		set = append(append([]string{}, required...), set...)
		if found := p.board.score(set); bestScore.less(found) {
			best, bestScore = set, found
		}
	}
	return best, nil
}

// score counts links, then pairs on one NUMA node.
type score [2]int

func (s score) less(other score) bool {
	return s[0] < other[0] || (s[0] == other[0] && s[1] < other[1])
}

func (b *board) score(ids []string) score {
	in := map[int]bool{}
	numa := map[int64]int{}
	var s score
	for _, gpu := range b.Spec.GPUs {
		for _, id := range ids {
			if gpu.UUID != id {
				continue
			}
			in[gpu.Index] = true
			if gpu.NUMANode != nil {
				s[1] += numa[*gpu.NUMANode]
				numa[*gpu.NUMANode]++
			}
		}
	}
	for _, edge := range b.Spec.Edges {
		if in[edge.A] && in[edge.B] {
			s[0] += edge.Links
		}
	}
	return s
}

// subsets returns all subsets of so many elements, in the order of the elements.
func subsets(elements []string, size int) [][]string {
	if size == 0 {
		return [][]string{nil}
	}
	var all [][]string
	for n := range elements {
		for _, rest := range subsets(elements[n+1:], size-1) {
			all = append(all, append([]string{elements[n]}, rest...))
		}
	}
	return all
}

// preferShares takes shares one after the other, each of the GPU of which the fewest or, with the
// policy `packed`, the most are taken; among equals of the one that was chosen least often now.
func (p *plugin) preferShares(available, required []string, size int) ([]string, error) {
	must := map[string]bool{}
	for _, id := range required {
		must[id] = true
	}
	taken, chosen := map[string]int{}, map[string]int{}
	for id := range p.devices {
		taken[gpuOf(id)]++
	}
	var candidates []string
	for _, id := range available {
		if p.devices[id] != nil && !must[id] {
			candidates = append(candidates, id)
			taken[gpuOf(id)]--
		}
	}
	more := size - len(required)
	if len(candidates) < more {
		return nil, errors.New("not enough available devices to satisfy allocation")
	}
	preferred := append([]string{}, required...)
	for ; more > 0; more-- {
		sort.Slice(candidates, func(i, j int) bool {
			a, b := gpuOf(candidates[i]), gpuOf(candidates[j])
			if taken[a] != taken[b] {
				return (taken[a] < taken[b]) == (p.options.policy != "packed")
			}
			return chosen[a] < chosen[b]
		})
		gpu := gpuOf(candidates[0])
		chosen[gpu]++
		taken[gpu]++
		preferred = append(preferred, candidates[0])
		candidates = candidates[1:]
	}
	return preferred, nil
}
