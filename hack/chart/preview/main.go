// Command preview draws the dashboards with what a Prometheus answers, a PNG for
// each, for the documentation and for review without a Grafana. It fails when a
// panel has no data.
//
//	go run ./preview -prometheus http://localhost:9090 -out /tmp -set namespace=default -set server=quickstart
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prom "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "preview:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f := flag.NewFlagSet("preview", flag.ContinueOnError)
	address := f.String("prometheus", "http://localhost:9090", "`address` of Prometheus")
	out := f.String("out", ".", "`folder` for the pictures")
	window := f.Duration("window", 10*time.Minute, "time that is drawn, up to now")
	rate := f.Duration("rate-interval", time.Minute, "what $__rate_interval stands for: at least four scrapes")
	values := map[string]string{}
	f.Func("set", "`NAME=VALUE` of a dashboard's variable that takes one value; the others stand for all", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("%q: write NAME=VALUE", s)
		}
		values[name] = value
		return nil
	})
	if err := f.Parse(args); err != nil {
		return err
	}
	client, err := api.NewClient(api.Config{Address: *address})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now := time.Now()
	a := asker{api: prom.NewAPI(client), values: values, rate: *rate, from: now.Add(-*window), to: now}
	var empty []string
	for name, d := range dashboards.All() {
		a, err := a.of(ctx, d)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		drawn, missing, err := draw(ctx, a, d)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, m := range missing {
			empty = append(empty, name+": "+m)
		}
		if err := os.WriteFile(filepath.Join(*out, "dashboard-"+name+".png"), drawn, 0o644); err != nil {
			return err
		}
	}
	if len(empty) > 0 {
		return fmt.Errorf("panels without data: %s", strings.Join(empty, "; "))
	}
	return nil
}
