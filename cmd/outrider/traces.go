package main

import (
	"context"
	"fmt"
	"net/url"
	"runtime/debug"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// checkTraces reports a flag of the traces that is wrong.
func checkTraces(o *options) error {
	if !(o.otlpShare >= 0 && o.otlpShare <= 1) {
		return fmt.Errorf("--otlp-sample-ratio %v: write 0 to 1", o.otlpShare)
	}
	if o.otlpEndpoint == "" {
		return nil
	}
	if u, err := url.Parse(o.otlpEndpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--otlp-endpoint %q: write an address like http://collector:4318", o.otlpEndpoint)
	}
	return nil
}

// traces sends a share of the reconciles to the collector of --otlp-endpoint;
// shutDown sends what is left.
func traces(ctx context.Context, o *options) (t trace.Tracer, shutDown func(context.Context) error, err error) {
	if o.otlpEndpoint == "" {
		return noop.Tracer{}, func(context.Context) error { return nil }, nil
	}
	u, err := url.Parse(o.otlpEndpoint)
	if err != nil {
		return nil, nil, err
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, nil, fmt.Errorf("--otlp-endpoint: %w", err)
	}
	version := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	p := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithSampler(sdktrace.TraceIDRatioBased(o.otlpShare)),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "outrider"), attribute.String("service.version", version))))
	return p.Tracer("outrider"), p.Shutdown, nil
}
