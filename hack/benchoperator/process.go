package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"

	"github.com/outrider-dev/outrider/internal/freeport"
)

// startOperator runs the operator as a process of its own.
func (b *bench) startOperator(ctx context.Context) (*operator, error) {
	o := &operator{done: make(chan struct{}), http: http.DefaultClient}
	address, release, err := freeport.Take(ctx)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, release) // not at the return: the process listens some time after its start
	o.metrics = "http://" + address + "/metrics"
	flags := append([]string{"--metrics-bind-address=" + address, "--health-probe-bind-address=0", "--log-level=warn"},
		strings.Fields(b.flags)...)
	if b.profile != "" {
		address, release, err := freeport.Take(ctx)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, release)
		dir := b.profile
		flags = append(flags, "--pprof-bind-address="+address)
		apiServer, url, err := b.apiServer()
		if err != nil {
			return nil, err
		}
		for name, take := range map[string]func(file string) error{
			"operator.pprof":  func(file string) error { return takeProfile(ctx, http.DefaultClient, "http://"+address, file) },
			"apiserver.pprof": func(file string) error { return takeProfile(ctx, apiServer, url, file) },
		} {
			go func() {
				if err := take(filepath.Join(dir, name)); err != nil {
					fmt.Fprintln(os.Stderr, "benchoperator:", err)
				}
			}()
		}
		b.profile = "" // of the first start only
	}
	o.cmd = exec.CommandContext(ctx, b.operator, flags...)
	o.cmd.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig)
	o.cmd.Stderr = os.Stderr
	if err := o.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w: make build makes it", b.operator, err)
	}
	go func() {
		_ = o.cmd.Wait() // it is told to stop; how it ends is not what is measured
		close(o.done)
	}()
	return o, nil
}

// operator is the operator's process.
type operator struct {
	cmd     *exec.Cmd
	done    chan struct{} // closed when it has ended
	metrics string
	http    *http.Client // reads them
	ended   bool
}

func (o *operator) stop() {
	if o.ended {
		return
	}
	o.ended = true
	_ = o.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-o.done:
	case <-time.After(15 * time.Second):
		_ = o.cmd.Process.Kill()
		<-o.done
	}
}

// calls are requests to the API server so far.
type calls struct{ all, writes float64 }

// calls reads the operator's own count of its requests.
func (o *operator) calls(ctx context.Context) (calls, error) {
	var c calls
	families, err := scrape(ctx, o.http, o.metrics)
	if err != nil {
		return c, err
	}
	f := families["rest_client_requests_total"]
	if f == nil {
		return c, errors.New("the operator's metrics lack rest_client_requests_total")
	}
	for _, m := range f.GetMetric() {
		n := m.GetCounter().GetValue()
		c.all += n
		for _, l := range m.GetLabel() {
			if l.GetName() == "method" && l.GetValue() != http.MethodGet {
				c.writes += n
			}
		}
	}
	return c, nil
}

// settle waits until the operator has made no call for five seconds, and returns
// when the last was and how many writes there were.
func (o *operator) settle(ctx context.Context, start time.Time) (*Restart, error) {
	var last calls
	quiet := time.Time{}
	for {
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return nil, err
		}
		now, err := o.calls(ctx)
		if err != nil {
			if time.Since(start) < 30*time.Second {
				continue // it has not opened its port yet
			}
			return nil, err
		}
		if now.all != last.all {
			last, quiet = now, time.Now()
		}
		if !quiet.IsZero() && time.Since(quiet) > 5*time.Second {
			return &Restart{quiet.Sub(start).Seconds(), last.writes}, nil
		}
		if time.Since(start) > 5*time.Minute {
			return nil, errors.New("the operator that was started again does not come to rest")
		}
	}
}

// memory is the process's resident memory now and at most, in MiB.
func (o *operator) memory() (now, most float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	read := func(key string) float64 {
		for line := range strings.SplitSeq(string(b), "\n") {
			if rest, ok := strings.CutPrefix(line, key+":"); ok {
				kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
				return kb / 1024
			}
		}
		return 0
	}
	return read("VmRSS"), read("VmHWM"), nil
}

// scrape reads metrics in the Prometheus text format.
func scrape(ctx context.Context, c *http.Client, url string) (map[string]*dto.MetricFamily, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

// apiServer is a client of the API server for what is no resource, and its URL.
func (b *bench) apiServer() (*http.Client, string, error) {
	c, err := rest.HTTPClientFor(b.config)
	if err != nil {
		return nil, "", err
	}
	server, _, err := rest.DefaultServerUrlFor(b.config)
	if err != nil {
		return nil, "", err
	}
	return c, strings.TrimSuffix(server.String(), "/"), nil
}

// apiMetrics reads the API server's metrics.
func (b *bench) apiMetrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	c, url, err := b.apiServer()
	if err != nil {
		return nil, err
	}
	defer c.CloseIdleConnections()
	return scrape(ctx, c, url+"/metrics")
}

// processTimes reads what this process, its children etcd and kube-apiserver and,
// unless its number is 0, the operator have computed so far.
func processTimes(operator int) (CPUTimes, error) {
	var t CPUTimes
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return t, err
	}
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, name, parent, seconds, ok := parseStat(string(b))
		switch {
		case !ok:
			return t, fmt.Errorf("%s is %q: not a process's statistics", file, b)
		case pid == operator:
			t.Operator = seconds
		case pid == os.Getpid():
			t.Players = seconds
		case parent == os.Getpid() && name == "etcd":
			t.Etcd = seconds
		case parent == os.Getpid() && name == "kube-apiserver":
			t.APIServer = seconds
		}
	}
	return t, nil
}

// parseStat reads a line of /proc/PID/stat; see proc(5).
func parseStat(line string) (pid int, name string, parent int, seconds float64, ok bool) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return 0, "", 0, 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line[:open]))
	rest := strings.Fields(line[end+1:])
	if err != nil || len(rest) < 13 {
		return 0, "", 0, 0, false
	}
	parent, err = strconv.Atoi(rest[1])
	user, err2 := strconv.ParseFloat(rest[11], 64)
	system, err3 := strconv.ParseFloat(rest[12], 64)
	return pid, line[open+1 : end], parent, (user + system) / ticks, err == nil && err2 == nil && err3 == nil
}

// ticks is the kernel's unit of processor times in /proc, in every build of Linux
// for the processors that Go knows.
const ticks = 100
