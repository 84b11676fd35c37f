// Package grammar says which tokens may come next in a text that shall be of a
// form: a regular expression, one of some texts, JSON, JSON of a schema.
//
// A grammar is a network of rules over bytes. Reading a text goes from state to
// state; a state is all ways to read the text so far, is never changed, and can
// be gone on from any number of times, so that each node of a draft has its own
// and nothing is ever rolled back. The tokens allowed in a state are found by
// walking the trie of the vocabulary's bytes, once for all states that cannot
// be told apart by one token; see piece.
package grammar

import (
	"slices"
	"sync"
)

// Grammar is a compiled grammar over a vocabulary. It may be used from several
// goroutines.
type Grammar struct {
	vocabulary *Vocabulary
	automaton  *automaton
	classes    [256]uint8
	sample     []byte

	mu     sync.Mutex
	table  *table
	within *walker
	first  *walker // for the first token, where the vocabulary has other bytes for it; else nil
	begin  *Mask   // of the first token; nil: not known yet
	most   int     // words that a table keeps
}

func newGrammar(v *Vocabulary, a *automaton) *Grammar {
	g := &Grammar{vocabulary: v, automaton: a, within: newWalker(&v.within, v.size), most: maxKept}
	if v.first != nil {
		g.first = newWalker(v.first, v.size)
	}
	g.classes, g.sample = byteClasses(a)
	g.table = newTable(a, &g.classes, g.sample)
	return g
}

// State is how far a text has come. The zero State is that of no grammar.
type State struct {
	g     *Grammar
	s     *state
	begin bool // before the first token
}

// Start is the state before the text.
func (g *Grammar) Start() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.enter()
	return State{g: g, s: g.table.at(g.automaton.start), begin: true}
}

// IsZero tells whether there is no grammar.
func (s State) IsZero() bool { return s.g == nil }

// Accepting tells whether the text may end here.
func (s State) Accepting() bool { return s.s.final }

// Complete tells whether the text must end here: it is whole, and nothing may
// follow.
func (s State) Complete() bool { return s.s.final && len(s.s.closed) == 0 }

// enter begins a call from outside. Where too many states are kept a new table
// begins; the old one goes with the last text that has a state of it.
func (g *Grammar) enter() {
	if g.table.kept > g.most {
		g.table = newTable(g.automaton, &g.classes, g.sample)
		g.begin = nil
	}
	g.table.work = 0
}

// current is s in the table in use.
func (g *Grammar) current(s *state) *state {
	if s.table != g.table {
		return g.table.adopt(s)
	}
	return s
}

// Next is the state after a token; ok is false where the token is not allowed.
// The error is of a grammar that cannot be followed.
func (s State) Next(token int32) (next State, ok bool, err error) {
	g := s.g
	trie := &g.vocabulary.within
	if s.begin && g.vocabulary.first != nil {
		trie = g.vocabulary.first
	}
	return s.read(trie.token(token))
}

// read is the state after some bytes; there must be some.
func (s State) read(text []byte) (next State, ok bool, err error) {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	g.enter()
	at := g.current(s.s)
	for _, b := range text {
		if at == nil || at == g.table.dead {
			break
		}
		class := g.classes[b]
		before := at
		if at = before.next[class]; at == nil {
			at = g.table.step(before, class)
		}
	}
	if at == nil {
		return State{}, false, errTooMuchWork
	}
	if at == g.table.dead || len(text) == 0 {
		return State{}, false, nil
	}
	return State{g: g, s: at}, true, nil
}

// Mask is the tokens that may come next. None of them ends the text: whether it
// may end is Accepting's to say. The error is of a grammar that cannot be
// followed.
func (s State) Mask() (*Mask, error) {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := s.s.mask; m != nil && !(s.begin && g.first != nil) {
		return m, nil
	}
	g.enter()
	var m *Mask
	if at := g.current(s.s); at != nil && s.begin && g.first != nil {
		m = g.beginning(at)
	} else if at != nil {
		m = g.table.maskOf(g.within, at)
	}
	if m == nil {
		return nil, errTooMuchWork
	}
	return m, nil
}

// beginning is the mask of the first token where that has bytes of its own.
func (g *Grammar) beginning(at *state) *Mask {
	if g.begin == nil {
		g.first.begin()
		if !g.first.walk(g.table, 0, at) {
			return nil
		}
		g.begin = newMask(g.first.set)
	}
	return g.begin
}

// Nodes that let most of the vocabulary through take longest to make a mask
// for: those that a text is at most often have theirs from the start.
const (
	preparedMasks = 16
	wideNode      = 64 // bytes
)

// prepare makes the masks of such nodes: first of those that lead to themselves,
// then of those that have many of their class. The error is of a grammar that
// cannot be followed.
func (g *Grammar) prepare() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	weight := map[int32]int{} // of a class
	var wide []int32          // a node of each
	for i := range g.automaton.nodes {
		n := &g.automaton.nodes[i]
		bytes := 0
		for _, e := range n.edges {
			bytes += int(e.hi) - int(e.lo) + 1
			if e.to == int32(i) {
				weight[n.class] += maxNodes
			}
		}
		if bytes < wideNode {
			continue
		}
		if weight[n.class]%maxNodes == 0 {
			wide = append(wide, int32(i))
		}
		weight[n.class]++
	}
	slices.SortStableFunc(wide, func(a, b int32) int {
		return weight[g.automaton.nodes[b].class] - weight[g.automaton.nodes[a].class]
	})
	for _, i := range wide[:min(len(wide), preparedMasks)] {
		g.enter()
		if g.table.pieceOf(g.within, i) == nil {
			return errTooMuchWork
		}
	}
	return nil
}
