package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reach returns the base URL of the Service, and what to call when it is no
// longer needed.
func reach(ctx context.Context, c client.Client, o options) (string, func(), error) {
	svc := &corev1.Service{}
	if err := c.Get(ctx, o.key, svc); err != nil {
		return "", nil, fmt.Errorf("the Service of the server: %w", err)
	}
	if len(svc.Spec.Ports) == 0 {
		return "", nil, fmt.Errorf("service %s has no port", o.key)
	}
	port := int(svc.Spec.Ports[0].Port)
	if !o.portForward {
		return "http://" + net.JoinHostPort(svc.Spec.ClusterIP, strconv.Itoa(port)), func() {}, nil
	}
	return forward(ctx, o, port)
}

// forward runs kubectl port-forward on a free port of this machine.
func forward(ctx context.Context, o options, port int) (string, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, o.kubectl, "port-forward", "--namespace", o.key.Namespace,
		"service/"+o.key.Name, fmt.Sprintf(":%d", port))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, fmt.Errorf("kubectl port-forward: %w", err)
	}
	address := make(chan string, 1)
	go func() {
		defer close(address)
		for s := bufio.NewScanner(out); s.Scan(); { // read to the end, so that kubectl never blocks on writing
			if a, ok := forwarded(s.Text()); ok {
				select {
				case address <- a:
				default:
				}
			}
		}
	}()
	stop := func() {
		cancel()
		_ = cmd.Wait() // it was told to end: how it did says nothing
	}
	select {
	case a, ok := <-address:
		if ok {
			return "http://" + a, stop, nil
		}
		stop()
		return "", nil, fmt.Errorf("kubectl port-forward ended: %s", strings.TrimSpace(stderr.String()))
	case <-time.After(30 * time.Second):
		stop()
		return "", nil, fmt.Errorf("kubectl port-forward did not start within 30 s: %s", strings.TrimSpace(stderr.String()))
	}
}

// forwarded returns the address in kubectl's line "Forwarding from ADDRESS -> PORT".
func forwarded(line string) (string, bool) {
	rest, ok := strings.CutPrefix(line, "Forwarding from ")
	if !ok {
		return "", false
	}
	address, _, ok := strings.Cut(rest, " -> ")
	if !ok {
		return "", false
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", false
	}
	return address, true
}
