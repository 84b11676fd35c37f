package grammar

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
)

// Limits of what a grammar keeps of the states that it came through.
const (
	maxKept = 1 << 21 // words of states and masks; beyond it all are made anew
	maxWork = 1 << 20 // configurations and edges looked at for one token or mask
)

// errTooMuchWork is the error of a grammar that can be read in too many ways at once.
var errTooMuchWork = errors.New("the grammar is too ambiguous to be followed: it can be read in too many ways at once: make its alternatives differ earlier")

// frame says where to go on when a rule has ended: there are several links when
// the rule was begun in several ways at once. The frame without links is the
// bottom. Frames with the same links are the same.
type frame struct {
	id    uint32
	links []link
}

type link struct {
	ret    int32
	parent *frame
}

// config is one way to read the text so far.
type config struct {
	node  int32
	frame *frame
}

// state is all ways to read the text so far. It belongs to a table, and is not
// changed but for what it remembers of its future.
type state struct {
	table  *table
	kernel []config // where the last byte led, in order
	closed []config // these and what they call and return to, as far as bytes go on from there
	final  bool     // the text may end here
	next   []*state // by class of bytes; nil: not known yet
	mask   *Mask    // nil: not known yet
}

// table has the states of a grammar that were met, so that a text costs little
// where another came through before.
type table struct {
	a       *automaton
	classes [256]uint8 // of bytes: those that no edge tells apart
	sample  []byte     // a byte of each class

	bottom *frame
	frames map[string]*frame
	states map[string]*state
	dead   *state
	masks  []*piece // by class of nodes
	kept   int      // words
	work   int      // since the last call from outside

	kernel []config
	key    []byte
	calls  []pending
}

// pending is a rule that is begun, and what to go on with after it.
type pending struct {
	rule  int32
	links []link
}

func newTable(a *automaton, classes *[256]uint8, sample []byte) *table {
	t := &table{a: a, classes: *classes, sample: sample, bottom: &frame{}, frames: map[string]*frame{}, states: map[string]*state{}}
	t.masks = make([]*piece, len(a.nodes))
	t.dead = &state{table: t}
	return t
}

// byteClasses finds which bytes no edge tells apart.
func byteClasses(a *automaton) (classes [256]uint8, sample []byte) {
	var cut [257]bool
	for i := range a.nodes {
		for _, e := range a.nodes[i].edges {
			cut[e.lo], cut[int(e.hi)+1] = true, true
		}
	}
	for b := range 256 {
		if b == 0 || cut[b] {
			sample = append(sample, byte(b))
		}
		classes[b] = uint8(len(sample) - 1)
	}
	return classes, sample
}

// start is the state before a text of the node, whose rule returns to the bottom.
func (t *table) at(node int32) *state {
	t.kernel = append(t.kernel[:0], config{node, t.bottom})
	return t.intern(t.kernel)
}

// step is the state after one more byte of a class; dead where there is none.
// It is nil when the work is too much.
func (t *table) step(s *state, class uint8) *state {
	b := t.sample[class]
	t.kernel = t.kernel[:0]
	for _, c := range s.closed {
		edges := t.a.nodes[c.node].edges
		t.work += 1 + len(edges)
		for _, e := range edges {
			if e.lo > b {
				break
			}
			if b <= e.hi {
				t.kernel = append(t.kernel, config{e.to, c.frame})
			}
		}
	}
	if t.work > maxWork {
		return nil
	}
	n := t.dead
	if len(t.kernel) > 0 {
		n = t.intern(t.kernel)
	}
	if n != nil {
		s.next[class] = n
	}
	return n
}

func compareConfigs(a, b config) int {
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.frame.id, b.frame.id))
}

// intern is the state of a kernel, which is sorted here; nil when the work is
// too much.
func (t *table) intern(kernel []config) *state {
	if len(kernel) > 1 {
		slices.SortFunc(kernel, compareConfigs)
		kernel = slices.Compact(kernel)
	}
	t.key = t.key[:0]
	for _, c := range kernel {
		t.key = binary.LittleEndian.AppendUint32(t.key, uint32(c.node))
		t.key = binary.LittleEndian.AppendUint32(t.key, c.frame.id)
	}
	if s, ok := t.states[string(t.key)]; ok {
		return s
	}
	key := string(t.key)
	s := &state{table: t, kernel: slices.Clone(kernel), next: make([]*state, len(t.sample))}
	if !t.closeOver(s) {
		return nil
	}
	t.states[key] = s
	t.kept += 16 + len(t.sample) + 2*(len(s.kernel)+len(s.closed))
	return s
}

// closeOver finds what a kernel goes on with before the next byte: returns
// first, since a rule that is begun here cannot end here, then calls, each rule
// after all that begin with it.
func (t *table) closeOver(s *state) bool {
	all := slices.Clone(s.kernel)
	var seen map[config]bool
	add := func(c config) {
		t.work++
		if len(all) < 16 {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
			return
		}
		if seen == nil {
			seen = make(map[config]bool, 32)
			for _, o := range all {
				seen[o] = true
			}
		}
		if !seen[c] {
			seen[c] = true
			all = append(all, c)
		}
	}
	for i := 0; i < len(all) && t.work <= maxWork; i++ {
		c := all[i]
		if !t.a.nodes[c.node].final {
			continue
		}
		s.final = s.final || c.frame == t.bottom
		for _, l := range c.frame.links {
			add(config{l.ret, l.parent})
		}
	}
	t.calls = t.calls[:0]
	for _, c := range all {
		t.begin(c)
	}
	for len(t.calls) > 0 && t.work <= maxWork {
		first := 0
		for i := range t.calls {
			if t.a.rules[t.calls[i].rule].order < t.a.rules[t.calls[first].rule].order {
				first = i
			}
		}
		p := t.calls[first]
		t.calls[first] = t.calls[len(t.calls)-1]
		t.calls = t.calls[:len(t.calls)-1]
		c := config{t.a.rules[p.rule].start, t.frame(p.links)}
		all = append(all, c)
		t.begin(c)
	}
	s.closed = slices.DeleteFunc(all, func(c config) bool { return len(t.a.nodes[c.node].edges) == 0 })
	return t.work <= maxWork
}

// begin notes the rules that c calls.
func (t *table) begin(c config) {
	for _, k := range t.a.nodes[c.node].calls {
		l := link{k.ret, c.frame}
		i := slices.IndexFunc(t.calls, func(p pending) bool { return p.rule == k.rule })
		if i < 0 {
			t.calls = append(t.calls, pending{rule: k.rule})
			i = len(t.calls) - 1
		}
		t.calls[i].links = append(t.calls[i].links, l)
		t.work += 1 + len(t.calls)
	}
}

// frame is the frame of links.
func (t *table) frame(links []link) *frame {
	slices.SortFunc(links, func(a, b link) int {
		return cmp.Or(cmp.Compare(a.ret, b.ret), cmp.Compare(a.parent.id, b.parent.id))
	})
	links = slices.Compact(links)
	key := make([]byte, 0, 8*len(links))
	for _, l := range links {
		key = binary.LittleEndian.AppendUint32(key, uint32(l.ret))
		key = binary.LittleEndian.AppendUint32(key, l.parent.id)
	}
	if f, ok := t.frames[string(key)]; ok {
		return f
	}
	f := &frame{id: uint32(len(t.frames) + 1), links: links}
	t.frames[string(key)] = f
	t.kept += 16 + 4*len(links)
	return f
}

// adopt is a state of another table of the same automaton in this one; nil when
// the work is too much. Frames lie on one another as deep as the text is
// nested, so the way down is a loop.
func (t *table) adopt(s *state) *state {
	if len(s.closed) == 0 && len(s.kernel) == 0 {
		return t.dead
	}
	known := map[*frame]*frame{}
	var work []*frame
	for _, c := range s.kernel {
		work = append(work, c.frame)
	}
	for len(work) > 0 {
		f := work[len(work)-1]
		ready := true
		if known[f] == nil {
			for _, l := range f.links {
				if known[l.parent] == nil {
					ready = false
					work = append(work, l.parent)
				}
			}
		}
		if !ready {
			continue
		}
		work = work[:len(work)-1]
		switch {
		case known[f] != nil:
		case len(f.links) == 0:
			known[f] = t.bottom
		default:
			links := slices.Clone(f.links)
			for i := range links {
				links[i].parent = known[links[i].parent]
			}
			known[f] = t.frame(links)
		}
	}
	kernel := make([]config, len(s.kernel))
	for i, c := range s.kernel {
		kernel[i] = config{c.node, known[c.frame]}
	}
	return t.intern(kernel)
}
