package collective

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

// Nodes is this process's end of a group of processes, one a node, each with
// the same number of ranks: those of node n are n·Ranks, n·Ranks + 1, …. Join
// makes it. Node 0 leads: what it broadcasts the others receive, in order.
//
// Every two nodes have two connections: one for sums, and one for control, on
// which both give signs of life. When one ends or falls silent, or a rank
// aborts, the whole group has failed, on every node.
type Nodes struct {
	cfg   JoinConfig
	peers []*peer // by node; nil for this one
	log   *slog.Logger

	sequence uint64 // exchanges so far
	out      []byte // of an exchange

	commands chan []byte
	spare    chan []byte
	leaving  chan struct{}
	leave    sync.Once

	failed  chan struct{}
	err     atomic.Pointer[error]
	group   atomic.Pointer[group] // that an abort releases
	stopped atomic.Bool           // the end has come without a fault
	over    chan struct{}         // closed with stopped
	overs   sync.Once
}

// peer is another node.
type peer struct {
	node          int
	address       string
	port          int    // where nodes of a higher number reach it
	token         string // that its two connections have in common
	control, data net.Conn

	mu sync.Mutex // of writes to control
	in []byte     // of an exchange
}

// beats are how many signs of life a node gives in the time after which it is
// taken for lost.
const beats = 5

// graceForReason is how long a node whose connection ended may have said why, on
// the other connection or by way of another node.
const graceForReason = 500 * time.Millisecond

// start begins to listen to the others; the group is complete.
func (n *Nodes) start() {
	for _, p := range n.peers {
		if p == nil {
			continue
		}
		go n.listen(p)
		go n.beat(p)
	}
}

// Node is this process's number.
func (n *Nodes) Node() int { return n.cfg.Node }

// Count is the number of processes.
func (n *Nodes) Count() int { return n.cfg.Nodes }

// FirstRank is the first of this process's ranks.
func (n *Nodes) FirstRank() int { return n.cfg.Node * n.cfg.Ranks }

// LocalRanks is the number of each process's ranks.
func (n *Nodes) LocalRanks() int { return n.cfg.Ranks }

// Failed is closed when the group has failed; Err then says why.
func (n *Nodes) Failed() <-chan struct{} { return n.failed }

// Leaving is closed when another node has been told to stop (node 0 only).
func (n *Nodes) Leaving() <-chan struct{} { return n.leaving }

// Err is what the group has failed of, or nil. Its rank is the one at fault.
func (n *Nodes) Err() error {
	if e := n.err.Load(); e != nil {
		return *e
	}
	return nil
}

// Abort ends the group for err, and tells the others. An err without a reason
// of its own gets CollectiveFailed.
func (n *Nodes) Abort(err error) { n.fail(withReason(err), true) }

// fail is Abort for an err that has a reason; tell says that the others may not
// know of it.
func (n *Nodes) fail(err error, tell bool) {
	if n.stopped.Load() || !n.err.CompareAndSwap(nil, &err) {
		return
	}
	if g := n.group.Load(); g != nil {
		g.release(err)
	}
	if tell {
		n.tell(err)
	}
	close(n.failed)
	for _, p := range n.peers {
		if p != nil {
			_ = p.data.SetDeadline(time.Unix(1, 0)) // releases who waits there
		}
	}
}

// abortNote is an abort, as the other nodes hear of it.
type abortNote struct {
	Rank    int          `json:"rank"`
	Reason  fault.Reason `json:"reason"`
	Message string       `json:"message"`
}

// note is err as the other nodes hear of it.
func (n *Nodes) note(err error) []byte {
	note := abortNote{Rank: n.FirstRank(), Reason: fault.ReasonOf(err), Message: err.Error()}
	var f *fault.Error
	if errors.As(err, &f) {
		note.Rank = f.Rank
	}
	if len(note.Message) > maxMessage {
		note.Message = note.Message[:maxMessage]
	}
	b, _ := json.Marshal(note) // ints and strings always encode
	return b
}

// tell says to all that the group has failed. Who cannot be told finds out.
func (n *Nodes) tell(err error) {
	b := n.note(err)
	for _, p := range n.peers {
		if p != nil {
			n.tellOne(p, b)
		}
	}
}

func (n *Nodes) tellOne(p *peer, note []byte) {
	if err := n.post(p, frameAbort, note, graceForReason); err != nil {
		n.log.Debug("a node did not hear of the failure", "node", p.node, "error", err)
	}
}

// part tells a node, of a group that is not complete, that it is without it for
// err, and closes its connections.
func (n *Nodes) part(p *peer, err error) {
	if p.control != nil {
		n.tellOne(p, n.note(err))
	}
	p.close()
}

// heard ends the group for a failure that another node tells of.
func (n *Nodes) heard(p *peer, b []byte) { n.fail(n.told(p, b), false) }

// told is the failure that another node tells of.
func (n *Nodes) told(p *peer, b []byte) error {
	var note abortNote
	if err := json.Unmarshal(b, &note); err != nil || note.Message == "" {
		note = abortNote{Rank: p.node * n.cfg.Ranks, Message: "it did not say why"}
	}
	err := fmt.Errorf("rank %d has ended: %s: %s", note.Rank, note.Reason, note.Message)
	if note.Reason == fault.CollectiveFailed {
		err = errors.New(note.Message) // of whatever rank it is about
	}
	return &fault.Error{Reason: fault.CollectiveFailed, Rank: note.Rank, Err: err}
}

// lost ends the group for a node whose connection is of no use any more.
func (n *Nodes) lost(p *peer, err error) {
	select {
	case <-n.failed:
		return
	case <-n.over:
		return
	case <-time.After(graceForReason):
	}
	rank := p.node * n.cfg.Ranks
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("its process has ended")
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("no sign of life for %s", n.cfg.Silence)
	}
	n.fail(&fault.Error{Reason: fault.CollectiveFailed, Rank: rank,
		Err: fmt.Errorf("rank %d, on node %d at %s, is lost: %w", rank, p.node, p.address, err)}, true)
}

// post sends a message on a control connection.
func (n *Nodes) post(p *peer, kind frameKind, payload []byte, limit time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return writeFrame(p.control, kind, payload, limit)
}

// beat gives signs of life.
func (n *Nodes) beat(p *peer) {
	tick := time.NewTicker(n.cfg.Silence / beats)
	defer tick.Stop()
	for {
		select {
		case <-n.failed:
			return
		case <-n.over:
			return
		case <-tick.C:
		}
		if err := n.post(p, frameBeat, nil, n.cfg.Silence); err != nil {
			n.lost(p, err)
			return
		}
	}
}

// listen reads a control connection until it ends.
func (n *Nodes) listen(p *peer) {
	var buf bytes.Buffer
	for {
		if err := p.control.SetReadDeadline(time.Now().Add(n.cfg.Silence)); err != nil {
			n.lost(p, err)
			return
		}
		kind, err := readFrame(p.control, &buf, maxCommand)
		if err != nil {
			n.lost(p, err)
			return
		}
		switch kind {
		case frameBeat:
		case frameCommand:
			n.take(buf.Bytes())
		case frameAbort:
			n.heard(p, buf.Bytes())
			return
		case frameStop:
			n.end()
			return
		case frameLeave:
			n.leave.Do(func() { close(n.leaving) })
		default:
			n.lost(p, fmt.Errorf("it sent message %d, which is none", kind))
			return
		}
	}
}

// take hands a command on. It waits while the ranks are behind.
func (n *Nodes) take(b []byte) {
	var c []byte
	select {
	case c = <-n.spare:
	default:
	}
	select {
	case n.commands <- append(c[:0], b...):
	case <-n.failed:
	}
}

func (n *Nodes) end() {
	n.stopped.Store(true)
	n.overs.Do(func() { close(n.over) })
}

// Broadcast sends b to all other nodes (node 0 only). They may be behind.
func (n *Nodes) Broadcast(b []byte) error {
	if len(b) > maxCommand {
		return fault.Errorf(fault.Internal, "a command of %d bytes for the other nodes: allowed are %d", len(b), maxCommand)
	}
	for _, p := range n.peers {
		if p == nil {
			continue
		}
		if err := n.post(p, frameCommand, b, n.cfg.Silence); err != nil {
			n.lost(p, err)
			return n.Err()
		}
	}
	return n.Err()
}

// Receive is the next of node 0's broadcasts, valid until the call after it, io.EOF
// after its Close, or the error of the group.
func (n *Nodes) Receive(last []byte) ([]byte, error) {
	if last != nil {
		select {
		case n.spare <- last:
		default:
		}
	}
	select { // what came before the end first
	case c := <-n.commands:
		return c, nil
	default:
	}
	select {
	case c := <-n.commands:
		return c, nil
	case <-n.failed:
		return nil, n.Err()
	case <-n.over:
		return nil, io.EOF
	}
}

// Leave tells node 0 that this process has been told to stop: it may finish what
// it has, and then Close.
func (n *Nodes) Leave() {
	if p := n.peers[0]; p != nil {
		if err := n.post(p, frameLeave, nil, n.cfg.Silence); err != nil {
			n.log.Debug("node 0 did not hear that this node stops", "error", err)
		}
	}
}

// Close ends the group without a fault; node 0's ends it for all.
func (n *Nodes) Close() {
	if n.Err() == nil {
		n.end()
		for _, p := range n.peers {
			if p != nil && n.cfg.Node == 0 {
				if err := n.post(p, frameStop, nil, time.Second); err != nil {
					n.log.Debug("a node did not hear of the end", "node", p.node, "error", err)
				}
			}
		}
	}
	for _, p := range n.peers {
		if p != nil {
			p.close()
		}
	}
}

func (p *peer) close() {
	for _, c := range []net.Conn{p.control, p.data} {
		if c != nil {
			_ = c.Close() // nothing is left to be said
		}
	}
}
