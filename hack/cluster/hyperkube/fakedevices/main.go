// Command fakedevices is a device plugin with devices that are only names:
//
//	fakedevices nvidia.com/gpu 8 NVIDIA_VISIBLE_DEVICES
//
// registers the resource with the kubelet of this machine (or namespace) and
// gives each container the names it was allocated in an environment variable.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices  []*api.Device
	variable string
	stop     <-chan struct{}
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, s grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := s.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-p.stop
	return nil
}

func (p *plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	out := &api.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{p.variable: strings.Join(c.DevicesIds, ",")},
		})
	}
	return out, nil
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatal("usage: fakedevices RESOURCE COUNT VARIABLE, as in: fakedevices nvidia.com/gpu 8 NVIDIA_VISIBLE_DEVICES")
	}
	resource, variable := os.Args[1], os.Args[3]
	count, err := strconv.Atoi(os.Args[2])
	if err != nil || count < 0 || count > 1024 {
		log.Fatalf("fakedevices: COUNT is %q: want a number from 0 to 1024", os.Args[2])
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	p := &plugin{variable: variable, stop: ctx.Done()}
	for i := range count {
		p.devices = append(p.devices, &api.Device{ID: strconv.Itoa(i), Health: api.Healthy})
	}
	name := "fake-" + strings.NewReplacer("/", "-", ".", "-").Replace(resource) + ".sock"
	os.Remove(api.DevicePluginPath + name)
	l, err := new(net.ListenConfig).Listen(ctx, "unix", api.DevicePluginPath+name)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() {
		if err := server.Serve(l); err != nil {
			log.Print(err)
		}
	}()
	c, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	call, done := context.WithTimeout(ctx, 10*time.Second)
	defer done()
	if _, err := api.NewRegistrationClient(c).Register(call, &api.RegisterRequest{
		Version: api.Version, Endpoint: name, ResourceName: resource,
	}, grpc.WaitForReady(true)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("registered", count, resource)
	<-ctx.Done()
	server.Stop()
}
