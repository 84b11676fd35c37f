//go:build apiserver

package apiserver

import (
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// TestTraces: a reconcile is a span with its steps, of the server that it is for.
func TestTraces(t *testing.T) {
	p := begin(t)
	p.create(manifest)
	p.pod(0, "")
	p.eventually("spans", func() string {
		var reconcile sdktrace.ReadOnlySpan
		steps := map[string]bool{}
		for _, s := range spans.Ended() {
			for _, a := range s.Attributes() {
				if s.Name() == "reconcile" && a == attribute.String("k8s.namespace.name", p.namespace) {
					reconcile = s
				}
			}
		}
		if reconcile == nil {
			return "no reconcile of this server"
		}
		for _, s := range spans.Ended() {
			if s.Parent().SpanID() == reconcile.SpanContext().SpanID() {
				steps[s.Name()] = true
			}
		}
		if len(steps) != 3 || !steps["gather"] || !steps["act"] || !steps["status"] {
			return "its steps are not gather, act and status"
		}
		return ""
	})
}
