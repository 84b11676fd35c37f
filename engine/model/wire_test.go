package model

import (
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
)

// passOf is a command with rows of two sequences, the second one's a tree's.
func passOf() command {
	rows := &compute.Rows{}
	a, b := rows.AddSequence([]int32{3, 1}, 0), rows.AddSequence([]int32{0, 2}, 5)
	rows.Add(a, 7, 16, 16)
	rows.AddNode(b, 8, 20, 0, 0, 1, 16)
	rows.AddNode(b, 9, 20, 1, 1, 3, 16)
	rows.Kept = []int32{-1, 2, 0}
	return command{kind: passForward, rows: rows, want: []int32{0, 2}, features: []int32{5}}
}

var wireLimits = Limits{MaxRows: 4, Pages: 4, PageSize: 16, Kept: 3}

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
	for _, c := range []struct {
		name string
		edit func(r *compute.Rows)
		says string
	}{
		{"too many rows", func(r *compute.Rows) {
			for range 3 {
				r.Add(0, 1, 1, 16)
			}
		}, "6 rows: allowed are 4"},
		{"a list too short", func(r *compute.Rows) { r.Slots = r.Slots[:1] }, "must be as many"},
		{"kept for some", func(r *compute.Rows) { r.Kept = r.Kept[:2] }, "3 rows, of which 2"},
		{"kept beyond the end", func(r *compute.Rows) { r.Kept[0] = 3 }, "row 0 is kept as 3: allowed is up to 2"},
		{"masks for some", func(r *compute.Rows) { r.Masks = r.Masks[:2] }, "must be as many"},
		{"a sequence that is not there", func(r *compute.Rows) { r.Seqs[1] = 2 }, "row 1"},
		{"a slot beyond the pool", func(r *compute.Rows) { r.Slots[2] = 64 }, "row 2"},
		{"a negative slot", func(r *compute.Rows) { r.Slots[0] = -1 }, "row 0"},
		{"a position beyond the table", func(r *compute.Rows) { r.Positions[0] = 32 }, "beyond its table of 2 pages"},
		{"a node beyond the table", func(r *compute.Rows) { r.Bases[2] = 31 }, "beyond its table of 2 pages"},
		{"a negative start", func(r *compute.Rows) { r.Starts[0] = -1 }, "row 0: its first position"},
		{"a negative base under a high node", func(r *compute.Rows) { r.Bases[2], r.Masks[2] = -5, 1<<20 }, "row 2: its first position"},
		{"a page beyond the pool", func(r *compute.Rows) { r.Tables[1][1] = 4 }, "page 4: allowed is 0 to 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := passOf()
			c.edit(sent.rows)
			var got command
			if err := got.decode(sent.encode(nil), wireLimits); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: want %q", err, c.says)
			}
		})
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

// A rank whose input is another is noticed before anything is computed with it.
func TestRanksThatDifferAreNoticed(t *testing.T) {
	for _, check := range []bool{true, false} {
		pair := twoNodes(t, check)
		ended := make(chan error, 1)
		go func() {
			b, err := pair[1].nodes.Receive(nil)
			var c command
			if err == nil {
				err = c.decode(b, pair[1].limits)
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
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close() // for node 0
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
