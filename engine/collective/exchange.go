package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/fault"
)

// exchangeKind is a call that all nodes make at the same time.
type exchangeKind uint32

const (
	exchangeSum exchangeKind = iota + 1
	exchangeGather
	exchangeNumbers
)

var exchangeNames = map[exchangeKind]string{exchangeSum: "all-reduce", exchangeGather: "all-gather", exchangeNumbers: "agreement"}

// dataHeader is sequence number, kind and payload bytes, little-endian.
const dataHeader = 16

// inlineBytes are sent without a goroutine of their own: the kernel's buffers
// hold them, so that no node waits for another to read. The sockets' buffers are
// set to socketBytes.
const (
	inlineBytes = 64 << 10
	socketBytes = 208 << 10
)

// exchange sends mine to every other node and hands what each of them sent, as
// many bytes, to got. It is for one goroutine. False: the group has failed.
func (n *Nodes) exchange(kind exchangeKind, mine [][]byte, got func(node int, b []byte)) bool {
	n.sequence++
	size := 0
	n.out = append(n.out[:0], make([]byte, dataHeader)...)
	for _, b := range mine {
		size += len(b)
		n.out = append(n.out, b...)
	}
	binary.LittleEndian.PutUint64(n.out, n.sequence)
	binary.LittleEndian.PutUint32(n.out[8:], uint32(kind))
	binary.LittleEndian.PutUint32(n.out[12:], uint32(size))

	var writing sync.WaitGroup
	defer writing.Wait() // until what is sent may change
	for _, p := range n.peers {
		if p == nil {
			continue
		}
		write := func() {
			if _, err := p.data.Write(n.out); err != nil {
				n.lost(p, err)
			}
		}
		if len(n.out) <= inlineBytes {
			write()
		} else {
			writing.Go(write)
		}
	}
	for _, p := range n.peers {
		if p == nil {
			continue
		}
		if err := n.read(p, kind, size); err != nil {
			var f *fault.Error
			if errors.As(err, &f) {
				n.fail(err, true)
			} else {
				n.lost(p, err)
			}
			return false
		}
		got(p.node, p.in[dataHeader:])
	}
	return n.Err() == nil
}

// read reads a node's part of an exchange of size bytes into p.in.
func (n *Nodes) read(p *peer, kind exchangeKind, size int) error {
	if cap(p.in) < dataHeader+size {
		p.in = make([]byte, dataHeader+size)
	}
	p.in = p.in[:dataHeader+size]
	had, err := io.ReadAtLeast(p.data, p.in, dataHeader)
	if err != nil {
		return err
	}
	sequence, theirs, bytes := binary.LittleEndian.Uint64(p.in), exchangeKind(binary.LittleEndian.Uint32(p.in[8:])), binary.LittleEndian.Uint32(p.in[12:])
	if sequence != n.sequence || theirs != kind || int64(bytes) != int64(size) {
		rank := p.node * n.cfg.Ranks
		return &fault.Error{Reason: fault.CollectiveFailed, Rank: rank, Err: fmt.Errorf(
			"the ranks do not do the same: rank %d, on node %d, is in call %d, %s of %d bytes, and rank %d in call %d, %s of %d bytes: report this as a bug",
			rank, p.node, sequence, exchangeNames[theirs], bytes, n.FirstRank(), n.sequence, exchangeNames[kind], size)}
	}
	_, err = io.ReadFull(p.data, p.in[had:])
	return err
}

// Numbers is every node's numbers, by node; all give as many. All nodes call it
// at the same time, while no rank does anything else.
func (n *Nodes) Numbers(mine ...int64) ([][]int64, error) {
	all := make([][]int64, n.cfg.Nodes)
	all[n.cfg.Node] = mine
	var b []byte
	for _, v := range mine {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	if !n.exchange(exchangeNumbers, [][]byte{b}, func(node int, b []byte) {
		for ; len(b) > 0; b = b[8:] {
			all[node] = append(all[node], int64(binary.LittleEndian.Uint64(b)))
		}
	}) {
		return nil, n.Err()
	}
	return all, nil
}

// Communicators are those of this process's ranks, whose largest AllReduce has at
// most max elements. The group has one set of them.
func (n *Nodes) Communicators(max int) []Communicator {
	g, ranks := newGroup(n.cfg.Nodes*n.cfg.Ranks, n.FirstRank(), n.cfg.Ranks, max)
	g.nodes = n
	g.in = make([][]float32, g.size)
	n.group.Store(g)
	if err := n.Err(); err != nil {
		g.release(err)
	}
	return ranks
}

// meet brings the other nodes' parts of a call of length elements a rank into
// g.bufs. One of the process's ranks calls it, between two barriers.
func (g *group) meet(kind exchangeKind, length int) {
	mine := make([][]byte, g.local)
	for i := range mine {
		mine[i] = floatBytes(g.bufs[g.first+i][:length])
	}
	g.nodes.exchange(kind, mine, func(node int, b []byte) {
		for i := range g.local {
			r := node*g.local + i
			if cap(g.in[r]) < length {
				g.in[r] = make([]float32, length)
			}
			g.bufs[r] = g.in[r][:length]
			copy(floatBytes(g.bufs[r]), b[i*4*length:])
		}
	})
}

// floatBytes are the bytes of x, in the order of the machine. Nodes of the other
// order are refused when they join.
func floatBytes(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
}
