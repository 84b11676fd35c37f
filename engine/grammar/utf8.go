package grammar

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// span is the code points from lo to hi.
type span struct{ lo, hi rune }

// normal sorts spans, joins those that touch, and leaves out surrogates, which
// no UTF-8 has.
func normal(spans []span) []span {
	var all []span
	for _, s := range spans {
		s.lo, s.hi = max(s.lo, 0), min(s.hi, utf8.MaxRune)
		if s.lo < 0xd800 && s.lo <= s.hi {
			all = append(all, span{s.lo, min(s.hi, 0xd7ff)})
		}
		if s.hi > 0xdfff {
			all = append(all, span{max(s.lo, 0xe000), s.hi})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return int(a.lo - b.lo) })
	joined := all[:0]
	for _, s := range all {
		if n := len(joined); n > 0 && s.lo <= joined[n-1].hi+1 {
			joined[n-1].hi = max(joined[n-1].hi, s.hi)
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// except is spans without those of others; both are normal.
func except(spans, others []span) []span {
	var left []span
	for _, s := range spans {
		for _, o := range others {
			if o.hi < s.lo || o.lo > s.hi {
				continue
			}
			if o.lo > s.lo {
				left = append(left, span{s.lo, o.lo - 1})
			}
			s.lo = o.hi + 1
		}
		if s.lo <= s.hi {
			left = append(left, s)
		}
	}
	return left
}

// codePoint is one code point of spans, as UTF-8. Those of several bytes are a
// rule, which all places with the same ones share.
func (b *builder) codePoint(spans []span) expr {
	spans = normal(spans)
	var ascii []expr
	wide := except(spans, []span{{0, utf8.RuneSelf - 1}})
	for _, s := range spans {
		if s.lo < utf8.RuneSelf {
			ascii = append(ascii, byteRange(byte(s.lo), byte(min(s.hi, utf8.RuneSelf-1))))
		}
	}
	if len(wide) == 0 {
		return either(ascii...)
	}
	key := []byte("code point ")
	for _, s := range wide {
		key = binary.LittleEndian.AppendUint32(key, uint32(s.lo))
		key = binary.LittleEndian.AppendUint32(key, uint32(s.hi))
	}
	rule := b.simple(string(key), func() expr {
		return func(b *builder, from, to int32) {
			for _, s := range wide {
				b.wide(s.lo, s.hi, from, to)
			}
		}
	})
	return either(append(ascii, rule)...)
}

// wide adds the UTF-8 of lo … hi, cut so that each part is a product of ranges
// of bytes.
func (b *builder) wide(lo, hi rune, from, to int32) {
	for _, last := range []rune{0x7f, 0x7ff, 0xffff} { // of one, two and three bytes
		if lo <= last && last < hi {
			b.wide(lo, last, from, to)
			lo = last + 1
		}
	}
	for shift := 6; shift <= 18; shift += 6 {
		mask := rune(1)<<shift - 1
		if lo&^mask == hi&^mask {
			break // alike but for the bytes of the mask
		}
		if lo&mask != 0 {
			b.wide(lo, lo|mask, from, to)
			b.wide(lo|mask+1, hi, from, to)
			return
		}
		if hi&mask != mask {
			b.wide(lo, hi&^mask-1, from, to)
			b.wide(hi&^mask, hi, from, to)
			return
		}
	}
	first, last := utf8.AppendRune(nil, lo), utf8.AppendRune(nil, hi)
	for i := range first {
		next := to
		if i < len(first)-1 {
			next = b.node()
		}
		b.edge(from, first[i], last[i], next)
		from = next
	}
}
