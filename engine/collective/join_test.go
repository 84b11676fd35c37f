package collective

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/internal/freeport"
)

// joining is a Join that is under way. Its context ends with errWait as it does when
// the time to wait is over.
type joining struct {
	log    chan string // its messages, as long as there is room
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed with the two below set
	nodes  *Nodes
	err    error
}

// join begins to join as a node of a group of three, with an hour to wait.
func join(t *testing.T, address string, node int, edit func(c *JoinConfig)) *joining {
	t.Helper()
	c := JoinConfig{Node: node, Nodes: 3, Ranks: 2, Address: address, Secret: []byte("secret"),
		Wait: time.Hour, Silence: patience}
	if edit != nil {
		edit(&c)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	j := &joining{log: make(chan string, 1000), cancel: cancel, ended: make(chan struct{})}
	c.Log = slog.New(toChannel{slog.DiscardHandler, j.log})
	go func() {
		defer close(j.ended)
		j.nodes, j.err = Join(ctx, c)
	}()
	t.Cleanup(func() {
		cancel(nil)
		if <-j.ended; j.nodes != nil {
			j.nodes.Close()
		}
	})
	return j
}

// end waits for the end of a Join.
func (j *joining) end(t *testing.T) error {
	t.Helper()
	select {
	case <-j.ended:
	case <-time.After(patience):
		t.Fatal("it still waits")
	}
	return j.err
}

// toChannel sends the messages of a log to a channel.
type toChannel struct {
	slog.Handler
	log chan string
}

func (c toChannel) Enabled(context.Context, slog.Level) bool { return true }

func (c toChannel) Handle(_ context.Context, r slog.Record) error {
	select {
	case c.log <- r.Message:
	default:
	}
	return nil
}

// says waits until the log has a message, after the ones that were waited for before.
func (j *joining) says(t *testing.T, want string) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case got := <-j.log:
			if got == want {
				return
			}
		case <-j.ended:
			t.Fatalf("it ends with %v before it says %q", j.err, want)
		case <-late:
			t.Fatalf("it does not say %q", want)
		}
	}
}

// must fail with CollectiveFailed of a rank, and say something.
func (j *joining) must(t *testing.T, who string, rank int, says string) {
	t.Helper()
	var f *fault.Error
	if err := j.end(t); !errors.As(err, &f) || f.Reason != fault.CollectiveFailed || f.Rank != rank || !strings.Contains(err.Error(), says) {
		t.Errorf("%s ends with %v: want rank %d and %q", who, err, rank, says)
	}
}

// half is a process that does a node's handshakes by hand.
type half struct{ control, data net.Conn }

func halfNode(t *testing.T, address string, node, port int) half {
	t.Helper()
	_ = dialWhenThere(t, address).Close()
	j := &joiner{cfg: JoinConfig{Secret: []byte("secret")}}
	same := []Setting{{"number of nodes", "3"}, {"ranks of a node", "2"}, {"byte order", byteOrder()}}
	control, token, _, err := j.attempt(t.Context(), address, hello{Node: node, Port: port, Same: same})
	if err != nil {
		t.Fatal(err)
	}
	data, _, _, err := j.attempt(t.Context(), address, hello{Node: node, Data: true, Session: token})
	if err != nil {
		t.Fatal(err)
	}
	h := half{control, data}
	t.Cleanup(h.close)
	return h
}

func (h half) close() {
	_ = h.control.Close()
	_ = h.data.Close()
}

// hear reads the next message of node 0.
func (h half) hear(t *testing.T) (frameKind, string) {
	t.Helper()
	var buf bytes.Buffer
	_ = h.control.SetReadDeadline(time.Now().Add(patience))
	kind, err := readFrame(h.control, &buf, maxHello)
	if err != nil {
		t.Fatal(err)
	}
	return kind, buf.String()
}

// The others must dial where a node listens now, not where it did before.
func TestANodeThatStartsAgainIsMet(t *testing.T) {
	address := freeport.Address(t)
	lead := join(t, address, 0, nil)
	halfNode(t, address, 1, 65535).close()
	last := join(t, address, 2, nil)
	lead.says(t, "a node has ended while others were waited for")
	all := []*joining{lead, join(t, address, 1, nil), last}
	for i, j := range all {
		if err := j.end(t); err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
	}
}

func TestTwoProcessesOfOneNumberAreTold(t *testing.T) {
	address := freeport.Address(t)
	lead := join(t, address, 0, nil)
	older := halfNode(t, address, 1, 1)
	lead.says(t, "a node has joined")
	younger := join(t, address, 1, nil)
	const says = "two processes have joined as node 1, from 127.0.0.1:"
	if kind, b := older.hear(t); kind != frameAbort || !strings.Contains(b, says) {
		t.Errorf("the older process gets message %d, %s: want %q", kind, b, says)
	}
	lead.says(t, "a node has joined")
	lead.cancel(errWait)
	lead.must(t, "node 0", 4, "node 2 has not joined: "+says)
	younger.must(t, "the younger process", 4, says)
}

func TestANodeThatWaitsHearsWhyItWasInVain(t *testing.T) {
	address := freeport.Address(t)
	lead := join(t, address, 0, nil)
	other := join(t, address, 1, nil)
	lead.says(t, "a node has joined")
	lead.cancel(errWait)
	const says = "the 3 nodes of --nnodes were not together within --dist-timeout 1h0m0s: node 2 has not joined"
	lead.must(t, "node 0", 4, says)
	other.must(t, "node 1", 4, says)
}

// A node that is lost while the others meet is the one that is named, although
// node 1 waits for it too, and node 0 for both.
func TestANodeThatEndsWhileTheOthersMeetIsNamed(t *testing.T) {
	address := freeport.Address(t)
	lead := join(t, address, 0, nil)
	last := halfNode(t, address, 2, 0)
	other := join(t, address, 1, nil)
	kind, b := last.hear(t)
	var addresses []string
	if err := json.Unmarshal([]byte(b), &addresses); kind != framePeers || err != nil || len(addresses) != 3 {
		t.Fatalf("message %d, %s", kind, b)
	}
	last.close()
	for i, j := range []*joining{lead, other} {
		j.must(t, fmt.Sprint("node ", i), 4, "rank 4, on node 2 at 127.0.0.1:")
	}
}

// A node is stopped while it waits for node 0 to find the others.
func TestANodeThatHasMetNode0CanBeCancelled(t *testing.T) {
	address := freeport.Address(t)
	join(t, address, 0, nil)
	node := join(t, address, 1, nil)
	node.says(t, "met node 0: waiting until it has met all")
	node.cancel(nil)
	if err := node.end(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Connections that say nothing keep no node out, and are no reason for anything.
func TestAFloodOfStrangersDoesNotDisturb(t *testing.T) {
	address := freeport.Address(t)
	edit := func(c *JoinConfig) { c.Nodes = 2 }
	lead := join(t, address, 0, edit)
	for range 8 * atOnce {
		conn := dialWhenThere(t, address)
		defer func() { _ = conn.Close() }()
	}
	node := join(t, address, 1, edit)
	for _, j := range []*joining{lead, node} {
		if err := j.end(t); err != nil {
			t.Error(err)
		}
	}
}

func TestStrangersAreNoReason(t *testing.T) {
	address := freeport.Address(t)
	lead := join(t, address, 0, nil)
	conn := dialWhenThere(t, address)
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Log(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil { // until it is refused
		t.Log(err)
	}
	lead.cancel(errWait)
	if err := lead.end(t); err == nil || !strings.HasSuffix(err.Error(), "node 1 has not joined") {
		t.Error(err)
	}
}

// A hello that was overheard is worth nothing on another connection.
func TestAHelloCannotBePlayedBack(t *testing.T) {
	address := freeport.Address(t)
	join(t, address, 0, nil)
	secret := []byte("secret")
	say := func(h hello, overheard []byte) (answer, []byte, error) {
		conn := dialWhenThere(t, address)
		defer func() { _ = conn.Close() }()
		nonce, err := greeted(conn)
		if err != nil {
			t.Fatal(err)
		}
		if overheard == nil {
			overheard, err = json.Marshal(h)
			if err != nil {
				t.Fatal(err)
			}
			overheard = append(overheard, code(secret, sideDials, nonce, overheard)...)
		}
		if err := writeFrame(conn, frameHello, overheard, helloLimit); err != nil {
			t.Fatal(err)
		}
		var a answer
		err = receive(conn, frameAnswer, &a, secret, sideAnswers, h.Nonce)
		return a, overheard, err
	}
	h := hello{Nonce: newNonce(), Node: 1, Same: []Setting{{"number of nodes", "3"}, {"ranks of a node", "2"}, {"byte order", byteOrder()}}}
	a, overheard, err := say(h, nil)
	if err != nil || a.Session == "" {
		t.Fatalf("an honest hello gets %+v, %v", a, err)
	}
	if a, _, err := say(hello{}, overheard); err != nil || a.Session != "" || a.Refused != errCode.Error() {
		t.Errorf("the same bytes on another connection get %+v, %v", a, err)
	}
}
