package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

// incoming is a connection whose dialler has been welcomed. Its two have the same
// token; they may come in any order.
type incoming struct {
	hello
	token string
	conn  net.Conn
}

// accept takes the two connections of each node from number first on, then closes
// l. A node that comes again takes the place of its last start, and one that has
// ended before all were there is waited for.
func (j *joiner) accept(ctx context.Context, l net.Listener, judge func(hello) answer, first int) error {
	came := make(chan incoming)
	refusals := make(chan string, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = l.Close() }()
	go j.listen(ctx, l, judge, came, refusals)
	note := time.NewTicker(waitNote)
	defer note.Stop()
	for {
		missing := j.missing(first)
		if len(missing) == 0 {
			if missing = j.ended(first); len(missing) == 0 {
				return nil
			}
		}
		select {
		case in := <-came:
			j.place(in)
		case j.refused = <-refusals:
		case <-note.C:
			j.cfg.Log.Info("waiting for other nodes", "missing", missing, "address", l.Addr().String())
		case <-ctx.Done():
			select {
			case j.refused = <-refusals:
			default:
			}
			return j.inVain(ctx, fmt.Sprintf("node %d has not joined", missing[0]), missing[0])
		}
	}
}

// missing are the nodes from number first on that lack a connection.
func (j *joiner) missing(first int) (nodes []int) {
	for i := first; i < j.cfg.Nodes; i++ {
		if p := j.nodes.peers[i]; p == nil || p.control == nil || p.data == nil {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// ended gives up the nodes from number first on that have ended since they joined.
func (j *joiner) ended(first int) (nodes []int) {
	for i := first; i < j.cfg.Nodes; i++ {
		if p := j.nodes.peers[i]; !p.waits() {
			j.cfg.Log.Warn("a node has ended while others were waited for", "node", i, "address", p.address)
			p.close()
			j.nodes.peers[i] = nil
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// waits tells of a node that has joined, and so has nothing to say yet, whether it
// is still there.
func (p *peer) waits() bool {
	_ = p.control.SetReadDeadline(time.Now().Add(5 * time.Millisecond)) // after it, not even an end is read
	_, err := p.control.Read(make([]byte, 1))
	_ = p.control.SetReadDeadline(time.Time{})
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// maxEarly bounds the connections that wait for another one.
const maxEarly = 64

// place keeps a connection.
func (j *joiner) place(in incoming) {
	p := j.nodes.peers[in.Node]
	defer func() {
		if p != nil && p.data != nil && p.token == in.token {
			j.cfg.Log.Info("a node has joined", "node", p.node, "from", p.address)
		}
	}()
	switch {
	case !in.Data:
		if p != nil {
			j.replace(p, in.conn.RemoteAddr().String())
		}
		p = &peer{node: in.Node, address: in.conn.RemoteAddr().String(), port: in.Port, token: in.token, control: in.conn, data: j.early[in.token]}
		j.nodes.peers[in.Node] = p
		delete(j.early, in.token)
	case p != nil && p.token == in.token && p.data == nil:
		p.data = in.conn
	case len(j.early) < maxEarly && j.early[in.token] == nil:
		j.early[in.token] = in.conn
	default:
		_ = in.conn.Close()
	}
}

// replace parts with a node that has joined again. If what joined before still
// runs, two processes say to be the same node: which of them is right cannot be
// told, so both the user and the older one hear of it.
func (j *joiner) replace(p *peer, by string) {
	if !p.waits() {
		p.close() // it has ended, or was about to
		return
	}
	j.refused = fmt.Sprintf("two processes have joined as node %d, from %s and from %s: if both run, give each a --node-rank of its own", p.node, p.address, by)
	j.cfg.Log.Warn("a node has joined again", "node", p.node, "before", p.address, "now", by)
	j.nodes.part(p, &fault.Error{Reason: fault.CollectiveFailed, Rank: p.node * j.cfg.Ranks, Err: errors.New(j.refused)})
}

// handshakes are the connections whose dialler has yet to prove who it is, the
// oldest first. There are at most atOnce: one more ends the oldest, so that
// strangers who say nothing keep no node out.
type handshakes struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (s *handshakes) begin(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns = append(s.conns, c); len(s.conns) > atOnce {
		_ = s.conns[0].Close()
		s.conns = slices.Delete(s.conns, 0, 1)
	}
}

// end takes c out; false: it has been closed.
func (s *handshakes) end(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.conns, c)
	if i < 0 {
		return false
	}
	s.conns = slices.Delete(s.conns, i, i+1)
	return true
}

// closeAll ends all of them.
func (s *handshakes) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// listen shakes hands with all that dial, until l is closed. Only refusals of those
// that speak as nodes do are reported: anybody can make the others.
func (j *joiner) listen(ctx context.Context, l net.Listener, judge func(hello) answer, came chan<- incoming, refusals chan<- string) {
	var open handshakes
	defer open.closeAll()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			j.cfg.Log.Warn("a connection to the nodes' port was not taken", "error", err)
			select { // too many open files, say
			case <-time.After(dialPause):
				continue
			case <-ctx.Done():
				return
			}
		}
		open.begin(conn)
		go func() {
			h, token, err := j.shake(conn, judge)
			if !open.end(conn) {
				return
			}
			if err != nil {
				_ = conn.Close()
				j.reportRefusal(conn.RemoteAddr().String(), err, refusals)
				return
			}
			select {
			case came <- incoming{h, token, conn}:
			case <-ctx.Done():
				_ = conn.Close()
			}
		}()
	}
}

// reportRefusal says that a connection was refused, to the user if a node made it.
func (j *joiner) reportRefusal(from string, err error, refusals chan<- string) {
	var r refusal
	if !errors.As(err, &r) {
		j.cfg.Log.Debug("a connection to the nodes' port was no node's", "from", from, "error", err)
		return
	}
	select {
	case refusals <- fmt.Sprintf("%s was refused: %v", from, err):
	default:
	}
	j.cfg.Log.Warn("refused a node", "from", from, "error", err)
}

// refusal is why a process that speaks as a node does is none of this group.
type refusal string

func (r refusal) Error() string { return string(r) }

// shake is the handshake of the side that accepts. It gives a token to a node's
// first connection and gets it back on the second.
func (j *joiner) shake(conn net.Conn, judge func(hello) answer) (h hello, token string, err error) {
	if err := prepare(conn); err != nil {
		return h, "", err
	}
	nonce, err := greet(conn)
	if err != nil {
		return h, "", err
	}
	err = receive(conn, frameHello, &h, j.cfg.Secret, sideDials, nonce)
	a := answer{Refused: errCode.Error()}
	if err == nil {
		a = judge(h)
	} else if !errors.Is(err, errCode) {
		return h, "", err
	}
	if len(h.Nonce) > nonceBytes {
		return h, "", fmt.Errorf("a nonce of %d bytes: allowed are %d", len(h.Nonce), nonceBytes)
	}
	token = h.Session
	if a.Refused == "" && !h.Data {
		token = j.session + "." + random()
		a.Session = token
	}
	if err := send(conn, frameAnswer, a, j.cfg.Secret, sideAnswers, h.Nonce, helloLimit); err != nil {
		return h, "", err
	}
	if a.Refused != "" {
		return h, "", refusal(a.Refused)
	}
	return h, token, conn.SetDeadline(time.Time{})
}
