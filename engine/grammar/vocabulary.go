package grammar

import (
	"bytes"
	"slices"
)

// Tokens says what a vocabulary's tokens stand for; tokenizer.Tokenizer is one.
type Tokens interface {
	VocabSize() int
	// TokenBytes is what a token adds to a text.
	TokenBytes(id int32) []byte
	// FirstTokenBytes is the same at the begin of a text, where some tokenizers
	// drop a space.
	FirstTokenBytes(id int32) []byte
	// IsSpecial tells of tokens that are no text.
	IsSpecial(id int32) bool
}

// Vocabulary is the tokens that texts are made of, in a trie of their bytes.
// Special tokens and those without bytes are not in it: they are never allowed
// within a text. It is not changed after it was made.
type Vocabulary struct {
	size   int
	within trie
	first  *trie // for the first token, where that differs; else nil
}

// NewVocabulary reads the tokens.
func NewVocabulary(t Tokens) *Vocabulary {
	v := &Vocabulary{size: t.VocabSize()}
	within, first := make([][]byte, v.size), make([][]byte, v.size)
	differ := false
	for id := range int32(v.size) {
		if t.IsSpecial(id) {
			continue
		}
		within[id], first[id] = t.TokenBytes(id), t.FirstTokenBytes(id)
		differ = differ || !bytes.Equal(within[id], first[id])
	}
	v.within = newTrie(within)
	if differ {
		trie := newTrie(first)
		v.first = &trie
	}
	return v
}

// longest is the number of bytes of the longest token.
func (v *Vocabulary) longest() int {
	n := v.within.deepest
	if v.first != nil {
		n = max(n, v.first.deepest)
	}
	return n
}

// trie has its nodes in depth-first order, so that a walk goes through memory
// in order, and what lies under a node is a range. Node 0 is the root; after
// the last comes one more, so that a node's tokens end where the next one's begin.
type trie struct {
	nodes   []trieNode
	sorted  []int32 // token ids in order of their bytes
	tokens  [][]byte
	deepest int
}

type trieNode struct {
	skip  int32 // the first node that is not under this one
	ends  int32 // sorted from here to the next node's ends are the tokens that end here
	depth int32 // distance from the root
	b     byte  // leads here
}

func newTrie(tokens [][]byte) trie {
	t := trie{tokens: tokens, nodes: make([]trieNode, 1)}
	for id, b := range tokens {
		if len(b) > 0 {
			t.sorted = append(t.sorted, int32(id))
			t.deepest = max(t.deepest, len(b))
		}
	}
	slices.SortFunc(t.sorted, func(a, b int32) int {
		if c := bytes.Compare(tokens[a], tokens[b]); c != 0 {
			return c
		}
		return int(a - b)
	})
	path := []int32{0} // nodes from the root to the one made last
	var last []byte
	for k, id := range t.sorted {
		b := tokens[id]
		common := 0
		for common < len(last) && common < len(b) && last[common] == b[common] {
			common++
		}
		t.leave(path[common+1:])
		path = path[:common+1]
		for _, c := range b[common:] {
			t.nodes = append(t.nodes, trieNode{ends: int32(k), depth: int32(len(path)), b: c})
			path = append(path, int32(len(t.nodes)-1))
		}
		last = b
	}
	t.leave(path)
	t.nodes = append(t.nodes, trieNode{ends: int32(len(t.sorted))})
	return t
}

// leave ends what lies under some nodes.
func (t *trie) leave(path []int32) {
	for _, i := range path {
		t.nodes[i].skip = int32(len(t.nodes))
	}
}

// token is the bytes of a token; none for one that is never allowed.
func (t *trie) token(id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) {
		return nil
	}
	return t.tokens[id]
}
