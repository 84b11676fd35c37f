package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// NewTraces makes a provider of OpenTelemetry traces that sends them over
// OTLP/HTTP to endpoint, such as http://collector:4318, of share (0 to 1) of the
// requests whose caller has not decided already. Shutdown sends what is left.
func NewTraces(ctx context.Context, endpoint string, share float64, model, version string) (*trace.TracerProvider, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%q is no URL of the form http://HOST:4318", endpoint)
	case !(share >= 0 && share <= 1):
		return nil, errors.New("the share of requests must be 0 to 1")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()))
	if err != nil {
		return nil, err
	}
	about := resource.NewSchemaless(
		attribute.String("service.name", "outrider-engine"), attribute.String("service.version", version), attribute.String("gen_ai.request.model", model),
	)
	return trace.NewTracerProvider(
		trace.WithBatcher(exporter), trace.WithResource(about), trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(share))),
	), nil
}
