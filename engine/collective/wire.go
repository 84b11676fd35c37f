package collective

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// greeting is what a process that accepts a connection says first: the protocol
// with its version. A nonce of nonceBytes follows.
const greeting = "OUTRIDER-NODES/1"

const (
	nonceBytes = 32
	macBytes   = sha256.Size

	// Most bytes of messages, by what they are for. Memory is taken as bytes
	// arrive, never by what a length says.
	maxHello   = 16 << 10
	maxCommand = 64 << 20
	maxMessage = 4 << 10 // of an error
)

// frameKind tells what a message on a control connection is.
type frameKind uint8

const (
	frameHello   frameKind = iota + 1 // from who dials, in JSON, and its code
	frameAnswer                       // to a hello, in JSON, and its code
	framePeers                        // from node 0: the addresses of the nodes 1 …, in JSON
	frameJoined                       // to node 0: connected with all others
	frameGo                           // from node 0: all are
	frameBeat                         // a sign of life
	frameCommand                      // from node 0: what Broadcast was given
	frameAbort                        // the group has failed, in JSON
	frameStop                         // from node 0: the end, without a fault
	frameLeave                        // to node 0: this process has been told to stop
)

// frameHeader is the kind and the length of what follows, little-endian.
const frameHeader = 5

// writeFrame sends one message within a time.
func writeFrame(c net.Conn, kind frameKind, payload []byte, limit time.Duration) error {
	b := make([]byte, frameHeader, frameHeader+len(payload))
	b[0] = byte(kind)
	binary.LittleEndian.PutUint32(b[1:], uint32(len(payload)))
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := c.Write(append(b, payload...))
	return err
}

// readFrame reads one message of at most limit bytes into buf.
func readFrame(r io.Reader, buf *bytes.Buffer, limit int) (frameKind, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint32(head[1:])
	if uint64(n) > uint64(limit) {
		return 0, fmt.Errorf("a message of %d bytes: allowed are %d", n, limit)
	}
	buf.Reset()
	if _, err := io.CopyN(buf, r, int64(n)); err != nil {
		return 0, fmt.Errorf("a message of %d bytes broke off: %w", n, err)
	}
	return frameKind(head[0]), nil
}

// hello is how a process that dials presents itself.
type hello struct {
	Nonce   []byte    `json:"nonce"` // that the answer's code must cover
	Node    int       `json:"node"`
	Data    bool      `json:"data,omitempty"`    // the connection is for sums, not for control
	Session string    `json:"session,omitempty"` // of data the token; else the group's, which node 0 is not told
	Port    int       `json:"port,omitempty"`    // where nodes of a higher number reach it
	Same    []Setting `json:"same,omitempty"`    // of the first hello
}

// answer is what it gets.
type answer struct {
	Refused string `json:"refused,omitempty"` // why; empty: welcome
	Later   bool   `json:"later,omitempty"`   // it may try again
	Session string `json:"session,omitempty"` // the token for the connection for data
}

// code authenticates a message by the secret of the group, the side that sent it
// and the nonce of the one that reads it. Without a secret it is a checksum.
func code(secret []byte, side string, nonce, message []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(greeting + side))
	m.Write(nonce)
	m.Write(message)
	return m.Sum(nil)
}

const (
	sideDials   = " dials "
	sideAnswers = " answers "
)

// send writes v and its code.
func send(c net.Conn, kind frameKind, v any, secret []byte, side string, nonce []byte, limit time.Duration) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFrame(c, kind, append(b, code(secret, side, nonce, b)...), limit)
}

// errCode says that a message was not made with this group's secret.
var errCode = fmt.Errorf("the other side does not have this node's secret: give all nodes of the group the same --dist-secret-file, and those of other groups another address")

// receive reads what send wrote into v.
func receive(r io.Reader, want frameKind, v any, secret []byte, side string, nonce []byte) error {
	var buf bytes.Buffer
	kind, err := readFrame(r, &buf, maxHello)
	if err != nil {
		return err
	}
	b := buf.Bytes()
	if kind != want || len(b) < macBytes {
		return fmt.Errorf("message %d of %d bytes where %d was due", kind, len(b), want)
	}
	b, mac := b[:len(b)-macBytes], b[len(b)-macBytes:]
	if !hmac.Equal(mac, code(secret, side, nonce, b)) {
		return errCode
	}
	return json.Unmarshal(b, v)
}

// newNonce is random; it is never used twice.
func newNonce() []byte {
	b := make([]byte, nonceBytes)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the process instead
	return b
}

// greet says who listens here, and returns the nonce that it said.
func greet(c net.Conn) ([]byte, error) {
	nonce := newNonce()
	_, err := c.Write(append([]byte(greeting), nonce...))
	return nonce, err
}

// greeted reads what greet wrote.
func greeted(r io.Reader) ([]byte, error) {
	b := make([]byte, len(greeting)+nonceBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	if string(b[:len(greeting)]) != greeting {
		return nil, fmt.Errorf("what listens there is no outrider-engine of a version that can join this one (%s)", greeting)
	}
	return b[len(greeting):], nil
}
