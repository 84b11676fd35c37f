package tokenizer

import (
	"cmp"
	"slices"
	"strings"
)

// addedToken is a token that is found in the text before anything else.
type addedToken struct {
	content string
	id      int32
}

// addedTokens finds them: the leftmost, and of those the longest.
type addedTokens struct {
	byFirst [256][]addedToken // by first byte, the longest first
	first   string            // the first bytes that occur
}

func newAddedTokens(tokens []addedToken) addedTokens {
	var a addedTokens
	for _, t := range tokens {
		b := t.content[0]
		if a.byFirst[b] == nil {
			a.first += string([]byte{b})
		}
		a.byFirst[b] = append(a.byFirst[b], t)
	}
	for i := range a.byFirst {
		slices.SortStableFunc(a.byFirst[i], func(x, y addedToken) int { return cmp.Compare(len(y.content), len(x.content)) })
	}
	return a
}

// find is the first added token in text and its place; none, at the end, if
// there is no more.
func (a *addedTokens) find(text string) (int, addedToken) {
	for i := 0; i < len(text); i++ {
		if a.byFirst[text[i]] == nil {
			if len(a.first) == 1 { // the usual case: all begin with '<'
				next := strings.IndexByte(text[i:], a.first[0])
				if next < 0 {
					break
				}
				i += next
			} else {
				continue
			}
		}
		for _, t := range a.byFirst[text[i]] {
			if strings.HasPrefix(text[i:], t.content) {
				return i, t
			}
		}
	}
	return len(text), addedToken{}
}

func (a *addedTokens) id(content string) (int32, bool) {
	if content != "" {
		for _, t := range a.byFirst[content[0]] {
			if t.content == content {
				return t.id, true
			}
		}
	}
	return 0, false
}
