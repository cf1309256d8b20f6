// The kubelet's side of device plugins, as far as it asks for devices: it runs nothing. It serves and
// dials as Kubernetes 1.36 does (pkg/kubelet/cm/devicemanager/plugin/v1beta1), and asks what standard
// input says: a line of JSON with `prefer` or `allocate`, or an empty object for the devices. Each
// answer is a line of JSON with the time that the call took. Unlike the kubelet, it keeps the newest
// plugin when an older one ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet has the devices of the last plugin that registered.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	directory string
	mutex     sync.Mutex
	number    int
	plugin    pluginapi.DevicePluginClient
	devices   []string
}

// Register dials the plugin and asks for its options before it answers, as the kubelet does.
func (k *kubelet) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	conn, err := dial(filepath.Join(k.directory, request.Endpoint))
	if err != nil {
		return nil, err
	}
	plugin := pluginapi.NewDevicePluginClient(conn)
	if _, err := plugin.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		return nil, err
	}
	k.mutex.Lock()
	k.number++
	number := k.number
	k.mutex.Unlock()
	go k.watch(number, conn, plugin)
	return &pluginapi.Empty{}, nil
}

func dial(socket string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return grpc.DialContext(ctx, socket,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}),
	)
}

// watch keeps the healthy devices of a plugin until its stream ends.
func (k *kubelet) watch(number int, conn *grpc.ClientConn, plugin pluginapi.DevicePluginClient) {
	defer conn.Close()
	stream, err := plugin.ListAndWatch(context.Background(), &pluginapi.Empty{})
	if err != nil {
		log.Print(err)
		return
	}
	for {
		list, err := stream.Recv()
		k.mutex.Lock()
		if err != nil {
			log.Print(err)
			if k.number == number {
				k.plugin, k.devices = nil, nil
			}
			k.mutex.Unlock()
			return
		}
		if k.number == number {
			k.plugin, k.devices = plugin, []string{}
			for _, device := range list.Devices {
				if device.Health == pluginapi.Healthy {
					k.devices = append(k.devices, device.ID)
				}
			}
			sort.Strings(k.devices)
		}
		k.mutex.Unlock()
	}
}

type question struct {
	Prefer *struct {
		Available []string `json:"available"`
		Required  []string `json:"required"`
		Size      int32    `json:"size"`
	} `json:"prefer"`
	Allocate []string `json:"allocate"`
}

type answer struct {
	// IDs are null while no plugin has registered.
	IDs         []string          `json:"ids"`
	Variables   map[string]string `json:"variables,omitempty"`
	Nanoseconds int64             `json:"nanoseconds"`
	Error       string            `json:"error,omitempty"`
}

func (k *kubelet) ask(q question) answer {
	k.mutex.Lock()
	plugin, devices := k.plugin, k.devices
	k.mutex.Unlock()
	if q.Prefer == nil && q.Allocate == nil {
		return answer{IDs: devices}
	}
	if plugin == nil {
		return answer{Error: "no device plugin has registered"}
	}
	var a answer
	var err error
	start := time.Now()
	if q.Prefer != nil {
		var got *pluginapi.PreferredAllocationResponse
		got, err = plugin.GetPreferredAllocation(context.Background(), &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: q.Prefer.Available, MustIncludeDeviceIDs: q.Prefer.Required, AllocationSize: q.Prefer.Size,
			}},
		})
		if err == nil && len(got.ContainerResponses) > 0 {
			a.IDs = got.ContainerResponses[0].DeviceIDs
		}
	} else {
		var got *pluginapi.AllocateResponse
		got, err = plugin.Allocate(context.Background(), &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: q.Allocate}},
		})
		if err == nil && len(got.ContainerResponses) == 1 {
			a.Variables = got.ContainerResponses[0].Envs
		}
	}
	a.Nanoseconds = time.Since(start).Nanoseconds()
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

func main() {
	directory := flag.String("directory", "", "the directory of device plugins")
	flag.Parse()
	listener, err := net.Listen("unix", filepath.Join(*directory, "kubelet.sock"))
	if err != nil {
		log.Fatal(err)
	}
	k := &kubelet{directory: *directory}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, k)
	go server.Serve(listener)
	fmt.Println("{}")
	out := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(k.ask(q)); err != nil {
			log.Fatal(err)
		}
	}
}
