package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before anything else.
type addedToken struct {
	content string
	id      int32
	word    bool // only where no word goes on before or after it
	left    bool // takes the white space before it in
	right   bool // and that after it
}

// addedTokens finds them: the leftmost, and of those the longest. They are in a
// trie of bytes, because there may be thousands with a common beginning.
type addedTokens struct {
	tokens []addedToken
	nodes  []trieNode
	first  [256]bool // bytes that one begins with
	only   int       // the first byte, if all have the same; else -1
}

type trieNode struct {
	next  map[byte]int32 // index of the node
	token int32          // index of the token that ends here, or -1
}

// newAddedTokens makes a finder; of tokens with the same content the first counts.
func newAddedTokens(tokens []addedToken) addedTokens {
	a := addedTokens{nodes: []trieNode{{token: -1}}, only: -1}
	for _, t := range tokens {
		if t.content == "" {
			continue
		}
		at := int32(0)
		for i := range len(t.content) {
			b := t.content[i]
			next, ok := a.nodes[at].next[b]
			if !ok {
				next = int32(len(a.nodes))
				a.nodes = append(a.nodes, trieNode{token: -1})
				if a.nodes[at].next == nil {
					a.nodes[at].next = map[byte]int32{}
				}
				a.nodes[at].next[b] = next
			}
			at = next
		}
		if a.nodes[at].token >= 0 {
			continue
		}
		a.nodes[at].token = int32(len(a.tokens))
		a.tokens = append(a.tokens, t)
		a.first[t.content[0]] = true
	}
	if len(a.nodes[0].next) == 1 {
		a.only = int(a.tokens[0].content[0])
	}
	return a
}

// find is the first token in text at or after from, and its place; nil, at the
// end, if there is no more.
func (a *addedTokens) find(text string, from int) (int, *addedToken) {
	if len(a.tokens) == 0 {
		return len(text), nil
	}
	for i := from; i < len(text); i++ {
		if a.only >= 0 { // the usual case: all begin with '<'
			next := strings.IndexByte(text[i:], byte(a.only))
			if next < 0 {
				break
			}
			i += next
		} else if !a.first[text[i]] {
			continue
		}
		if t := a.at(text[i:]); t != nil {
			return i, t
		}
	}
	return len(text), nil
}

// at is the longest token that text begins with.
func (a *addedTokens) at(text string) (longest *addedToken) {
	node := int32(0)
	for i := range len(text) {
		next, ok := a.nodes[node].next[text[i]]
		if !ok {
			break
		}
		node = next
		if t := a.nodes[node].token; t >= 0 {
			longest = &a.tokens[t]
		}
	}
	return longest
}

// cut gives the tokens in text to token, and what is between them to plain,
// with first true for what begins the whole text. first says whether text does.
func (a *addedTokens) cut(text string, first bool, plain func(text string, first bool), token func(id int32)) {
	done, from := 0, 0
	for {
		start, t := a.find(text, from)
		if t == nil {
			break
		}
		end := start + len(t.content)
		from = end
		if t.word && (endsWithWord(text[:start]) || startsWithWord(text[end:])) {
			continue
		}
		if t.left {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if t.right {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
			from = end
		}
		if start > done {
			plain(text[done:start], first && done == 0)
		}
		token(t.id)
		done = end
	}
	if done < len(text) {
		plain(text[done:], first && done == 0)
	}
}

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w of Unicode's regular expressions (Technical Standard 18, annex C).
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
