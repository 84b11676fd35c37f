package speculation

import (
	"math/bits"
	"slices"
)

// NGram drafts without a model: it looks for the last tokens of a text in what
// comes before them, the longest run first, and proposes what followed there the
// last time.
type NGram struct {
	least, most int // tokens of a run
	free        slots
	histories   []history
}

// historyWindow is how far back runs are found, in tokens: all of a text that is
// no longer than twice this, and at least as many of a longer one.
const historyWindow = 1 << 14

// NewNGram makes a drafter that looks for runs of least to most tokens, for as
// many as requests requests at once.
func NewNGram(least, most, requests int) *NGram {
	g := &NGram{least: least, most: most, free: newSlots(requests), histories: make([]history, requests)}
	for i := range g.histories {
		g.histories[i] = history{least: least, tables: make([][]int32, most-least+1)}
	}
	return g
}

// Forget implements Drafter.
func (g *NGram) Forget(s *State) { g.free.forget(s) }

// Draft implements Drafter.
func (g *NGram) Draft(seqs []Sequence, plain bool) error {
	for i := range seqs {
		s := &seqs[i]
		if plain || s.Depth == 0 {
			continue // what was settled meanwhile is taken in later
		}
		if g.free.hold(s.State) {
			g.histories[s.State.slot-1].begin(cap(s.Tokens)) // it grows with the text, which has room for that much
		}
		h := &g.histories[s.State.slot-1]
		h.learn(s.Tokens)
		at, ok := h.find(s.Tokens)
		for ; ok && len(s.Draft) < s.Depth; at++ {
			if at < len(s.Tokens) {
				s.Draft = append(s.Draft, s.Tokens[at])
			} else { // beyond the text's end it goes on with the draft itself
				s.Draft = append(s.Draft, s.Draft[at-len(s.Tokens)])
			}
		}
	}
	return nil
}

// history knows where the runs of one text were last. Of each length there is a
// hash table with open addressing whose entries are positions: that after a run,
// 0 for none. They are at most half full.
type history struct {
	least  int
	tables [][]int32 // by length − least
	size   int       // entries in use of each table: a power of two
	start  int       // tokens before are not known any more
	next   int       // runs that end before this position are known
	match  int       // length of the run found last, at its time
	seen   int       // length of the text then
}

// begin forgets the text before and makes room for one of so many tokens.
func (h *history) begin(tokens int) {
	h.resize(tokens)
	h.clear(0)
	h.match, h.seen = 0, 0
}

// resize gives the tables room for the runs of so many tokens. They are to be
// cleared.
func (h *history) resize(tokens int) {
	h.size = 1 << bits.Len(uint(2*min(tokens, 2*historyWindow)))
	for i := range h.tables {
		if cap(h.tables[i]) < h.size {
			h.tables[i] = make([]int32, h.size)
		}
	}
}

// clear empties the tables: runs are known from position start on.
func (h *history) clear(start int) {
	for i := range h.tables {
		h.tables[i] = h.tables[i][:h.size]
		clear(h.tables[i])
	}
	h.start, h.next = start, start
}

// learn takes in the runs that a token of the text follows.
func (h *history) learn(tokens []int32) {
	last := len(tokens) - 1
	if last-h.start > 2*historyWindow {
		h.clear(last - historyWindow)
	} else if 2*(last-h.start) > h.size { // the text has outgrown them
		h.resize(2 * (last - h.start))
		h.clear(h.start)
	}
	for ; h.next < last; h.next++ {
		hash := newHash
		for n := 1; n < h.least+len(h.tables) && h.next-n+1 >= h.start; n++ {
			hash = hash.with(tokens[h.next-n+1])
			if n >= h.least {
				*h.entry(n, hash, tokens, h.next+1) = int32(h.next + 1)
			}
		}
	}
}

// find is the position after the last place where the longest run is that ends
// the text.
func (h *history) find(tokens []int32) (at int, ok bool) {
	end := len(tokens)
	// A run is at most as much longer than the one found before as the text is:
	// else its beginning had been found then.
	longest := min(h.match+end-h.seen, h.least+len(h.tables)-1, end-h.start)
	h.match, h.seen = 0, end
	var hashes [MaxRun + 1]runHash
	hashes[0] = newHash
	for n := 1; n <= longest; n++ {
		hashes[n] = hashes[n-1].with(tokens[end-n])
	}
	for n := longest; n >= h.least; n-- {
		if at := *h.entry(n, hashes[n], tokens, end); at > 0 {
			h.match = n
			return int(at), true
		}
	}
	h.match = h.least - 1 // shorter runs are not known: one may have been there
	return 0, false
}

// entry is where the table of length n has, or would have, the run of n tokens
// that ends before position end.
func (h *history) entry(n int, hash runHash, tokens []int32, end int) *int32 {
	table := h.tables[n-h.least]
	mask := uint64(len(table) - 1)
	for i := hash.place() & mask; ; i = (i + 1) & mask {
		at := int(table[i])
		if at == 0 || slices.Equal(tokens[at-n:at], tokens[end-n:end]) {
			return &table[i]
		}
	}
}

// MaxRun is the largest length of a run.
const MaxRun = 64

// runHash is the hash of a run, taken from its last token to its first.
type runHash uint64

const newHash runHash = 0xcbf29ce484222325

func (h runHash) with(token int32) runHash {
	return (h ^ runHash(uint32(token))) * 0x9e3779b97f4a7c15
}

func (h runHash) place() uint64 { return uint64(h ^ h>>32) }
