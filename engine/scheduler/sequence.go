package scheduler

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/kvcache"
	"github.com/outrider-dev/outrider/engine/sampling"
)

// Sequence is a request in the engine: its tokens, its pages and how far the
// model has come with it. The step loop alone uses it, but for cancelled.
type Sequence struct {
	*Request
	Stream *Stream

	Tokens   []int32 // the prompt and what was generated
	Computed int     // positions whose keys and values are in the cache
	Table    []int32 // block table
	Draft    []int32 // proposed tokens after Tokens, to be verified by the next pass
	Parents  []int32 // where Draft is a tree: the node before each token, −1 for the text's end; empty for a chain
	Asked    int     // draft tokens after each other that the drafter was asked for

	// Of the pass in progress.
	Row   int // its first row
	Count int // its rows without the draft's
	Logit int // index of its first wanted row, or −1: the prompt is not complete yet

	// Path are the accepted nodes of a tree, by their numbers: their rows are the
	// last ones of the text that are computed. Their cache entries lie where the
	// tree has them, until they are moved.
	Path []int32

	// Held tells that the pass in progress computes a row of the sequence in vain,
	// since the token before it could not be told.
	Held bool

	// DraftState is what the drafter keeps of the request while it runs; see
	// Config.Released.
	DraftState any

	// [DraftStart, DraftEnd) are the positions, up to the last, whose entries in
	// the draft's cache were computed from the target's features. They begin
	// after 0 where pages of the prefix cache lack them: the drafter's attention
	// must not look before DraftStart.
	DraftStart, DraftEnd int

	Arrived, Admitted, FirstToken, LastToken time.Time

	limit     int           // Tokens never grow beyond it
	keys      []kvcache.Key // of the pages of Tokens, as far as they were needed
	room      int           // positions that Table covers
	stored    int           // pages of Table that the prefix cache has or refused
	marked    int           // pages of Table before this are marked as drafted, or have no draft entries
	overtaken int           // how often a later request was admitted first
	pageSize  int
	eos       []int32
	banned    []int32 // stop tokens, while MinTokens is not reached
	text      text
	form      form
	way       []int32 // of After
	usage     Usage
	event     Event  // what the pass in progress produced, but for its Text,
	out       []byte // which is this
	finished  bool
	why       FinishReason // when finished: empty after an error
	cancelled atomic.Bool
}

// Generated is the number of tokens produced so far.
func (s *Sequence) Generated() int { return len(s.Tokens) - len(s.PromptIDs) }

// Finished tells whether the last event is made.
func (s *Sequence) Finished() bool { return s.finished }

// Finish is why the request ended; empty before, and after an error.
func (s *Sequence) Finish() FinishReason { return s.why }

// Room is the largest depth of a draft that can be verified: one token more
// would exceed the limit even if all are accepted, since a verified draft brings
// a token of the target's own; or there are no pages for it.
func (s *Sequence) Room() int { return max(0, min(s.limit-len(s.Tokens)-1, s.Spare())) }

// Spare is the number of positions after the text for which there are pages.
func (s *Sequence) Spare() int { return s.room - len(s.Tokens) }

// Usage is the request's account so far.
func (s *Sequence) Usage() Usage { return s.usage }

// Text is what the draw of the next token may depend on: before MinTokens the
// tokens that would end the text are banned.
func (s *Sequence) Text() sampling.Text {
	n := len(s.PromptIDs)
	t := sampling.Text{Prompt: s.Tokens[:n], Answer: s.Tokens[n:]}
	if s.Generated() < s.MinTokens {
		t.Banned = s.banned
	}
	return t
}

// After is what the draw after a node of the draft, −1 for the text's end, may
// depend on, if the text comes to go that way: Text and Form of then, and the
// number of tokens before it. It is valid until the text grows. It is not ok where
// no draw comes there, or its form cannot be followed.
func (s *Sequence) After(node int) (text sampling.Text, position int, ok bool) {
	text = s.Text()
	s.way = s.way[:0]
	for at := node; at >= 0; {
		s.way = append(s.way, s.Draft[at])
		if len(s.Parents) == 0 {
			at--
		} else {
			at = int(s.Parents[at])
		}
	}
	slices.Reverse(s.way)
	n, depth := len(s.PromptIDs), len(s.way)
	text.Answer = append(s.Tokens, s.way...)[n:] // beyond Tokens, where the text will grow
	if s.Generated()+depth >= s.MinTokens {
		text.Banned = nil
	}
	return text, len(s.Tokens) + depth, s.form.after(&text, s.way)
}

// Sampler draws the target's token after the i-th wanted row of a sequence.
type Sampler interface {
	Sample(s *Sequence, i int) (int32, error)
}

// Advance takes note that the rows of the pass are computed, for a sequence
// whose prompt is not complete yet.
func (s *Sequence) Advance() { s.Computed += s.Count }

// Verify takes the target's tokens for the rows of the pass. The walk goes down
// the draft while one of the tokens there is the target's, and ends with the
// text. The answer is the number of draft tokens that are now part of the text;
// the error is the sampler's.
func (s *Sequence) Verify(sampler Sampler) (accepted int, err error) {
	draft, parents := s.Draft, s.Parents
	if len(draft) > 0 {
		s.usage.Verifies++
		s.usage.Drafted += len(draft)
	}
	s.Draft, s.Parents, s.Path = s.Draft[:0], s.Parents[:0], s.Path[:0]
	s.Computed += s.Count
	for at := -1; ; {
		id, err := sampler.Sample(s, at+1)
		if err != nil {
			return accepted, err
		}
		next, hit := follow(draft, parents, at, id)
		if hit {
			accepted++
			s.usage.Accepted++
		}
		s.append(id)
		if !hit || s.finished {
			return accepted, nil
		}
		s.Computed++ // the draft's row is a row of the text
		if len(parents) > 0 {
			s.Path = append(s.Path, int32(next))
		}
		at = next
	}
}

// follow is the node of a draft that has token id after node at, −1 for the
// text's end. It comes after at, so a walk ends.
func follow(draft, parents []int32, at int, id int32) (next int, ok bool) {
	if len(parents) == 0 {
		next = at + 1
		return next, next < len(draft) && draft[next] == id
	}
	for next = at + 1; next < len(draft); next++ {
		if int(parents[next]) == at && draft[next] == id {
			return next, true
		}
	}
	return 0, false
}

// Moves appends the cache slots that the accepted nodes of a tree have to be
// moved from, and to: to where the text goes on.
func (s *Sequence) Moves(to, from []int32) ([]int32, []int32) {
	base := int32(s.Computed - len(s.Path))
	for depth, node := range s.Path {
		if int(node) != depth {
			from = append(from, compute.Slot(s.Table, base+node, s.pageSize))
			to = append(to, compute.Slot(s.Table, base+int32(depth), s.pageSize))
		}
	}
	return to, from
}

// SetDrafted sets [DraftStart, DraftEnd).
func (s *Sequence) SetDrafted(start, end int) {
	if start > s.DraftStart { // what was before is of no use any more
		s.marked = max(s.marked, (start+s.pageSize-1)/s.pageSize)
	}
	s.DraftStart, s.DraftEnd = start, end
}

// Undrafted tells whether the rows from position from on, of the last pass,
// complete a page for the prefix cache that then lacks nothing but their draft
// entries. A drafter may add them though the request has finished, since the
// next request may go on from its text.
func (s *Sequence) Undrafted(from int) bool {
	return !s.Probe && from == s.DraftEnd && s.Computed/s.pageSize > from/s.pageSize
}

// append adds a token to the text and ends it where a stop, EOS or a limit
// says so; a stop is the reason even if a limit falls on the same token.
func (s *Sequence) append(id int32) {
	s.Tokens = append(s.Tokens, id)
	s.event.TokenIDs = append(s.event.TokenIDs, id)
	s.usage.CompletionTokens++
	early := s.Generated() < s.MinTokens
	if !early && (slices.Contains(s.StopIDs, id) || !s.IgnoreEOS && slices.Contains(s.eos, id)) {
		s.out, _ = s.text.flush(s.out, true)
		s.finish(FinishStop)
		return
	}
	whole, err := s.form.push(id)
	if err != nil {
		s.Fail(err)
		return
	}
	var stopped bool
	if s.out, stopped = s.text.push(s.out, id, early); stopped {
		s.finish(FinishStop)
		return
	}
	if whole {
		s.out, _ = s.text.flush(s.out, true)
		s.finish(FinishStop)
		return
	}
	if len(s.Tokens) >= s.limit {
		if s.out, stopped = s.text.flush(s.out, early); stopped {
			s.finish(FinishStop)
			return
		}
		s.finish(FinishLength)
	}
}

// AddLogprob reports the log probability of the token appended last.
func (s *Sequence) AddLogprob(id int32, logprob float32, top []sampling.TokenProb) {
	t := TokenLogprob{ID: id, Logprob: logprob}
	for _, p := range top {
		t.Top = append(t.Top, TokenLogprob{ID: p.ID, Logprob: p.Logprob})
	}
	s.event.Logprobs = append(s.event.Logprobs, t)
}

func (s *Sequence) finish(why FinishReason) {
	s.finished, s.why = true, why
	s.event.Finish = why
}

// Fail ends the request with an error.
func (s *Sequence) Fail(err error) {
	s.finished = true
	s.event.Err = err
}

// Emit hands what the pass produced to the reader.
func (s *Sequence) Emit() {
	if len(s.event.TokenIDs) == 0 && !s.finished {
		return
	}
	if s.finished && !s.FirstToken.IsZero() {
		s.usage.Queue, s.usage.Prefill, s.usage.Decode = s.Admitted.Sub(s.Arrived), s.FirstToken.Sub(s.Admitted), s.LastToken.Sub(s.FirstToken)
	}
	s.event.Usage, s.event.Admitted = s.usage, s.Admitted
	s.Stream.publish(&s.event, s.out)
	s.out = s.out[:0]
	s.event = Event{TokenIDs: s.event.TokenIDs[:0], Logprobs: s.event.Logprobs[:0]}
}
