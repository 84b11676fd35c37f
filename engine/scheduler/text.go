package scheduler

import "strings"

// Decoder turns token ids into text, piece by piece; the tokenizer has one for
// each text. Push returns what is certain after the token, in whole code
// points; Flush what is left.
type Decoder interface {
	Push(id int32) string
	Flush() string
}

// text holds a request's decoded text back while it may be the beginning of a
// stop string.
type text struct {
	decoder Decoder // nil: the model has no tokenizer, and there is no text
	stops   []string
	pending string // decoded, not given out
}

// push adds a token. It returns the text to give out and whether a stop string
// is complete, in which case the text ends before it. While early, stop
// strings are let through.
func (t *text) push(id int32, early bool) (out string, stopped bool) {
	if t.decoder == nil {
		return "", false
	}
	return t.add(t.decoder.Push(id), early)
}

func (t *text) add(s string, early bool) (out string, stopped bool) {
	t.pending += s
	if early || len(t.stops) == 0 {
		return t.take(len(t.pending)), false
	}
	first := -1
	for _, stop := range t.stops {
		if i := strings.Index(t.pending, stop); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		out = t.pending[:first]
		t.pending = ""
		return out, true
	}
	return t.take(len(t.pending) - t.held()), false
}

// held is the length of the longest end of pending that begins a stop string.
func (t *text) held() int {
	longest := 0
	for _, stop := range t.stops {
		for n := min(len(stop)-1, len(t.pending)); n > longest; n-- {
			if strings.HasSuffix(t.pending, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}

func (t *text) take(n int) string {
	out := t.pending[:n]
	t.pending = t.pending[n:]
	return out
}

// flush is the rest of the text when no more tokens come. An incomplete code
// point at the end can still complete a stop string.
func (t *text) flush(early bool) (out string, stopped bool) {
	if t.decoder == nil {
		return "", false
	}
	out, stopped = t.add(t.decoder.Flush(), early)
	return out + t.take(len(t.pending)), stopped
}
