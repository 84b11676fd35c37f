package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// numbered is an event of a choice.
type numbered struct {
	index int
	ev    scheduler.Event
}

// stream answers with server-sent events: the choices' pieces as they come,
// the usage if asked for, and the mark of the end. A stream without news says
// from time to time that it lives, so that proxies do not cut it and a client
// that is gone is noticed.
func (j *job) stream(ctx context.Context, w http.ResponseWriter, keepAlive time.Duration) (whole bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan numbered)
	for i, stream := range j.streams {
		go pump(ctx, i, stream, events)
	}
	out := newSSE(w)
	for _, r := range j.renderers {
		if piece := r.first(); piece != nil && out.send(j.chunk(piece)) != nil {
			return false
		}
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for left := len(j.streams); left > 0; {
		select {
		case <-ctx.Done():
			_ = out.send(errLeft().body()) // it may have closed its sending side alone
			return false
		case <-tick.C:
			if out.comment("keep-alive") != nil {
				return false
			}
		case n := <-events:
			if failed := failure(&n.ev); failed != nil {
				_ = out.send(failed.body())
				return out.done() == nil
			}
			now := time.Now()
			j.account.note(n.index, &n.ev, now)
			j.spans[n.index].note(&n.ev, now)
			if n.ev.Finish != "" {
				left--
				j.count(n.index, n.ev.Usage)
			}
			for _, piece := range j.renderers[n.index].render(&n.ev) {
				if out.send(j.chunk(piece)) != nil {
					return false
				}
			}
		}
	}
	if j.c.includeUsage {
		a := j.answer(j.chunks)
		a.Usage, a.Speculation, a.Timings = &j.usage, &j.speculation, &j.timings
		if out.send(a) != nil {
			return false
		}
	}
	return out.done() == nil
}

// chunk is a piece on its way.
func (j *job) chunk(piece any) envelope {
	a := j.answer(j.chunks)
	a.Choices = append(a.Choices, piece)
	if j.c.includeUsage {
		a.Usage = noUsage
	}
	return a
}

// pump passes a stream's events on, until the last.
func pump(ctx context.Context, index int, stream *scheduler.Stream, to chan<- numbered) {
	for {
		ev, err := stream.Next(ctx)
		if err != nil {
			return
		}
		select {
		case to <- numbered{index, ev}:
		case <-ctx.Done():
			return
		}
		if ev.Finish != "" || ev.Err != nil {
			return
		}
	}
}

// sse writes server-sent events.
type sse struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf bytes.Buffer
	enc *json.Encoder
}

// newSSE sends the headers: the client knows that its request was taken.
func newSSE(w http.ResponseWriter) *sse {
	s := &sse{w: w, rc: http.NewResponseController(w)}
	s.enc = json.NewEncoder(&s.buf)
	s.enc.SetEscapeHTML(false)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would gather events
	w.WriteHeader(http.StatusOK)
	_ = s.rc.Flush()
	return s
}

// send writes v as an event. The error is the connection's.
func (s *sse) send(v any) error {
	s.buf.Reset()
	s.buf.WriteString("data: ")
	if err := s.enc.Encode(v); err != nil { // ends with a newline
		return err
	}
	s.buf.WriteByte('\n')
	return s.flush()
}

func (s *sse) done() error {
	s.buf.Reset()
	s.buf.WriteString("data: [DONE]\n\n")
	return s.flush()
}

func (s *sse) comment(text string) error {
	s.buf.Reset()
	s.buf.WriteString(": " + text + "\n\n")
	return s.flush()
}

func (s *sse) flush() error {
	if _, err := s.w.Write(s.buf.Bytes()); err != nil {
		return err
	}
	return s.rc.Flush()
}
