package model

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
	"github.com/outrider-dev/outrider/internal/freeport"
)

// passOf is a command with rows of two sequences, the second one's a tree's.
func passOf() command {
	rows := &compute.Rows{}
	a, b := rows.AddSequence([]int32{3, 1}, 0), rows.AddSequence([]int32{0, 2}, 5)
	rows.Add(a, 7, 16, 16)
	rows.AddNode(b, 8, 20, 0, 0, 1, 16)
	rows.AddNode(b, 9, 20, 1, 1, 3, 16)
	rows.Kept = []int32{-1, 2, 0}
	return command{kind: passExtend, rows: rows, want: []int32{0, 2}, features: []int32{3, 0, 3}}
}

var wireLimits = bounds{Limits{MaxRows: 4, MaxLogits: 3, MaxDrafts: 2, Pages: 4, PageSize: 16, Kept: 3}, 10, true, true}

func TestCommandsArriveAsSent(t *testing.T) {
	var got command
	for _, c := range []command{passOf(), {kind: passMove, want: []int32{1, 2}, features: []int32{3, 4}}, {kind: passDraft, rows: &compute.Rows{}}, passOf()} {
		if err := got.decode(c.encode(nil), wireLimits); err != nil {
			t.Fatal(err)
		}
		if got.kind != c.kind || !equalLists(got.want, c.want) || !equalLists(got.features, c.features) || (got.rows == nil) != (c.rows == nil) {
			t.Errorf("got %+v, want %+v", got, c)
		}
		if c.rows != nil && c.rows.Len() > 0 && !reflect.DeepEqual(*got.rows, *c.rows) {
			t.Errorf("got rows %+v, want %+v", *got.rows, *c.rows)
		}
		if got.digest() != c.digest() {
			t.Error("what arrived has another digest")
		}
	}
}

func equalLists(a, b []int32) bool { return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b) }

func TestCommandsOutOfBoundsAreRefused(t *testing.T) {
	of := func(kind passKind, features, want []int32) func(c *command) {
		return func(c *command) { c.kind, c.features, c.want = kind, features, want }
	}
	rowless := func(kind passKind, features, want []int32) func(c *command) {
		return func(c *command) { *c = command{kind: kind, features: features, want: want} }
	}
	rows := func(edit func(r *compute.Rows)) func(c *command) { return func(c *command) { edit(c.rows) } }
	for _, c := range []struct {
		name string
		edit func(c *command)
		says string
	}{
		{"too many rows", rows(func(r *compute.Rows) {
			for range 3 {
				r.Add(0, 1, 1, 16)
			}
		}), "6 rows: allowed are 4"},
		{"a list too short", rows(func(r *compute.Rows) { r.Slots = r.Slots[:1] }), "must be as many"},
		{"kept for some", rows(func(r *compute.Rows) { r.Kept = r.Kept[:2] }), "3 rows, of which 2"},
		{"kept beyond the end", rows(func(r *compute.Rows) { r.Kept[0] = 3 }), "row 0 is kept as 3: allowed is up to 2"},
		{"masks for some", rows(func(r *compute.Rows) { r.Masks = r.Masks[:2] }), "must be as many"},
		{"a token beyond the vocabulary", rows(func(r *compute.Rows) { r.Tokens[1] = 10 }), "row 1: token 10: allowed is 0 to 9"},
		{"a negative token", rows(func(r *compute.Rows) { r.Tokens[2] = -1 }), "row 2: token -1: allowed is 0 to 9"},
		{"a sequence that is not there", rows(func(r *compute.Rows) { r.Seqs[1] = 2 }), "row 1: sequence 2 of 2"},
		{"a slot beyond the pool", rows(func(r *compute.Rows) { r.Slots[2] = 64 }), "row 2: slot 64: allowed is 0 to 63"},
		{"a negative slot", rows(func(r *compute.Rows) { r.Slots[0] = -1 }), "row 0: slot -1"},
		{"a negative position", rows(func(r *compute.Rows) { r.Positions[0] = -1 }), "row 0: position -1"},
		{"a position beyond the table", rows(func(r *compute.Rows) { r.Positions[0] = 32 }), "row 0: position 32 is beyond its table of 2 pages"},
		{"a node beyond the table", rows(func(r *compute.Rows) { r.Bases[2] = 31 }), "beyond its table of 2 pages"},
		{"a negative start", rows(func(r *compute.Rows) { r.Starts[0] = -1 }), "row 0: its sequence's first position is -1"},
		{"a start after the row", rows(func(r *compute.Rows) { r.Starts[0] = 17 }), "row 0: its sequence's first position is 17, and its tree's base or its position 16"},
		{"a start after the tree's base", rows(func(r *compute.Rows) { r.Starts[1] = 21 }), "row 1: its sequence's first position is 21, and its tree's base or its position 20"},
		{"a negative base under a high node", rows(func(r *compute.Rows) { r.Bases[2], r.Masks[2] = -5, 1<<20 }), "row 2: its sequence's first position"},
		{"a page beyond the pool", rows(func(r *compute.Rows) { r.Tables[1][1] = 4 }), "page 4: allowed is 0 to 3"},
		{"a wanted row that is none", of(passForward, nil, []int32{0, 3}), `a pass "forward" with 3 rows: wanted rows: 3 is among them: allowed is 0 to 2`},
		{"a negative wanted row", of(passDraft, nil, []int32{-1}), `a pass "draft model" with 3 rows: wanted rows: -1 is among them`},
		{"too many wanted rows", of(passForward, nil, []int32{0, 1, 2, 0}), "4 wanted rows: allowed are 3"},
		{"too many wanted rows of the head", of(passExtend, []int32{0, 1, 2}, []int32{0, 1, 2}), "3 wanted rows: allowed are 2"},
		{"features that nobody reads", of(passForward, []int32{0}, nil), "1 features: allowed are 0"},
		{"features for some rows", of(passExtend, []int32{0, 1}, nil), "2 features: allowed are exactly 3"},
		{"a feature of no row", of(passExtend, []int32{0, 1, 4}, nil), "features: 4 is among them: allowed is 0 to 3"},
		{"a kept feature that is none", of(passCatchUp, []int32{0, 1, 3}, nil), "kept features: 3 is among them: allowed is 0 to 2"},
		{"a step of too many rows", of(passStep, nil, []int32{0, 0, 0}), `a pass "draft step" with 3 rows: this node has no such pass`},
		{"a chain between processes", of(passChain, []int32{0}, []int32{0, 0, 0}), "this node has no such pass"},
		{"no rows", rowless(passForward, nil, nil), "this node has no such pass"},
		{"rows for a copy", of(passMove, nil, nil), "this node has no such pass"},
		{"a slot to keep in that is none", rowless(passKeep, []int32{0}, []int32{3}), "kept features: 3 is among them"},
		{"a slot to copy that is none", rowless(passMove, []int32{64}, []int32{0}), "slots to copy: 64 is among them: allowed is 0 to 63"},
		{"a slot to copy to that is none", rowless(passMove, []int32{0}, []int32{-1}), "slots to copy to: -1 is among them"},
		{"copies without an end", rowless(passMove, []int32{0, 1}, []int32{0}), "1 slots to copy to: allowed are exactly 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := passOf()
			c.edit(&sent)
			var got command
			if err := got.decode(sent.encode(nil), wireLimits); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: want %q", err, c.says)
			}
		})
	}
	without := wireLimits
	without.head, without.small = false, false
	for _, c := range []command{passOf(), {kind: passDraft, rows: &compute.Rows{}}, {kind: passKeep}} {
		var got command
		if err := got.decode(c.encode(nil), without); err == nil || !strings.Contains(err.Error(), "this node has no such pass") {
			t.Errorf("without a draft a pass %q gives %v", passNames[c.kind], err)
		}
	}
}

// Whatever arrives, what is taken stays within the limits.
func FuzzDecodeCommand(f *testing.F) {
	whole := passOf()
	f.Add(whole.encode(nil))
	f.Add((&command{kind: passKeep, want: []int32{1}}).encode(nil))
	f.Add([]byte{0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var c command
		if c.decode(b, wireLimits) != nil || c.rows == nil {
			return
		}
		if r := c.rows; r.Len() > wireLimits.MaxRows || len(r.Tables) != len(r.Starts) {
			t.Errorf("%d rows, %d tables, %d starts", r.Len(), len(r.Tables), len(r.Starts))
		}
		var again command
		if err := again.decode(c.encode(nil), wireLimits); err != nil || again.digest() != c.digest() {
			t.Errorf("not the same when sent on: %v", err)
		}
	})
}

// drafting are two targets, one with a draft head and one with a draft model,
// with room for very little.
func drafting(t testing.TB) [2]*Ranks {
	t.Helper()
	load := func(target, draft Source, whole bool) *Ranks {
		spec := Spec{Target: target, Draft: draft, DraftWhole: whole, Ranks: 1,
			Plan: func(int64, int) (Limits, error) {
				return Limits{MaxRows: 6, MaxLogits: 4, MaxDrafts: 3, Pages: 3, PageSize: 4, Kept: 5}, nil
			},
			NewDevice: func(comm collective.Communicator) (compute.Device, error) { return cpu.New(comm, 1) },
		}
		var err error
		if spec.Config, err = ReadConfig(target.Files, target.Name); err != nil {
			t.Fatal(err)
		}
		read := ReadEagle3Config
		if whole {
			read = ReadDraftConfig
		}
		if spec.DraftConfig, err = read(draft.Files, draft.Name, spec.Config); err != nil {
			t.Fatal(err)
		}
		r, err := Load(context.Background(), spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	opened := func(name string) Source {
		files, err := builtin.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		return Source{name, files}
	}
	llama := Source{"llama", os.DirFS("testdata/fixtures/llama")}
	return [2]*Ranks{load(opened("gocode-7m"), opened("gocode-7m-eagle3"), false), load(llama, llama, true)}
}

// computeArrived has r compute what arrived, if it takes it; it reports a fault.
func computeArrived(t *testing.T, r *Ranks, b []byte) (taken bool) {
	t.Helper()
	var c command
	if c.decode(b, r.bounds()) != nil {
		return false
	}
	if err := r.runHere(c); err != nil {
		t.Fatalf("a pass %q that was taken, features %v, wanted %v, rows %+v: %v", passNames[c.kind], c.features, c.want, c.rows, err)
	}
	return true
}

// randomCommand is one that a rank could compute, but for what chance, one number
// in odds, has made of it.
func randomCommand(rng *rand.Rand, lim bounds, odds int) command {
	upTo := func(n int) int32 {
		if rng.IntN(odds) == 0 {
			return []int32{-1, int32(n), math.MaxInt32, math.MinInt32, int32(n) + 1}[rng.IntN(5)]
		}
		return int32(rng.IntN(n))
	}
	list := func(n, below int) (l []int32) {
		if rng.IntN(odds) == 0 {
			n = rng.IntN(9)
		}
		for range n {
			l = append(l, upTo(below))
		}
		return l
	}
	c := command{kind: passKind(rng.IntN(len(passNames)))}
	n := 1 + rng.IntN(lim.MaxDrafts)
	switch c.kind {
	case passKeep:
		c.features = list(n, lim.MaxRows)
		c.want = list(n, lim.Kept)
		return c
	case passMove:
		c.features, c.want = list(n, lim.Pages*lim.PageSize), list(n, lim.Pages*lim.PageSize)
		return c
	case passExtend:
		c.features, c.want = list(n, lim.MaxRows), list(rng.IntN(n+1), n)
	case passCatchUp:
		c.features = list(n, lim.Kept)
	case passStep, passChain:
		c.want = list(n, lim.MaxDrafts)
	default:
		c.want = list(rng.IntN(n+1), n)
	}
	var kept []int32
	if c.kind == passForwardKeep {
		kept = list(n, lim.Kept)
	}
	r := &compute.Rows{Kept: kept, Tokens: list(n, lim.vocab), Positions: list(n, lim.Pages*lim.PageSize), Slots: list(n, lim.Pages*lim.PageSize), Seqs: list(n, 2)}
	for range 2 {
		r.Starts = append(r.Starts, upTo(2))
		r.Tables = append(r.Tables, list(lim.Pages, lim.Pages))
	}
	if rng.IntN(3) == 0 {
		r.Bases = list(n, lim.Pages*lim.PageSize-4)
		for range n {
			r.Masks = append(r.Masks, uint64(rng.IntN(16)))
			if rng.IntN(odds) == 0 {
				r.Masks[len(r.Masks)-1] = rng.Uint64()
			}
		}
	}
	c.rows = r
	return c
}

// What is taken can be computed: no command of another process makes a rank
// read or write where nothing is.
func TestCommandsThatAreTakenCanBeComputed(t *testing.T) {
	var taken [len(passNames)]int
	for _, r := range drafting(t) {
		rng := rand.New(rand.NewPCG(31, 32))
		for range 1500 {
			c := randomCommand(rng, r.bounds(), 60)
			if computeArrived(t, r, c.encode(nil)) {
				taken[c.kind]++
			}
		}
	}
	for kind, n := range taken {
		alone := passKind(kind) == passChain || passKind(kind) == passAhead || passKind(kind) == passAheadKeep // of one process
		if n > 20 == alone {
			t.Errorf("%d passes %q were taken", n, passNames[kind])
		}
	}
}

func FuzzComputeCommand(f *testing.F) {
	ranks := drafting(f)
	rng := rand.New(rand.NewPCG(33, 34))
	for range 60 {
		c := randomCommand(rng, ranks[0].bounds(), 1000)
		f.Add(c.encode(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, r := range ranks {
			computeArrived(t, r, b)
		}
	})
}

// A rank whose input is another is noticed before anything is computed with it.
func TestRanksThatDifferAreNoticed(t *testing.T) {
	for _, check := range []bool{true, false} {
		pair := twoNodes(t, check)
		ended := make(chan error, 1)
		go func() {
			b, err := pair[1].nodes.Receive(nil)
			var c command
			if err == nil {
				err = c.decode(b, pair[1].bounds())
			}
			if err != nil {
				ended <- err
				return
			}
			c.rows.Tokens[0]++ // a bug, a bit that fell over
			ended <- pair[1].runHere(c)
		}()
		rows := &compute.Rows{}
		rows.Add(rows.AddSequence([]int32{0}, 0), 3, 0, pair[0].limits.PageSize)
		begin := time.Now()
		err := pair[0].Forward(rows, []int32{0})
		other := <-ended
		if noticed := err != nil && other != nil && strings.Contains(err.Error(), "were about to compute different passes"); noticed != check {
			t.Errorf("--check-ranks %v: after %s node 0 says %v, node 1 %v", check, time.Since(begin), err, other)
		}
	}
}

// twoNodes are a small model's two ranks, each of a node of its own.
func twoNodes(t *testing.T, check bool) (pair [2]*Ranks) {
	t.Helper()
	address := freeport.Address(t)
	source, config, _ := readFixture(t, "llama")
	var wg sync.WaitGroup
	for i := range pair {
		wg.Go(func() {
			nodes, err := collective.Join(t.Context(), collective.JoinConfig{Node: i, Nodes: 2, Ranks: 1, Address: address,
				Wait: time.Minute, Silence: 30 * time.Second, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(nodes.Close)
			spec := fixtureSpec(source, config, 2)
			spec.Nodes, spec.CheckRanks = nodes, check
			if pair[i], err = Load(t.Context(), spec); err != nil {
				t.Error(err)
			}
		})
	}
	if wg.Wait(); t.Failed() {
		t.FailNow()
	}
	return pair
}
