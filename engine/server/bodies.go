package server

import (
	"errors"
	"io"
	"sync/atomic"
)

// bodies bounds the memory of the request bodies that arrive at the same time:
// many slow clients would otherwise fill it, each within its own limit.
type bodies struct {
	left atomic.Int64 // bytes
}

// bodyStep is what a body takes at a time. Its first bytes, as many, are free:
// what they add up to is bounded by the number of connections.
const bodyStep = 64 << 10

var errBodies = errors.New("too many large request bodies are arriving at once")

// reader is r within the bound. Its end, good or bad, is done.
func (b *bodies) reader(r io.Reader) *bodyReader { return &bodyReader{r: r, all: b} }

type bodyReader struct {
	r           io.Reader
	all         *bodies
	read, taken int64
}

func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.read += int64(n)
	for b.read > bodyStep+b.taken {
		if b.all.left.Add(-bodyStep) < 0 {
			b.all.left.Add(bodyStep)
			return 0, errBodies
		}
		b.taken += bodyStep
	}
	return n, err
}

// done gives back what the body took.
func (b *bodyReader) done() {
	b.all.left.Add(b.taken)
	b.taken = 0
}
