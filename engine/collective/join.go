package collective

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

// JoinConfig says which process of which group this is.
type JoinConfig struct {
	Node, Nodes int           // this process, from 0 on, and how many there are, at least 2
	Ranks       int           // of each process
	Address     string        // host:port of node 0, which listens there
	Secret      []byte        // of the group; empty: whoever reaches the address may join
	Same        []Setting     // that all nodes must have alike
	Wait        time.Duration // for the group to be complete
	Silence     time.Duration // without a sign of life after which a node is lost
	Log         *slog.Logger
	Waiting     func() // if set, is called now and then while the start waits for others
}

// Setting is a value that all nodes must have alike, by the name that a user
// knows it by.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

const (
	helloLimit = 5 * time.Second        // that a handshake may take
	dialPause  = 200 * time.Millisecond // between two attempts
	atOnce     = 32                     // handshakes under way
	waitNote   = 10 * time.Second       // between two lines of the log that say who is missing
)

// incoming is a connection whose dialler has been welcomed. Its two have the same
// token; they may come in any order.
type incoming struct {
	hello
	token string
	conn  net.Conn
}

// joiner makes one group.
type joiner struct {
	cfg     JoinConfig
	session string // of the group; tokens begin with it and a dot
	nodes   *Nodes
	early   map[string]net.Conn // connections for data that came before those for control, by token
	refused string              // the last refusal, for the message of a wait in vain
}

// Join connects this process with the others of its group and returns when all
// are there. The errors are InvalidConfig, for a node that must not join, and
// CollectiveFailed, when the group is not complete within cfg.Wait.
func Join(ctx context.Context, cfg JoinConfig) (*Nodes, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Wait, errWait)
	defer cancel()
	cfg.Same = append([]Setting{{"number of nodes", strconv.Itoa(cfg.Nodes)}, {"ranks of a node", strconv.Itoa(cfg.Ranks)}, {"byte order", byteOrder()}}, cfg.Same...)
	n := &Nodes{cfg: cfg, log: cfg.Log, peers: make([]*peer, cfg.Nodes), commands: make(chan []byte, 8), spare: make(chan []byte, 8),
		leaving: make(chan struct{}), failed: make(chan struct{}), over: make(chan struct{})}
	j := &joiner{cfg: cfg, nodes: n, early: map[string]net.Conn{}}
	var err error
	if cfg.Node == 0 {
		err = j.lead(ctx)
	} else {
		err = j.follow(ctx)
	}
	for _, c := range j.early { // of nodes that have gone
		_ = c.Close()
	}
	if err != nil {
		for _, p := range n.peers {
			if p != nil {
				p.close()
			}
		}
		return nil, err
	}
	n.start()
	return n, nil
}

// errWait is the cause of a context that ended because the wait was in vain.
var errWait = errors.New("the wait is over")

func byteOrder() string {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return "little-endian"
	}
	return "big-endian"
}

// lead is Join of node 0.
func (j *joiner) lead(ctx context.Context) error {
	j.session = random()
	host, port, err := net.SplitHostPort(j.cfg.Address)
	if err != nil {
		return fault.Errorf(fault.InvalidConfig, "--dist-init-addr is %q: allowed is HOST:PORT: %w", j.cfg.Address, err)
	}
	if net.ParseIP(host) == nil {
		host = "" // a name is how others find this process: it may not resolve here, or not yet
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fault.Errorf(fault.InvalidConfig, "--dist-init-addr %s cannot be opened: %w", j.cfg.Address, err)
	}
	ports := make([]int, j.cfg.Nodes)
	err = j.accept(ctx, l, func(in incoming) { ports[in.Node] = max(ports[in.Node], in.Port) }, j.judge, 1)
	if err != nil {
		return err
	}
	return j.introduce(ports)
}

// judge is node 0's answer to a hello.
func (j *joiner) judge(h hello) answer {
	if h.Node < 1 || h.Node >= j.cfg.Nodes {
		return answer{Refused: fmt.Sprintf("--node-rank is %d: allowed is 0 to %d, one less than --nnodes, each once", h.Node, j.cfg.Nodes-1)}
	}
	if h.Data {
		return j.known(h)
	}
	if name, here, there := differs(j.cfg.Same, h.Same); name != "" {
		return answer{Refused: fmt.Sprintf("%s is %s on node %d and %s on node 0: give all nodes the same", name, orNone(there), h.Node, orNone(here))}
	}
	return answer{}
}

// known is the answer to a hello that must name the group.
func (j *joiner) known(h hello) answer {
	session := h.Session
	if h.Data {
		session, _, _ = strings.Cut(session, ".")
	}
	if session != j.session {
		return answer{Refused: "it is of another group, or of this one's last start", Later: true}
	}
	return answer{}
}

func orNone(v string) string { return cmp.Or(v, "not set") }

// differs is the first setting that is not alike.
func differs(here, there []Setting) (name, a, b string) {
	values := map[string]string{}
	for _, s := range there {
		values[s.Name] = s.Value
	}
	for _, s := range here {
		v, ok := values[s.Name]
		if delete(values, s.Name); !ok || v != s.Value {
			return s.Name, s.Value, v
		}
	}
	for _, s := range there {
		if _, left := values[s.Name]; left {
			return s.Name, "", s.Value
		}
	}
	return "", "", ""
}

// introduce tells the others of one another, and waits until they have met.
func (j *joiner) introduce(ports []int) error {
	addresses := make([]string, j.cfg.Nodes)
	for i, p := range j.nodes.peers {
		if p == nil {
			continue
		}
		host, _, err := net.SplitHostPort(p.address)
		if err != nil {
			return fault.Errorf(fault.Internal, "address %q of node %d: %w", p.address, i, err)
		}
		addresses[i] = net.JoinHostPort(host, strconv.Itoa(ports[i]))
	}
	b, err := json.Marshal(addresses)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		tell frameKind
		with []byte
		hear frameKind
	}{{framePeers, b, frameJoined}, {frameGo, nil, 0}} {
		for _, p := range j.nodes.peers {
			if p == nil {
				continue
			}
			if err := writeFrame(p.control, step.tell, step.with, helloLimit); err != nil {
				return j.broke(p, err)
			}
		}
		for _, p := range j.nodes.peers {
			if p == nil || step.hear == 0 {
				continue
			}
			if err := j.expect(p, step.hear, j.cfg.Silence+helloLimit, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// expect reads a message of a kind from a node, into buf if that is given.
func (j *joiner) expect(p *peer, want frameKind, limit time.Duration, buf *bytes.Buffer) error {
	if buf == nil {
		buf = &bytes.Buffer{}
	}
	if err := p.control.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return j.broke(p, err)
	}
	kind, err := readFrame(p.control, buf, maxHello)
	if err != nil {
		return j.broke(p, err)
	}
	if kind != want {
		return j.broke(p, fmt.Errorf("it sent message %d where %d was due", kind, want))
	}
	return nil
}

// broke is the error of a node that was lost while the group formed.
func (j *joiner) broke(p *peer, err error) error {
	rank := p.node * j.cfg.Ranks
	return &fault.Error{Reason: fault.CollectiveFailed, Rank: rank,
		Err: fmt.Errorf("rank %d, on node %d at %s, was lost while the nodes joined: %w", rank, p.node, p.address, err)}
}

// follow is Join of the others.
func (j *joiner) follow(ctx context.Context) error {
	var l net.Listener
	mine := hello{Node: j.cfg.Node, Same: j.cfg.Same}
	if j.cfg.Node < j.cfg.Nodes-1 { // there are nodes that dial this one
		var err error
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", ":0"); err != nil {
			return fault.Errorf(fault.CollectiveFailed, "no port for the other nodes: %w", err)
		}
		defer func() { _ = l.Close() }()
		mine.Port = l.Addr().(*net.TCPAddr).Port
	}
	lead := &peer{node: 0, address: j.cfg.Address}
	j.nodes.peers[0] = lead
	if err := j.meet(ctx, lead, mine); err != nil {
		return err
	}
	var buf bytes.Buffer
	if err := j.expect(lead, framePeers, j.cfg.Wait, &buf); err != nil {
		return err
	}
	var addresses []string
	if err := json.Unmarshal(buf.Bytes(), &addresses); err != nil || len(addresses) != j.cfg.Nodes {
		return j.broke(lead, fmt.Errorf("it named %d nodes of %d: %w", len(addresses), j.cfg.Nodes, err))
	}
	for i := 1; i < j.cfg.Node; i++ {
		p := &peer{node: i, address: addresses[i]}
		j.nodes.peers[i] = p
		if err := j.meet(ctx, p, hello{Node: j.cfg.Node, Session: j.session}); err != nil {
			return err
		}
	}
	if l != nil {
		err := j.accept(ctx, l, func(incoming) {}, func(h hello) answer {
			if h.Node <= j.cfg.Node || h.Node >= j.cfg.Nodes {
				return answer{Refused: fmt.Sprintf("node %d does not dial node %d", h.Node, j.cfg.Node)}
			}
			return j.known(h)
		}, j.cfg.Node+1)
		if err != nil {
			return err
		}
	}
	if err := writeFrame(lead.control, frameJoined, nil, helloLimit); err != nil {
		return j.broke(lead, err)
	}
	return j.expect(lead, frameGo, j.cfg.Wait, nil)
}

// accept takes the two connections of each node from number first on, then closes l.
// hear is called for each that is welcome; one that comes again takes the place of its last.
func (j *joiner) accept(ctx context.Context, l net.Listener, hear func(incoming), judge func(hello) answer, first int) error {
	came := make(chan incoming)
	refusals := make(chan string, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = l.Close() }()
	go j.listen(ctx, l, judge, came, refusals)
	note := time.NewTicker(time.Second)
	defer note.Stop()
	said := time.Now()
	for {
		missing := j.missing(first)
		if len(missing) == 0 {
			return nil
		}
		select {
		case in := <-came:
			hear(in)
			j.place(in)
		case j.refused = <-refusals:
		case <-note.C:
			if j.cfg.Waiting != nil {
				j.cfg.Waiting()
			}
			if time.Since(said) > waitNote {
				said = time.Now()
				j.cfg.Log.Info("waiting for other nodes", "missing", missing, "address", l.Addr().String())
			}
		case <-ctx.Done():
			return j.inVain(ctx, fmt.Sprintf("node %d has not joined", missing[0]), missing[0])
		}
	}
}

// inVain is the error of a wait that ended too early.
func (j *joiner) inVain(ctx context.Context, what string, node int) error {
	if !errors.Is(context.Cause(ctx), errWait) {
		return context.Cause(ctx)
	}
	if j.refused != "" {
		what += ": " + j.refused
	}
	return &fault.Error{Reason: fault.CollectiveFailed, Rank: node * j.cfg.Ranks,
		Err: fmt.Errorf("the %d nodes of --nnodes were not together within --dist-timeout %s: %s", j.cfg.Nodes, j.cfg.Wait, what)}
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

// maxEarly bounds the connections that wait for another one.
const maxEarly = 64

// place keeps a connection.
func (j *joiner) place(in incoming) {
	p := j.nodes.peers[in.Node]
	switch {
	case !in.Data:
		if p != nil { // of a start before
			p.close()
		}
		p = &peer{node: in.Node, address: in.conn.RemoteAddr().String(), token: in.token, control: in.conn, data: j.early[in.token]}
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

// listen shakes hands with all that dial.
func (j *joiner) listen(ctx context.Context, l net.Listener, judge func(hello) answer, came chan<- incoming, refusals chan<- string) {
	room := make(chan struct{}, atOnce)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer func() { <-room }()
			h, token, err := j.shake(conn, judge)
			if err != nil {
				_ = conn.Close()
				j.cfg.Log.Warn("refused a connection to the nodes' port", "from", conn.RemoteAddr().String(), "error", err)
				select {
				case refusals <- fmt.Sprintf("%s was refused: %v", conn.RemoteAddr(), err):
				default:
				}
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
		return h, "", errors.New(a.Refused)
	}
	return h, token, conn.SetDeadline(time.Time{})
}

// random is a name that nobody guesses.
func random() string { return fmt.Sprintf("%x", newNonce()[:16]) }

// prepare sets a connection up for a handshake.
func prepare(conn net.Conn) error {
	if c, ok := conn.(*net.TCPConn); ok {
		if err := errors.Join(c.SetReadBuffer(socketBytes), c.SetWriteBuffer(socketBytes)); err != nil {
			return err
		}
	}
	return conn.SetDeadline(time.Now().Add(helloLimit))
}

// meet makes the two connections to a node that listens.
func (j *joiner) meet(ctx context.Context, p *peer, control hello) error {
	for {
		var err error
		if p.control, p.token, err = j.dial(ctx, p, control); err != nil {
			return err
		}
		p.data, _, err = j.dial(ctx, p, hello{Node: j.cfg.Node, Data: true, Session: p.token})
		if !errors.Is(err, errAgain) {
			if p.node == 0 {
				j.session, _, _ = strings.Cut(p.token, ".")
			}
			return err
		}
		_ = p.control.Close()
	}
}

// errAgain says that node 0 has started again since the first connection to it.
var errAgain = errors.New("node 0 has started again")

// dial connects to a node, as soon as it is there.
func (j *joiner) dial(ctx context.Context, p *peer, h hello) (conn net.Conn, token string, err error) {
	said := time.Now()
	for {
		conn, token, later, err := j.attempt(ctx, p.address, h)
		if err == nil {
			return conn, token, nil
		}
		j.refused = err.Error()
		if later && h.Data && p.node == 0 {
			return nil, "", errAgain
		}
		if !later {
			return nil, "", fault.Errorf(fault.InvalidConfig, "node %d cannot join node %d at %s: %w", j.cfg.Node, p.node, p.address, err)
		}
		if j.cfg.Waiting != nil {
			j.cfg.Waiting()
		}
		if time.Since(said) > waitNote {
			said = time.Now()
			j.cfg.Log.Info("waiting for another node", "node", p.node, "address", p.address, "error", err)
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, "", j.inVain(ctx, fmt.Sprintf("node %d did not take this one", p.node), p.node)
		}
	}
}

// attempt dials once; later tells whether another attempt may succeed.
func (j *joiner) attempt(ctx context.Context, address string, h hello) (conn net.Conn, token string, later bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, "", true, err
	}
	a, err := j.present(conn, h)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, "", a.Later || a.Refused == "" && !errors.Is(err, errCode), err
	}
	return conn, a.Session, false, nil
}

// present is the handshake of the side that dials.
func (j *joiner) present(conn net.Conn, h hello) (a answer, err error) {
	if err := prepare(conn); err != nil {
		return a, err
	}
	nonce, err := greeted(conn)
	if err != nil {
		return a, err
	}
	h.Nonce = newNonce()
	if err := send(conn, frameHello, h, j.cfg.Secret, sideDials, nonce, helloLimit); err != nil {
		return a, err
	}
	if err := receive(conn, frameAnswer, &a, j.cfg.Secret, sideAnswers, h.Nonce); err != nil {
		return answer{}, err
	}
	if a.Refused != "" {
		return a, errors.New(a.Refused)
	}
	return a, nil
}
