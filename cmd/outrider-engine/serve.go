package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/server"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// flushTimeout is what answers that are complete get to reach their clients
// when the process ends.
const flushTimeout = 3 * time.Second

// leaveTimeout is how long clients are answered, after the last request has
// ended, that they shall close their connections: a request that is on its way
// while its connection is closed would fail with a reset.
const leaveTimeout = 500 * time.Millisecond

// followerGrace is how much longer a node waits that node 0 needs for its requests:
// node 0 ends the group when they are done, or when its own time is over.
const followerGrace = 2 * time.Second

func serveCommand(stderr io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Load a model and serve it",
		Long: `Load a model and serve it over the OpenAI API.

Each flag can also be set by an environment variable: OUTRIDER_ and the flag's
name in capitals, with "_" for "-", such as OUTRIDER_TP_SIZE. Flags win.`,
		Example: `  outrider-engine serve
  outrider-engine serve --model /models/llama --draft-model /models/llama-eagle3 --tp-size 2 --host 0.0.0.0`,
		Args: cobra.NoArgs,
	}
	o := newOptions(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.named(o.serve(cmd.Context(), stderr))
	}
	return cmd
}

// serve runs until a signal, which is no error, or a fault.
func (o *options) serve(ctx context.Context, stderr io.Writer) error {
	if err := o.fromEnv(os.LookupEnv); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	level, err := o.level()
	if err != nil {
		return err
	}
	log := o.logger(stderr, level)
	cfg := o.config()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := telemetry.NewMetrics(registry, cfg.ServedModelName, time.Now)
	if o.metricsCompat != "" {
		metrics.RegisterVLLM(registry, cfg.ServedModelName)
	}
	// The engine refuses other sizes, but only once it has its progress.
	ranks := min(max(cfg.TPSize, 1), engine.MaxTPSize) / max(cfg.Nodes, 1)
	progress := telemetry.NewProgressOf(max(cfg.Node, 0)*ranks, ranks, time.Now)
	e, err := engine.New(cfg, log, metrics, progress)
	if err != nil {
		return err
	}
	front, shutDown, err := o.front(ctx, e, metrics, registry, log)
	if err != nil {
		return err
	}
	defer shutDown()
	return o.run(ctx, e, front, log)
}

func (o *options) logger(stderr io.Writer, level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(stderr, opts))
	}
	return slog.New(slog.NewTextHandler(stderr, opts))
}

// front makes the server before the engine; shutDown sends traces that are left.
func (o *options) front(ctx context.Context, e *engine.Engine, metrics *telemetry.Metrics, registry *prometheus.Registry, log *slog.Logger) (front *server.Server, shutDown func(), err error) {
	cfg := server.Config{
		Backend: e, Metrics: metrics, Gatherer: registry, Log: log, AdminOnly: o.adminOnly,
		ToolParser: o.toolParser, ReasoningParser: o.reasoningParser, LogRequests: o.logRequests,
	}
	if node := o.engine.Node; node > 0 {
		cfg.Closed = fmt.Sprintf("this is node %d of %d, which computes for node 0 and answers no requests: send them to node 0", node, o.engine.Nodes)
	}
	if o.apiKeyFile != "" {
		if cfg.Keys, err = server.ReadKeys(o.apiKeyFile, log); err != nil {
			return nil, nil, invalid("--api-key-file: %w", err)
		}
	}
	if o.adminTokens != "" {
		if cfg.AdminTokens, err = server.ReadKeys(o.adminTokens, log); err != nil {
			return nil, nil, invalid("--admin-token-file: %w", err)
		}
	}
	if o.tlsCert != "" {
		if cfg.Certificate, err = server.ReadCertificate(o.tlsCert, o.tlsKey, log); err != nil {
			return nil, nil, invalid("--tls-cert-file: %w", err)
		}
	}
	if o.otlpEndpoint == "" {
		return server.New(cfg), func() {}, nil
	}
	traces, err := telemetry.NewTraces(ctx, o.otlpEndpoint, o.otlpShare, o.servedName(), buildVersion())
	if err != nil {
		return nil, nil, invalid("--otlp-endpoint or --otlp-sample-ratio: %w", err)
	}
	cfg.Tracer = traces.Tracer("outrider-engine")
	return server.New(cfg), func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := traces.Shutdown(ctx); err != nil {
			log.Warn("the last traces were not sent", "error", err)
		}
	}, nil
}

// run listens, so that health and progress answer while the model loads, and
// runs the engine.
func (o *options) run(ctx context.Context, e *engine.Engine, front *server.Server, log *slog.Logger) error {
	// Before anything can be seen of the server: a stop that comes at once is a stop.
	signalled, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	adminHost := o.adminHost
	if adminHost == "" {
		adminHost = o.host
	}
	admin, err := listen(ctx, "admin-port", adminHost, o.adminPort)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	public, err := listen(ctx, "port", o.host, o.port)
	if err != nil {
		return err
	}
	defer func() { _ = public.Close() }()
	log.Info("listening", "url", o.scheme()+"://"+public.Addr().String(), "admin_url", "http://"+admin.Addr().String(), "version", buildVersion())

	engineCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	servers := []*http.Server{front.HTTPPublic(), front.HTTP(front.Admin())}
	ended := make(chan error, 3)
	go func() { ended <- e.Run(engineCtx) }()
	for i, l := range []net.Listener{public, admin} {
		go func() {
			if err := serve(servers[i], l); !errors.Is(err, http.ErrServerClosed) {
				ended <- fmt.Errorf("serving on %s: %w", l.Addr(), err)
			}
		}()
	}
	select {
	case err := <-ended:
		if err == nil {
			o.awaitOwnEnd(signalled.Done(), log)
		}
		return fail(err, servers, log)
	case <-signalled.Done():
		stop() // a second signal ends the process at once
	}
	timeout := o.drainTimeout
	if o.engine.Node > 0 {
		timeout += followerGrace
	}
	log.Info("draining", "timeout", timeout)
	ctx, done := context.WithTimeout(ctx, timeout)
	defer done()
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(ctx) }()
	select {
	case err := <-ended:
		return fail(err, servers, log)
	case err := <-drained:
		if err != nil {
			log.Warn("not drained", "error", err)
		}
	}
	// The engine ends first: answers that are still open end with an error
	// instead of a cut connection.
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			return fail(err, servers, log)
		}
	case <-time.After(flushTimeout):
	}
	// New connections are refused before old ones are closed: once a server shuts
	// down, it does not answer what still comes.
	closeEmpty(public)
	leave, left := context.WithTimeout(ctx, leaveTimeout)
	defer left()
	front.Leave(leave)
	shutDown(servers)
	log.Info("stopped")
	return nil
}

// serve serves HTTP, or HTTPS where the server has a certificate.
func serve(s *http.Server, l net.Listener) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(l, "", "")
	}
	return s.Serve(l)
}

func (o *options) scheme() string {
	if o.tlsCert != "" {
		return "https"
	}
	return "http"
}

// fail lets open answers end with the error that ended the engine.
func fail(err error, servers []*http.Server, log *slog.Logger) error {
	shutDown(servers)
	if err != nil {
		log.Error("engine ended", "reason", fault.ReasonOf(err), "exit_code", fault.ReasonOf(err).ExitCode(), "error", err)
	}
	return err
}

func shutDown(servers []*http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	for _, s := range servers {
		_ = s.Shutdown(ctx) // what is left after the timeout is cut by the process's end
	}
}

// closeEmpty closes a listener, if it can at a moment when no connection waits to
// be accepted: the kernel resets those.
func closeEmpty(l net.Listener) {
	defer func() { _ = l.Close() }()
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return
	}
	conn, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	waiting := func() (n int) {
		_ = conn.Control(func(fd uintptr) {
			n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		})
		return n
	}
	for range 500 {
		if waiting() <= 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func listen(ctx context.Context, flag, host string, port int) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fault.Errorf(fault.InvalidConfig, "--%s %d cannot be opened on address %s: %w", flag, port, host, err)
	}
	return l, nil
}
