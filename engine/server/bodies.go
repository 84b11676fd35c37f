package server

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
)

// bodies bounds the memory of the request bodies that arrive at the same time, and of what
// they become: many clients would otherwise fill it, each within its own limit.
type bodies struct {
	left atomic.Int64 // bytes, of those that arrive
	work atomic.Int64 // bytes, of what they become
}

// What a body becomes while it is decoded, put into a template and encoded, in bytes: for
// each of its own, for each comma, of which there is one to a value, and for each list or
// object. (A process took so much for texts, for lists of tokens, and for lists of small
// objects in a message.) What is less than workFree is not counted, and all together are
// at most maxWork.
const (
	maxWork       = 256 << 20
	workFree      = 1 << 20
	workByte      = 12
	workValue     = 150
	workContainer = 700
)

// work is what a body becomes, as far as it counts. Commas and brackets in texts count too.
func work(body []byte) int64 {
	count := func(c string) int64 { return int64(bytes.Count(body, []byte(c))) }
	return max(0, workByte*int64(len(body))+workValue*count(",")+workContainer*(count("{")+count("["))-workFree)
}

// errWork is of a body that would be too much if it were alone.
var errWork = errors.New("the body has more values, or more lists and objects, than all requests may have at once")

// hold counts what a body becomes, until done is called, once.
func (b *bodies) hold(body []byte) (done func(), err error) {
	n := work(body)
	switch {
	case n > maxWork:
		return nil, errWork
	case n > 0 && b.work.Add(n) > maxWork:
		b.work.Add(-n)
		return nil, errBodies
	}
	return func() { b.work.Add(-n) }, nil
}

// bodyStep is what a body takes at a time. Its first bytes, as many, are free:
// what they add up to is bounded by the number of connections.
const bodyStep = 64 << 10

var errBodies = errors.New("too many large request bodies are arriving or being read at once")

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
