package server

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// beginSpan starts a request's span, as part of the trace that the client's
// traceparent header names, if there is one.
func (s *Server) beginSpan(r *http.Request) (context.Context, trace.Span) {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	return s.cfg.Tracer.Start(ctx, r.Method+" "+r.URL.Path, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path), attribute.String("outrider.request_id", r.Header.Get("X-Request-Id"))))
}

// choiceSpans are those of one choice: queue, prefill, and cycles, in which
// each event is what came out of one or more cycles.
type choiceSpans struct {
	tracer    trace.Tracer
	ctx       context.Context //nolint:containedctx // of the request's span, that these are in
	index     int
	submitted time.Time
	cycles    trace.Span // nil before the first token
	usage     scheduler.Usage
}

// note takes an event of the choice into account.
func (c *choiceSpans) note(ev *scheduler.Event, now time.Time) {
	if c == nil || !trace.SpanFromContext(c.ctx).IsRecording() {
		return
	}
	index := trace.WithAttributes(attribute.Int("outrider.choice", c.index))
	if c.cycles == nil && len(ev.TokenIDs) > 0 {
		_, queue := c.tracer.Start(c.ctx, "queue", trace.WithTimestamp(c.submitted), index)
		queue.End(trace.WithTimestamp(ev.Admitted))
		_, prefill := c.tracer.Start(c.ctx, "prefill", trace.WithTimestamp(ev.Admitted), index,
			trace.WithAttributes(attribute.Int("outrider.prompt_tokens", ev.Usage.PromptTokens), attribute.Int("outrider.cached_tokens", ev.Usage.CachedTokens)))
		prefill.End(trace.WithTimestamp(now))
		_, c.cycles = c.tracer.Start(c.ctx, "cycles", trace.WithTimestamp(now), index)
	}
	if c.cycles == nil {
		return
	}
	c.cycles.AddEvent("cycle", trace.WithTimestamp(now), trace.WithAttributes(attribute.Int("tokens", len(ev.TokenIDs)),
		attribute.Int("drafted", ev.Usage.Drafted-c.usage.Drafted), attribute.Int("accepted", ev.Usage.Accepted-c.usage.Accepted)))
	c.usage = ev.Usage
	if ev.Finish != "" || ev.Err != nil {
		c.end(string(ev.Finish))
	}
}

// end ends the span of the cycles, if it is open.
func (c *choiceSpans) end(finish string) {
	if c.cycles == nil {
		return
	}
	c.cycles.SetAttributes(attribute.String("outrider.finish_reason", finish), attribute.Int("outrider.completion_tokens", c.usage.CompletionTokens),
		attribute.Int("outrider.verifies", c.usage.Verifies), attribute.Int("outrider.drafted", c.usage.Drafted), attribute.Int("outrider.accepted", c.usage.Accepted))
	c.cycles.End()
	c.cycles = nil
}

// endSpan ends a request's span.
func endSpan(span trace.Span, j *job, err *apiError) {
	if err != nil {
		span.SetAttributes(attribute.Int("http.response.status_code", err.status))
		if err.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, err.Message)
		}
	}
	if j != nil {
		for i := range j.spans {
			j.spans[i].end("abort")
		}
		span.SetAttributes(attribute.String("gen_ai.response.id", j.id), attribute.Int("gen_ai.usage.input_tokens", j.usage.PromptTokens), attribute.Int("gen_ai.usage.output_tokens", j.usage.CompletionTokens))
	}
	span.End()
}
