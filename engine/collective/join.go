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
	Waiting     func() // if set, is called now and then, from another goroutine, while the start waits for others
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

// joiner makes one group.
type joiner struct {
	cfg     JoinConfig
	session string // of the group; tokens begin with it and a dot
	nodes   *Nodes
	early   map[string]net.Conn // connections for data that came before those for control, by token
	refused string              // the last refusal of a node, for the message of a wait in vain
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
	if cfg.Waiting != nil {
		go j.showLife(ctx)
	}
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
		j.dismiss(err)
		return nil, err
	}
	n.start()
	return n, nil
}

// errWait is the cause of a context that ended because the wait was in vain.
var errWait = errors.New("the wait is over")

// errSilent is the cause where the others took too long to meet.
var errSilent = errors.New("the others have not met")

// showLife calls cfg.Waiting until ctx is done.
func (j *joiner) showLife(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			j.cfg.Waiting()
		case <-ctx.Done():
			return
		}
	}
}

// dismiss ends what there is of a group that does not come about, and tells the
// others why: they wait for it, and may not know.
func (j *joiner) dismiss(err error) {
	if errors.Is(err, context.Canceled) {
		rank := j.nodes.FirstRank()
		err = &fault.Error{Reason: fault.CollectiveFailed, Rank: rank, Err: fmt.Errorf("rank %d, on node %d, was told to stop while the nodes joined", rank, j.cfg.Node)}
	}
	for _, p := range j.nodes.peers {
		if p != nil {
			j.nodes.part(p, err)
		}
	}
}

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
	if err := j.accept(ctx, l, j.judge, 1); err != nil {
		return err
	}
	return j.introduce(ctx)
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

// introduce tells the others of one another, waits until they have met, and lets
// them go.
func (j *joiner) introduce(ctx context.Context) error {
	addresses := make([]string, j.cfg.Nodes)
	for i, p := range j.nodes.peers {
		if p == nil {
			continue
		}
		host, _, err := net.SplitHostPort(p.address)
		if err != nil {
			return fault.Errorf(fault.Internal, "address %q of node %d: %w", p.address, i, err)
		}
		addresses[i] = net.JoinHostPort(host, strconv.Itoa(p.port))
	}
	b, err := json.Marshal(addresses)
	if err != nil {
		return err
	}
	if err := j.tellAll(framePeers, b); err != nil {
		return err
	}
	if err := j.hearAll(ctx); err != nil {
		return err
	}
	return j.tellAll(frameGo, nil)
}

// tellAll sends a message to all others.
func (j *joiner) tellAll(kind frameKind, b []byte) error {
	for _, p := range j.nodes.peers {
		if p == nil {
			continue
		}
		if err := j.nodes.post(p, kind, b, helloLimit); err != nil {
			return j.broke(p, err)
		}
	}
	return nil
}

// hearAll waits until all others have met. It listens to them at once: those that
// live may wait for the one that does not.
func (j *joiner) hearAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.cfg.Silence+helloLimit, errSilent)
	defer cancel()
	heard := make(chan error, j.cfg.Nodes)
	errs := make([]error, j.cfg.Nodes)
	for i, p := range j.nodes.peers {
		if p != nil {
			go func() {
				errs[i] = j.expect(ctx, p, frameJoined, nil)
				heard <- errs[i]
			}()
		}
	}
	var first error
	for range j.cfg.Nodes - 1 {
		if err := <-heard; err != nil && first == nil {
			first = err
			cancel() // who has not spoken will not be heard any more
		}
	}
	if !errors.Is(first, errSilent) {
		return first
	}
	var silent []int
	for i, err := range errs {
		if err != nil {
			silent = append(silent, i)
		}
	}
	return &fault.Error{Reason: fault.CollectiveFailed, Rank: silent[0] * j.cfg.Ranks,
		Err: fmt.Errorf("of the nodes %v not one has said within %s that it has met the others: one of them, or the network between them, does not answer", silent, j.cfg.Silence+helloLimit)}
}

// expect reads a message of a kind from a node, into buf if that is given, until
// ctx is done.
func (j *joiner) expect(ctx context.Context, p *peer, want frameKind, buf *bytes.Buffer) error {
	if buf == nil {
		buf = &bytes.Buffer{}
	}
	stop := context.AfterFunc(ctx, func() { _ = p.control.SetReadDeadline(time.Unix(1, 0)) })
	kind, err := readFrame(p.control, buf, maxHello)
	switch {
	case !stop() || ctx.Err() != nil:
		return j.inVain(ctx, fmt.Sprintf("node %d did not get the others together", p.node), p.node)
	case err != nil:
		return j.broke(p, err)
	case kind == frameAbort:
		return j.nodes.told(p, buf.Bytes())
	case kind != want:
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
	j.cfg.Log.Info("met node 0: waiting until it has met all", "address", j.cfg.Address)
	var buf bytes.Buffer
	if err := j.expect(ctx, lead, framePeers, &buf); err != nil {
		return err
	}
	var addresses []string
	if err := json.Unmarshal(buf.Bytes(), &addresses); err != nil {
		return j.broke(lead, fmt.Errorf("its list of nodes: %w", err))
	}
	if len(addresses) != j.cfg.Nodes {
		return j.broke(lead, fmt.Errorf("it named %d nodes of %d", len(addresses), j.cfg.Nodes))
	}
	// Node 0 may give the others up while this one still waits for them.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	released := make(chan error, 1)
	go func() {
		err := j.expect(ctx, lead, frameGo, nil)
		if err != nil {
			giveUp(err)
		}
		released <- err
	}()
	if err := j.meetOthers(ctx, l, addresses); err != nil {
		giveUp(err)
		j.cfg.Log.Debug("no longer waits for node 0", "error", <-released)
		return err
	}
	if err := j.nodes.post(lead, frameJoined, nil, helloLimit); err != nil {
		giveUp(err)
		j.cfg.Log.Debug("no longer waits for node 0", "error", <-released)
		return j.broke(lead, err)
	}
	return <-released
}

// meetOthers has this node meet all but node 0: it dials those of a lower number,
// and those of a higher one dial it, on l.
func (j *joiner) meetOthers(ctx context.Context, l net.Listener, addresses []string) error {
	for i := 1; i < j.cfg.Node; i++ {
		p := &peer{node: i, address: addresses[i]}
		j.nodes.peers[i] = p
		if err := j.meet(ctx, p, hello{Node: j.cfg.Node, Session: j.session}); err != nil {
			return err
		}
	}
	if l == nil {
		return nil
	}
	return j.accept(ctx, l, func(h hello) answer {
		if h.Node <= j.cfg.Node || h.Node >= j.cfg.Nodes {
			return answer{Refused: fmt.Sprintf("node %d does not dial node %d", h.Node, j.cfg.Node)}
		}
		return j.known(h)
	}, j.cfg.Node+1)
}

// inVain is the error of a wait that ended too early.
func (j *joiner) inVain(ctx context.Context, what string, node int) error {
	if cause := context.Cause(ctx); !errors.Is(cause, errWait) {
		return cause
	}
	if j.refused != "" {
		what += ": " + j.refused
	}
	return &fault.Error{Reason: fault.CollectiveFailed, Rank: node * j.cfg.Ranks,
		Err: fmt.Errorf("the %d nodes of --nnodes were not together within --dist-timeout %s: %s", j.cfg.Nodes, j.cfg.Wait, what)}
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
