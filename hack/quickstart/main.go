// Command quickstart shows a SpeculativeServer coming up and answering: it
// follows the resource's status until it is Ready, streams one completion
// through the Service, and prints the resource as kubectl shows it.
//
// The make target of the same name (hack/quickstart.sh) builds and deploys what
// it needs and then runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

type options struct {
	key         client.ObjectKey
	prompt      string
	maxTokens   int
	timeout     time.Duration
	kubectl     string
	portForward bool
}

func main() {
	log.SetLogger(logr.Discard()) // errors are returned and printed here
	var o options
	flag.StringVar(&o.key.Name, "name", "quickstart", "`name` of the SpeculativeServer")
	flag.StringVar(&o.key.Namespace, "namespace", "default", "its `namespace`")
	flag.StringVar(&o.prompt, "prompt", "package main\n\nimport (\n", "`text` to complete")
	flag.IntVar(&o.maxTokens, "max-tokens", 64, "`tokens` to generate at most")
	flag.DurationVar(&o.timeout, "timeout", 5*time.Minute, "`time` that the server has to become Ready")
	flag.StringVar(&o.kubectl, "kubectl", "kubectl", "`program` to run as kubectl")
	flag.BoolVar(&o.portForward, "port-forward", false, "reach the Service through kubectl port-forward, from outside the cluster")
	// The kubeconfig flag comes with controller-runtime's config package.
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "quickstart: unexpected argument %q: it takes flags only, see -help\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, stdout *os.File) error {
	c, err := newClient()
	if err != nil {
		return err
	}
	get := func(ctx context.Context) (*v1alpha1.SpeculativeServer, error) {
		s := &v1alpha1.SpeculativeServer{}
		return s, c.Get(ctx, o.key, s)
	}
	info, err := stdout.Stat()
	if err != nil {
		return err
	}
	line := &liveLine{out: stdout, terminal: info.Mode()&os.ModeCharDevice != 0, start: time.Now()}
	server, err := waitReady(ctx, get, line, o.timeout, 500*time.Millisecond)
	if err != nil {
		return err
	}

	base, closeForward, err := reach(ctx, c, o)
	if err != nil {
		return err
	}
	defer closeForward()
	req := completionRequest{
		Model: server.Status.Model, Prompt: o.prompt, MaxTokens: o.maxTokens, Stream: true,
		StreamOptions: &streamOptions{IncludeUsage: true},
	}
	fmt.Fprintf(stdout, "\nPOST %s/v1/completions, model %s, streamed:\n\n%s", base, req.Model, o.prompt)
	begin := time.Now()
	r, err := stream(ctx, base, req, stdout)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\n\n%s\n\n", r.summary(time.Since(begin)))

	if err := underLoad(ctx, get, base, req, 30*time.Second); err != nil {
		return err
	}
	return table(ctx, o, stdout)
}

func newClient() (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg, err := config.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("no kubeconfig: set KUBECONFIG, or leave out CLUSTER=current to start a cluster: %w", err)
	}
	return client.New(cfg, client.Options{Scheme: scheme})
}

// underLoad keeps requests running until status shows what speculation is worth
// under them, because a rate read from an idle server is 0. That status does
// not show it within the limit is not an error: the table then says so itself.
func underLoad(ctx context.Context, get getter, base string, req completionRequest, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := stream(ctx, base, req, io.Discard); err != nil && ctx.Err() == nil {
				failed <- err
				return
			}
		}
	}()
	for {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
		s, err := get(ctx)
		if err != nil {
			continue
		}
		if sp := s.Status.Speculation; sp != nil && sp.AcceptLength != "" && sp.TokensPerSecond != "" && sp.TokensPerSecond != "0" {
			return nil
		}
	}
}

// table prints the resource with kubectl, so that it is what the user sees later.
func table(ctx context.Context, o options, stdout io.Writer) error {
	fmt.Fprintln(stdout, "$ kubectl get speculativeservers")
	cmd := exec.CommandContext(ctx, o.kubectl, "get", "speculativeservers", "--namespace", o.key.Namespace)
	cmd.Stdout, cmd.Stderr = stdout, stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}
