package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// completions is POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) { s.generate(w, r, s.completion) }

// generate answers a request of the kind that prepare reads.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, prepare func(body []byte) (*job, *apiError)) {
	ctx, span := s.beginSpan(r)
	r = r.WithContext(ctx)
	job, err := s.start(w, r, prepare)
	defer func() { endSpan(span, job, err) }()
	if err != nil {
		s.cfg.Metrics.Outcome(telemetry.OutcomeRejected).Inc()
		s.refused(r, err)
		err.write(w)
		return
	}
	defer job.close()
	switch {
	case r.Context().Err() != nil:
		errLeft().write(w)
	case !job.c.stream:
		job.whole(r.Context(), w)
	case !job.stream(r.Context(), w, s.cfg.Timeouts.KeepAlive):
		s.answered(r, job)
		panic(http.ErrAbortHandler) // net/http would end a part of an answer as if it were whole
	}
	s.answered(r, job)
}

// job is a request under way.
type job struct {
	c         *completion
	reqs      []*scheduler.Request
	streams   []*scheduler.Stream // by choice
	renderers []renderer          // by choice
	id        string
	object    string // of a whole answer
	chunks    string // object of a chunk
	prompt    string // the parameter that has the prompt
	begun     time.Time
	account   account
	spans     []choiceSpans // by choice

	usage       usage
	speculation speculation
	timings     timings
}

// start reads a request and hands its prompts to the engine: all of them or,
// with an error, none.
func (s *Server) start(w http.ResponseWriter, r *http.Request, prepare func(body []byte) (*job, *apiError)) (*job, *apiError) {
	if err := s.backend.Ready(); err != nil {
		return nil, unavailable(err)
	}
	body, done, apiErr := s.readBody(w, r)
	if apiErr != nil {
		return nil, apiErr
	}
	begun := time.Now()
	j, apiErr := prepare(body)
	done()
	if apiErr != nil {
		return nil, apiErr
	}
	// All of them wait at once, which no later try would change.
	if most := s.backend.Info().MaxQueuedRequests; most > 0 && len(j.reqs) > most {
		return nil, invalid("n", "the prompts and their choices are %d requests: %d may wait here at once (--max-queued-requests): send fewer in a request", len(j.reqs), most)
	}
	j.begun = begun
	j.account = account{texts: s.cfg.LogRequests == LogText, answers: make([]strings.Builder, len(j.reqs))}
	for _, req := range j.reqs {
		submitted := time.Now() // before it may begin
		stream, err := s.backend.Submit(req)
		if err != nil {
			j.close()
			e := submitError(err)
			if window := s.backend.Info().ContextLength; e.status == http.StatusBadRequest && len(req.PromptIDs)+req.MaxTokens > window {
				e = tooLong(e)
			}
			if e.Param != nil && *e.Param == "prompt" {
				e.Param = &j.prompt
			}
			return nil, e
		}
		j.streams = append(j.streams, stream)
		j.spans = append(j.spans, choiceSpans{tracer: s.cfg.Tracer, ctx: r.Context(), index: len(j.spans), submitted: submitted})
	}
	return j, nil
}

// completion reads the body of POST /v1/completions.
func (s *Server) completion(body []byte) (*job, *apiError) {
	c, err := parseCompletion(body, s.cfg.MaxChoices)
	if err != nil {
		return nil, err
	}
	if err := checkModel(c.model, s.backend.Info().ServedModelName); err != nil {
		return nil, err
	}
	tok := s.backend.Tokenizer()
	j := &job{c: c, id: "cmpl-" + newID(), object: "text_completion", chunks: "text_completion", prompt: "prompt"}
	prompts := make([][]int32, len(c.prompts))
	for i, p := range c.prompts {
		if prompts[i], err = s.encode(p, tok, c.special, s.backend.Info().ContextLength); err != nil {
			return nil, err
		}
	}
	if j.reqs, err = s.requests(c, j.id, prompts, defaultMaxToken); err != nil {
		return nil, err
	}
	for i, req := range j.reqs {
		r := newRenderer(c, req, i, tok)
		if c.echo {
			r.echo = echoed(c.prompts[i/c.choices()], tok)
		}
		j.renderers = append(j.renderers, r)
	}
	return j, nil
}

// echoed is the text of a prompt.
func echoed(p prompt, tok *tokenizer.Tokenizer) string {
	if p.ids == nil {
		return p.text
	}
	return tok.Decode(p.ids, true)
}

// close gives up what has not ended.
func (j *job) close() {
	for _, stream := range j.streams {
		stream.Close()
	}
}

// count adds a choice that has ended.
func (j *job) count(index int, u scheduler.Usage) {
	j.usage.add(u, index%j.c.choices() == 0)
	j.speculation.add(u)
	j.timings.add(u)
}

// answer is an empty answer or chunk.
func (j *job) answer(object string) envelope {
	return envelope{ID: j.id, Object: object, Created: j.begun.Unix(), Model: j.c.model, Choices: []any{}}
}

// whole answers when all choices have ended. Nobody waits for a reader, so they
// may be read one after the other.
func (j *job) whole(ctx context.Context, w http.ResponseWriter) {
	a := j.answer(j.object)
	events := make([]scheduler.Event, len(j.streams))
	for i, stream := range j.streams {
		all, err := readAll(ctx, stream, &j.spans[i])
		if err != nil {
			errLeft().write(w)
			return
		}
		if failed := failure(&all); failed != nil {
			failed.write(w)
			return
		}
		events[i] = all
		j.account.note(i, &all, time.Now())
		j.count(i, all.Usage)
	}
	for index, i := range j.c.best(events) {
		a.Choices = append(a.Choices, j.renderers[i].whole(&events[i], index))
	}
	a.Usage, a.Speculation, a.Timings = &j.usage, &j.speculation, &j.timings
	writeJSON(w, http.StatusOK, a)
}

// best are the answers to return, by their places: of each prompt's the n whose
// tokens were the most likely on average.
func (c *completion) best(events []scheduler.Event) []int {
	var all []int
	for first := 0; first < len(events); first += c.choices() {
		group := make([]int, c.choices())
		for i := range group {
			group[i] = first + i
		}
		if c.bestOf > c.n {
			slices.SortStableFunc(group, func(a, b int) int { return cmp.Compare(meanLogprob(&events[b]), meanLogprob(&events[a])) })
		}
		all = append(all, group[:c.n]...)
	}
	return all
}

func meanLogprob(ev *scheduler.Event) float64 {
	sum := 0.0
	for _, t := range ev.Logprobs {
		sum += float64(t.Logprob)
	}
	return sum / float64(max(1, len(ev.Logprobs)))
}

// readAll waits for the last event; spans, unless nil, sees them all.
func readAll(ctx context.Context, stream *scheduler.Stream, spans *choiceSpans) (all scheduler.Event, err error) {
	for all.Finish == "" && all.Err == nil {
		ev, err := stream.Next(ctx)
		if err != nil {
			return all, err
		}
		spans.note(&ev, time.Now())
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
