package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// A getter reads the server from the API server.
type getter func(context.Context) (*v1alpha1.SpeculativeServer, error)

// waitReady follows the status of the server until it is Ready for the spec as
// it stands, and shows it on line. A phase that no waiting heals, and the end
// of the limit, are errors with the last status in them.
func waitReady(ctx context.Context, get getter, line *liveLine, limit, interval time.Duration) (*v1alpha1.SpeculativeServer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := "no status yet"
	var lastErr error
	for {
		s, err := get(ctx)
		if err == nil {
			last = describe(s)
			line.show(last)
			current := s.Status.ObservedGeneration == s.Generation
			switch {
			case current && s.Status.Phase == v1alpha1.PhaseReady:
				line.end()
				return s, nil
			case current && s.Status.Phase == v1alpha1.PhaseFailed:
				line.end()
				return nil, fmt.Errorf("%s/%s failed: %s", s.Namespace, s.Name, s.Status.Message)
			}
		} else if ctx.Err() == nil {
			lastErr = err
			line.show("cannot read the server: " + err.Error())
		}
		select {
		case <-ctx.Done():
			line.end()
			if lastErr != nil && last == "no status yet" {
				last = lastErr.Error()
			}
			return nil, fmt.Errorf("not Ready after %s: %s", time.Since(line.start).Round(time.Second), last)
		case <-time.After(interval):
		}
	}
}

// describe says in one line where the server is.
func describe(s *v1alpha1.SpeculativeServer) string {
	phase, message := string(s.Status.Phase), s.Status.Message
	switch {
	case phase == "" && message == "":
		return "waiting for the operator"
	case message == "":
		return phase
	case strings.HasPrefix(message, phase):
		return message // "Loading 43 %, shard 3 of 8" needs no "Loading:" before it
	}
	return phase + ": " + message
}

// A liveLine shows a text that changes: in place on a terminal, and elsewhere
// as a new line for each change.
type liveLine struct {
	out      io.Writer
	terminal bool
	start    time.Time
	last     string
}

func (l *liveLine) show(text string) {
	text = strings.Join(strings.Fields(text), " ")
	elapsed := fmt.Sprintf("%4.0f s  ", time.Since(l.start).Seconds())
	switch {
	case l.terminal:
		if r := []rune(text); len(r) > 100 { // a line that wraps cannot be overwritten
			text = string(r[:99]) + "…"
		}
		fmt.Fprintf(l.out, "\r%s%s\x1b[K", elapsed, text)
	case text != l.last:
		fmt.Fprintf(l.out, "%s%s\n", elapsed, text)
	}
	l.last = text
}

func (l *liveLine) end() {
	if l.terminal && l.last != "" {
		fmt.Fprintln(l.out)
	}
}
