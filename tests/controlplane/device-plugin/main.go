// A device plugin for simulated GPUs that speaks to the kubelet as NVIDIA's does: the same library,
// the same dial and calls, in the same order, with its delays and refusals. It follows version 0.20.0
// of NVIDIA/k8s-device-plugin: internal/plugin/server.go (dial, Register, ListAndWatch, Allocate),
// internal/rm (shares, refused requests, health) and cmd/nvidia-device-plugin (when it starts again).
//
// It differs in what it reads and in two choices: the GPUs come from a recording instead of NVML, a
// line `unhealthy UUID` on standard input stands for an XID, -choice=scattered is the plugin of a vendor
// that knows no links, and -choice=aligned takes the set with the most links, where NVIDIA's also
// weighs what remains.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// retry is the time until all plugins start again after one could not.
const retry = 30 * time.Second

type options struct {
	directory string
	resource  string
	socket    string
	choice    string
	shares    int
	policy    string
	single    bool
}

// plugin serves one resource from when it starts until it stops.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	options options
	board   *board
	devices map[string]*pluginapi.Device
	server  *grpc.Server
	health  chan *pluginapi.Device
	stop    chan struct{}
}

func (o *options) path() string    { return filepath.Join(o.directory, o.socket) }
func (o *options) kubelet() string { return filepath.Join(o.directory, "kubelet.sock") }

// newPlugin returns a plugin to which all devices are healthy: what an earlier one knew is lost.
func newPlugin(o options, b *board) *plugin {
	return &plugin{
		options: o,
		board:   b,
		devices: b.devices(o.shares),
		server:  grpc.NewServer(),
		health:  make(chan *pluginapi.Device),
		stop:    make(chan struct{}),
	}
}

// dial names the path of the socket as the target: gRPC sends it, percent-encoded, as the authority.
// NVIDIA's plugins before 0.14.3 send it as it is.
func dial(socket string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return grpc.DialContext(ctx, socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}),
	)
}

func (p *plugin) start() error {
	os.Remove(p.options.path())
	listener, err := net.Listen("unix", p.options.path())
	if err != nil {
		return err
	}
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go p.server.Serve(listener)
	// Wait until it serves.
	conn, err := dial(p.options.path())
	if err != nil {
		return err
	}
	conn.Close()
	if err := p.register(); err != nil {
		log.Printf("Could not register device plugin: %v", err)
		p.end()
		return err
	}
	log.Printf("Registered device plugin for '%s' with Kubelet", p.options.resource)
	return nil
}

func (p *plugin) register() error {
	conn, err := dial(p.options.kubelet())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(context.Background(), &pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     path.Base(p.options.path()),
		ResourceName: p.options.resource,
		Options:      &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	})
	return err
}

func (p *plugin) end() {
	p.server.Stop()
	os.Remove(p.options.path())
	close(p.stop)
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends all devices, in any order, again whenever one becomes unhealthy. None recovers.
func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	fmt.Println("watch")
	for {
		list := &pluginapi.ListAndWatchResponse{}
		for _, device := range p.devices {
			list.Devices = append(list.Devices, device)
		}
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-p.stop:
			return nil
		case device := <-p.health:
			device.Health = pluginapi.Unhealthy
			log.Printf("'%s' device marked unhealthy: %s", p.options.resource, device.ID)
		}
	}
}

func (p *plugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	for _, one := range request.ContainerRequests {
		ids, err := p.prefer(one.AvailableDeviceIDs, one.MustIncludeDeviceIDs, int(one.AllocationSize))
		if err != nil {
			return nil, fmt.Errorf("error getting list of preferred allocation devices: %v", err)
		}
		response.ContainerResponses = append(response.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, one := range request.ContainerRequests {
		if err := p.validate(one.DevicesIds); err != nil {
			return nil, fmt.Errorf("invalid allocation request for %q: %w", p.options.resource, err)
		}
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(gpusOf(one.DevicesIds), ",")},
		})
	}
	return response, nil
}

func (p *plugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

// validate refuses unknown devices, and several shares where the configuration says so.
func (p *plugin) validate(ids []string) error {
	invalid := errors.New("invalid request")
	for _, id := range ids {
		if p.devices[id] == nil {
			return fmt.Errorf("%w: unknown device: %s", invalid, id)
		}
	}
	if p.options.single && anyShare(ids) && len(ids) > 1 {
		return fmt.Errorf("%w: maximum request size for shared resources is 1; found %d", invalid, len(ids))
	}
	return nil
}

// mark passes an XID of a GPU on. With shares, NVIDIA's plugin marks one of them.
func (p *plugin) mark(gpu string) {
	for id, device := range p.devices {
		if gpuOf(id) == gpu {
			select {
			case p.health <- device:
			case <-p.stop:
			}
			return
		}
	}
}

// run starts the plugin, again when the kubelet makes a new socket or 30 s after a failure.
func run(o options, b *board) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := watcher.Add(o.directory); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	commands := make(chan string)
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			commands <- lines.Text()
		}
	}()
	for {
		p := newPlugin(o, b)
		var again <-chan time.Time
		started := p.start() == nil
		if !started {
			log.Printf("Failed to start one or more plugins. Retrying in 30s...")
			again = time.After(retry)
		}
		for restart := false; !restart; {
			select {
			case <-again:
				restart = true
			case event := <-watcher.Events:
				if event.Name == o.kubelet() && event.Op&fsnotify.Create != 0 {
					log.Printf("inotify: %s created, restarting.", event.Name)
					restart = true
				}
			case err := <-watcher.Errors:
				log.Printf("inotify: %s", err)
			case command := <-commands:
				if gpu, ok := strings.CutPrefix(command, "unhealthy "); ok {
					go p.mark(gpu)
				}
			case <-signals:
				if started {
					p.end()
				}
				return nil
			}
		}
		if started {
			p.end()
		}
	}
}

func main() {
	var o options
	recording := flag.String("recording", "", "the file of a NodeTopology whose GPUs it serves")
	flag.StringVar(&o.directory, "directory", pluginapi.DevicePluginPath, "the kubelet's directory of device plugins")
	flag.StringVar(&o.resource, "resource", "nvidia.com/gpu", "the resource")
	flag.StringVar(&o.socket, "socket", "nvidia-gpu.sock", "the name of its socket")
	flag.StringVar(&o.choice, "choice", "aligned", "which whole GPUs it prefers: aligned or scattered")
	flag.IntVar(&o.shares, "shares", 0, "shares of each GPU; 0 for whole GPUs")
	flag.StringVar(&o.policy, "shared-devices-allocation-policy", "distributed", "which shares it prefers: distributed or packed")
	flag.BoolVar(&o.single, "fail-requests-greater-than-one", false, "refuse more than one share")
	flag.Parse()
	text, err := os.ReadFile(*recording)
	if err != nil {
		log.Fatal(err)
	}
	b := &board{}
	if err := json.Unmarshal(text, b); err != nil {
		log.Fatal(err)
	}
	if err := run(o, b); err != nil {
		log.Fatal(err)
	}
}
