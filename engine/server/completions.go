package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// completions is POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	job, err := s.start(w, r)
	if err != nil {
		s.cfg.Metrics.Outcome(telemetry.OutcomeRejected).Inc()
		s.cfg.Log.Debug("completion refused", "request_id", r.Header.Get("X-Request-Id"), "status", err.status, "reason", err.Message)
		err.write(w)
		return
	}
	defer job.close()
	if job.c.stream {
		job.stream(r.Context(), w, s.cfg.Timeouts.KeepAlive)
	} else {
		job.whole(r.Context(), w)
	}
	s.cfg.Log.Debug("completion answered", "request_id", r.Header.Get("X-Request-Id"), "choices", len(job.reqs), "prompt_tokens", job.usage.PromptTokens,
		"completion_tokens", job.usage.CompletionTokens, "seconds", time.Since(job.begun).Seconds())
}

// job is a completion under way.
type job struct {
	c       *completion
	reqs    []*scheduler.Request
	streams []*scheduler.Stream // by choice
	tok     *tokenizer.Tokenizer
	id      string
	begun   time.Time

	usage       usage
	speculation speculation
}

// start reads a request and hands its prompts to the engine: all of them or,
// with an error, none.
func (s *Server) start(w http.ResponseWriter, r *http.Request) (*job, *apiError) {
	if err := s.backend.Ready(); err != nil {
		return nil, unavailable(err)
	}
	body, apiErr := s.readBody(w, r)
	if apiErr != nil {
		return nil, apiErr
	}
	c, apiErr := parseCompletion(body, s.cfg.MaxChoices)
	if apiErr != nil {
		return nil, apiErr
	}
	if err := checkModel(c.model, s.backend.Info().ServedModelName); err != nil {
		return nil, err
	}
	j := &job{c: c, tok: s.backend.Tokenizer(), id: "cmpl-" + newID(), begun: time.Now()}
	if j.reqs, apiErr = s.requests(c, j.id); apiErr != nil {
		return nil, apiErr
	}
	for _, req := range j.reqs {
		stream, err := s.backend.Submit(req)
		if err != nil {
			j.close()
			e := submitError(err)
			if window := s.backend.Info().ContextLength; e.status == http.StatusBadRequest && len(req.PromptIDs)+req.MaxTokens > window {
				e = tooLong(e)
			}
			return nil, e
		}
		j.streams = append(j.streams, stream)
	}
	return j, nil
}

// close gives up what has not ended.
func (j *job) close() {
	for _, stream := range j.streams {
		stream.Close()
	}
}

// count adds a choice that has ended.
func (j *job) count(index int, u scheduler.Usage) {
	j.usage.add(u, index%j.c.n == 0)
	j.speculation.add(u)
}

// answer is an empty answer or chunk.
func (j *job) answer() answer {
	return answer{ID: j.id, Object: "text_completion", Created: j.begun.Unix(), Model: j.c.model, Choices: []choice{}}
}

// whole answers when all choices have ended. Nobody waits for a reader, so they
// may be read one after the other.
func (j *job) whole(ctx context.Context, w http.ResponseWriter) {
	a := j.answer()
	for i, stream := range j.streams {
		all, err := readAll(ctx, stream)
		if err != nil {
			return // the client is gone
		}
		if failed := failure(&all); failed != nil {
			failed.write(w)
			return
		}
		piece, _ := newRenderer(j.c, j.reqs[i], i, j.tok).render(&all)
		a.Choices = append(a.Choices, piece)
		j.count(i, all.Usage)
	}
	a.Usage, a.Speculation = &j.usage, &j.speculation
	writeJSON(w, http.StatusOK, a)
}

func readAll(ctx context.Context, stream *scheduler.Stream) (all scheduler.Event, err error) {
	for all.Finish == "" && all.Err == nil {
		ev, err := stream.Next(ctx)
		if err != nil {
			return all, err
		}
		merge(&all, ev)
	}
	return all, nil
}

// failure is the error of a request that ended without an answer.
func failure(ev *scheduler.Event) *apiError {
	err := ev.Err
	if err == nil && ev.Finish == scheduler.FinishAbort {
		err = errors.New("the request was given up by the server")
	}
	if err == nil {
		return nil
	}
	return newError(http.StatusInternalServerError, typeServer, "", err.Error())
}
