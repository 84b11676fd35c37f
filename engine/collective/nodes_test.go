package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/internal/freeport"
)

// joinAll joins a group of nodes with ranks each; edit may change what node i says.
func joinAll(t *testing.T, nodes, ranks int, edit func(i int, c *JoinConfig)) ([]*Nodes, []error) {
	t.Helper()
	address := freeport.Address(t)
	all, errs := make([]*Nodes, nodes), make([]error, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		c := JoinConfig{Node: i, Nodes: nodes, Ranks: ranks, Address: address, Secret: []byte("secret"), Same: []Setting{{"--page-size", "16"}},
			Wait: patience, Silence: patience, Log: slog.New(slog.DiscardHandler)}
		if edit != nil {
			edit(i, &c)
		}
		wg.Go(func() { all[i], errs[i] = Join(t.Context(), c) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, n := range all {
			if n != nil {
				n.Close()
			}
		}
	})
	return all, errs
}

// together joins a group that must come about.
func together(t *testing.T, nodes, ranks int, edit func(i int, c *JoinConfig)) []*Nodes {
	t.Helper()
	all, errs := joinAll(t, nodes, ranks, edit)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNodesAddAndGatherAsOneProcess(t *testing.T) {
	for _, c := range []struct{ nodes, ranks int }{{2, 1}, {2, 2}, {3, 1}, {4, 2}} {
		t.Run(fmt.Sprintf("%d nodes of %d", c.nodes, c.ranks), func(t *testing.T) {
			size := c.nodes * c.ranks
			const rounds, most = 60, 40_000 // above and below what is sent at once
			inputs := make([][][]float32, size)
			rng := rand.New(rand.NewPCG(uint64(size), 2))
			for r := range inputs {
				for k := range rounds {
					n := 1 + rng.IntN(300)
					if k%20 == 7 {
						n = most
					}
					if r > 0 {
						n = len(inputs[0][k])
					}
					x := make([]float32, n)
					for i := range x {
						x[i] = rng.Float32() - 0.5
					}
					inputs[r] = append(inputs[r], x)
				}
			}
			work := func(into [][][]float32) func(c Communicator) {
				return func(c Communicator) {
					for k := range rounds {
						x := slices.Clone(inputs[c.Rank()][k])
						if k%3 == 2 {
							dst := make([]float32, len(x)*c.Size())
							c.AllGather(dst, x, 1, len(x))
							x = dst
						} else {
							c.AllReduce(x)
						}
						into[c.Rank()] = append(into[c.Rank()], x)
					}
				}
			}
			want, got := make([][][]float32, size), make([][][]float32, size)
			each(NewLocal(size, most), work(want))
			var ranks []Communicator
			for _, n := range together(t, c.nodes, c.ranks, nil) {
				ranks = append(ranks, n.Communicators(most)...)
			}
			each(ranks, work(got))
			for r := range want {
				for k := range want[r] {
					if !slices.Equal(want[r][k], got[r][k]) {
						t.Fatalf("rank %d, call %d: the nodes' result is not that of one process", r, k)
					}
				}
			}
		})
	}
}

func TestBroadcastsArriveInOrderAndEnd(t *testing.T) {
	all := together(t, 3, 1, nil)
	const count = 500
	var wg sync.WaitGroup
	for _, n := range all[1:] {
		wg.Go(func() {
			var last []byte
			for i := range count {
				b, err := n.Receive(last)
				if err != nil || string(b) != fmt.Sprint("command ", i) {
					t.Errorf("node %d: command %d is %q, error %v", n.Node(), i, b, err)
					return
				}
				last = b
			}
			if b, err := n.Receive(last); !errors.Is(err, io.EOF) {
				t.Errorf("node %d: after the end %q, error %v", n.Node(), b, err)
			}
		})
	}
	for i := range count {
		if err := all[0].Broadcast(fmt.Append(nil, "command ", i)); err != nil {
			t.Fatal(err)
		}
	}
	all[0].Close()
	wg.Wait()
	for _, n := range all {
		if n.Err() != nil {
			t.Errorf("node %d has failed: %v", n.Node(), n.Err())
		}
	}
}

// failure waits for the failure of a node.
func failure(t *testing.T, n *Nodes) *fault.Error {
	t.Helper()
	select {
	case <-n.Failed():
	case <-time.After(patience):
		t.Fatalf("node %d still believes in its group", n.Node())
	}
	var f *fault.Error
	if !errors.As(n.Err(), &f) || f.Reason != fault.CollectiveFailed {
		t.Fatalf("node %d failed with %v, reason %s", n.Node(), n.Err(), fault.ReasonOf(n.Err()))
	}
	return f
}

func TestANodeThatEndsEndsAll(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(n *Nodes) // of node 1, of ranks 2 and 3
		rank int
		says string
	}{
		{"its process is gone", func(n *Nodes) { n.stopped.Store(true); closeAll(n) }, 2, "rank 2, on node 1 at"},
		{"a rank's fault", func(n *Nodes) {
			n.Abort(&fault.Error{Reason: fault.DeviceFault, Rank: 3, Err: errors.New("the GPU fell off")})
		}, 3, "rank 3 has ended: DeviceFault: the GPU fell off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := together(t, 3, 2, nil)
			var waiting sync.WaitGroup
			for _, n := range []*Nodes{all[0], all[2]} {
				for _, comm := range n.Communicators(8) {
					waiting.Go(func() { comm.AllReduce(make([]float32, 8)) })
				}
			}
			c.end(all[1])
			for _, n := range []*Nodes{all[0], all[2]} {
				if f := failure(t, n); f.Rank != c.rank || !strings.Contains(f.Error(), c.says) {
					t.Errorf("node %d: rank %d, %q: want rank %d, %q", n.Node(), f.Rank, f, c.rank, c.says)
				}
			}
			waiting.Wait() // nobody waits for ever
		})
	}
}

func closeAll(n *Nodes) {
	for _, p := range n.peers {
		if p != nil {
			p.close()
		}
	}
}

// A process that is stopped keeps its connections and says nothing.
func TestASilentNodeIsLost(t *testing.T) {
	all := together(t, 2, 1, func(i int, c *JoinConfig) {
		c.Silence = 2 * time.Second
		if i == 1 {
			c.Silence = time.Hour // and so are its signs of life
		}
	})
	if f := failure(t, all[0]); f.Rank != 1 || !strings.Contains(f.Error(), "no sign of life for 2s") {
		t.Errorf("rank %d: %v", f.Rank, f)
	}
}

func TestRanksThatDoOtherThingsAreTold(t *testing.T) {
	all := together(t, 2, 1, nil)
	var wg sync.WaitGroup
	for i, n := range all {
		c := n.Communicators(8)[0]
		wg.Go(func() {
			if i == 0 {
				c.AllReduce(make([]float32, 8))
			} else {
				c.AllReduce(make([]float32, 7))
			}
		})
	}
	wg.Wait()
	for _, n := range all {
		if f := failure(t, n); !strings.Contains(f.Error(), "all-reduce of 28 bytes") || !strings.Contains(f.Error(), "all-reduce of 32 bytes") {
			t.Errorf("node %d: %v", n.Node(), f)
		}
	}
}

func TestNodesAgreeOnNumbers(t *testing.T) {
	all := together(t, 3, 1, nil)
	var wg sync.WaitGroup
	for _, n := range all {
		wg.Go(func() {
			got, err := n.Numbers(int64(n.Node())-1, 1<<62)
			if want := fmt.Sprint([][]int64{{-1, 1 << 62}, {0, 1 << 62}, {1, 1 << 62}}); err != nil || fmt.Sprint(got) != want {
				t.Errorf("node %d: %v, error %v: want %s", n.Node(), got, err, want)
			}
		})
	}
	wg.Wait()
}

func TestWhoMustNotJoinIsRefusedByName(t *testing.T) {
	for _, c := range []struct {
		name   string
		edit   func(c *JoinConfig) // of node 1
		reason fault.Reason        // of node 1
		says   string
	}{
		{"another flag", func(c *JoinConfig) { c.Same = []Setting{{"--page-size", "32"}} }, fault.InvalidConfig, "--page-size is 32 on node 1 and 16 on node 0"},
		{"a flag less", func(c *JoinConfig) { c.Same = nil }, fault.InvalidConfig, "--page-size is not set on node 1 and 16 on node 0"},
		{"a flag more", func(c *JoinConfig) { c.Same = append(c.Same, Setting{"--draft-model", "x"}) }, fault.InvalidConfig, "--draft-model is x on node 1 and not set on node 0"},
		{"another size", func(c *JoinConfig) { c.Nodes = 3; c.Node = 2 }, fault.InvalidConfig, "allowed is 0 to 1"},
		{"other ranks", func(c *JoinConfig) { c.Ranks = 2 }, fault.InvalidConfig, "ranks of a node is 2 on node 1 and 1 on node 0"},
		{"another secret", func(c *JoinConfig) { c.Secret = []byte("guess") }, fault.InvalidConfig, "--dist-secret-file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := freeport.Address(t)
			two := func(cfg *JoinConfig) {
				cfg.Nodes, cfg.Ranks, cfg.Same = 2, 1, []Setting{{"--page-size", "16"}}
			}
			lead := join(t, address, 0, two)
			other := join(t, address, 1, func(cfg *JoinConfig) {
				two(cfg)
				c.edit(cfg)
			})
			if err := other.end(t); fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.says) {
				t.Errorf("node 1: %v, reason %s: want %q", err, fault.ReasonOf(err), c.says)
			}
			lead.says(t, "refused a node")
			lead.cancel(errWait)
			if err := lead.end(t); fault.ReasonOf(err) != fault.CollectiveFailed || !strings.Contains(err.Error(), "node 1 has not joined: ") || !strings.Contains(err.Error(), "refused") {
				t.Errorf("node 0: %v, reason %s", err, fault.ReasonOf(err))
			}
		})
	}
}

// A group comes about although others talk to its port.
func TestStrangersDoNotDisturb(t *testing.T) {
	address := freeport.Address(t)
	cfg := JoinConfig{Nodes: 2, Ranks: 1, Address: address, Secret: []byte("secret"), Wait: patience, Silence: patience, Log: slog.New(slog.DiscardHandler)}
	lead := make(chan error, 1)
	go func() {
		n, err := Join(t.Context(), cfg)
		if err == nil {
			defer n.Close()
		}
		lead <- err
	}()
	for i, say := range [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), bytes.Repeat([]byte{0xff}, 100_000), {byte(frameHello), 0xff, 0xff, 0xff, 0x7f}, nil, append([]byte{byte(frameHello), 40, 0, 0, 0}, make([]byte, 40)...)} {
		conn := dialWhenThere(t, address)
		defer func() { _ = conn.Close() }() // the last that says nothing stays
		if _, err := conn.Write(say); err != nil {
			t.Logf("stranger %d: %v", i, err) // it may have been refused already
		}
	}
	cfg.Node = 1
	n, err := Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := <-lead; err != nil {
		t.Fatal(err)
	}
}

func dialWhenThere(t *testing.T, address string) net.Conn {
	t.Helper()
	for {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			return conn
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAJoinCanBeCancelled(t *testing.T) {
	for node := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := Join(ctx, JoinConfig{Node: node, Nodes: 2, Ranks: 1, Address: freeport.Address(t), Wait: time.Hour, Silence: time.Hour, Log: slog.New(slog.DiscardHandler)})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("node %d: %v", node, err)
		}
	}
}

// Whatever bytes arrive, no more is read or kept than allowed, and nothing panics.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 1, 2})
	f.Add(append([]byte{1, 34, 0, 0, 0, '{', '}'}, code(nil, sideDials, nil, []byte("{}"))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hello
		if err := receive(bytes.NewReader(b), frameHello, &h, nil, sideDials, nil); err == nil && len(b) < frameHeader+macBytes {
			t.Errorf("%d bytes are no hello", len(b))
		}
		var buf bytes.Buffer
		if _, err := readFrame(bytes.NewReader(b), &buf, 1000); err == nil && buf.Len() > 1000 {
			t.Errorf("%d bytes were read", buf.Len())
		}
	})
}
