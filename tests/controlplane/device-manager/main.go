// Gives the devices of a plugin to containers and takes them back, at random, by the kubelet's own
// device manager. Prints a line of JSON for each container: its devices, and its variables.
//
// The manager listens on /var/lib/kubelet/device-plugins/kubelet.sock, whatever anybody wants: run
// it where no kubelet lives.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

// step is a container that got devices, and which containers ended before.
type step struct {
	Ended     []int             `json:"ended"`
	Devices   []string          `json:"devices"`
	Variables map[string]string `json:"variables"`
}

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func pod(number, devices int, name v1.ResourceName) *v1.Pod {
	count := v1.ResourceList{name: *resource.NewQuantity(int64(devices), resource.DecimalSI)}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", number), UID: types.UID(fmt.Sprint(number))},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name:      "main",
			Resources: v1.ResourceRequirements{Limits: count, Requests: count},
		}}},
	}
}

func main() {
	name := flag.String("resource", "nvidia.com/gpu", "the resource")
	devices := flag.Int("devices", 8, "the number of its devices")
	steps := flag.Int("steps", 1000, "the number of containers")
	seed := flag.Int64("seed", 1, "the seed")
	flag.Parse()

	manager, err := devicemanager.NewManagerImpl(nil, topologymanager.NewFakeManager())
	check(err, "making the device manager")
	active := map[int]*v1.Pod{}
	pods := func() []*v1.Pod {
		var all []*v1.Pod
		for _, pod := range active {
			all = append(all, pod)
		}
		return all
	}
	err = manager.Start(klog.Background(), pods, ready{}, containermap.NewContainerMap(), sets.New[string]())
	check(err, "starting the device manager")
	resourceName := v1.ResourceName(*name)
	for {
		capacity, _, _ := manager.GetCapacity()
		if count := capacity[resourceName]; count.Value() == int64(*devices) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}

	random := rand.New(rand.NewSource(*seed))
	out := json.NewEncoder(os.Stdout)
	free := *devices
	held := map[int]int{}
	for number := 0; number < *steps; number++ {
		ended := []int{}
		for free == 0 || (len(held) > 0 && random.Intn(3) > 0) {
			numbers := make([]int, 0, len(held))
			for one := range held {
				numbers = append(numbers, one)
			}
			sort.Ints(numbers)
			one := numbers[random.Intn(len(numbers))]
			free += held[one]
			delete(held, one)
			delete(active, one)
			ended = append(ended, one)
		}
		manager.UpdateAllocatedDevices()
		size := 1 + random.Intn(free)
		pod := pod(number, size, resourceName)
		container := &pod.Spec.Containers[0]
		check(manager.Allocate(pod, container), "allocating")
		active[number], held[number] = pod, size
		free -= size
		options, err := manager.GetDeviceRunContainerOptions(context.Background(), pod, container)
		check(err, "asking for the options")
		got := step{Ended: ended, Devices: []string{}, Variables: map[string]string{}}
		for _, variable := range options.Envs {
			got.Variables[variable.Name] = variable.Value
		}
		for device := range manager.GetDevices(string(pod.UID), container.Name)[*name] {
			got.Devices = append(got.Devices, device)
		}
		sort.Strings(got.Devices)
		check(out.Encode(got), "printing")
	}
}
