package scheduler

import "bytes"

// Decoder turns token ids into text, piece by piece; the tokenizer has one for
// each text. Push appends to text what is certain after the token, in whole code
// points; Flush what is left.
type Decoder interface {
	Push(text []byte, id int32) []byte
	Flush(text []byte) []byte
}

// text holds a request's decoded text back while it may be the beginning of a
// stop string. In the middle of a text it allocates nothing.
type text struct {
	decoder Decoder // nil: the model has no tokenizer, and there is no text
	stops   [][]byte
	pending []byte // decoded, not given out
}

// stop has the text end before the first of stops.
func (t *text) stop(stops []string) {
	for _, s := range stops {
		t.stops = append(t.stops, []byte(s))
	}
}

// push adds a token. It appends to out the text to give out, and tells whether a
// stop string is complete, in which case the text ends before it. While early,
// stop strings are let through.
func (t *text) push(out []byte, id int32, early bool) (given []byte, stopped bool) {
	if t.decoder == nil {
		return out, false
	}
	t.pending = t.decoder.Push(t.pending, id)
	return t.settle(out, early)
}

// settle gives out what is certain of pending.
func (t *text) settle(out []byte, early bool) (given []byte, stopped bool) {
	if early || len(t.stops) == 0 {
		return t.give(out, len(t.pending)), false
	}
	first := -1
	for _, stop := range t.stops {
		if i := bytes.Index(t.pending, stop); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		out = append(out, t.pending[:first]...)
		t.pending = t.pending[:0]
		return out, true
	}
	return t.give(out, len(t.pending)-t.held()), false
}

// held is the length of the longest end of pending that begins a stop string.
func (t *text) held() int {
	longest := 0
	for _, stop := range t.stops {
		for n := min(len(stop)-1, len(t.pending)); n > longest; n-- {
			if bytes.HasSuffix(t.pending, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// give moves the first n bytes of pending to out.
func (t *text) give(out []byte, n int) []byte {
	out = append(out, t.pending[:n]...)
	t.pending = append(t.pending[:0], t.pending[n:]...)
	return out
}

// flush is push of what is left when no more tokens come. An incomplete code
// point at the end can still complete a stop string.
func (t *text) flush(out []byte, early bool) (given []byte, stopped bool) {
	if t.decoder == nil {
		return out, false
	}
	t.pending = t.decoder.Flush(t.pending)
	out, stopped = t.settle(out, early)
	return t.give(out, len(t.pending)), stopped
}
