package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// component is a part of the way to or from tokens, as tokenizer.json has it:
// an object with a type and members of its own.
type component struct {
	kind string // empty for null
	raw  json.RawMessage
}

func (c *component) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*c = component{}
		return nil
	}
	var t struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return err
	}
	if t.Type == "" {
		return errors.New("a component has no type")
	}
	c.kind, c.raw = t.Type, append(c.raw[:0], b...)
	return nil
}

// decode reads the members.
func (c component) decode(into any) error {
	if err := json.Unmarshal(c.raw, into); err != nil {
		return fmt.Errorf("%s: %w", c.kind, err)
	}
	return nil
}

// maxNesting is how deep sequences may be within each other.
const maxNesting = 8

// flat is the components of a sequence, those within sequences included, whose
// member key has the parts; of another component itself, of null nothing.
func (c component) flat(key string) ([]component, error) { return c.flatten(key, maxNesting) }

func (c component) flatten(key string, depth int) ([]component, error) {
	switch c.kind {
	case "":
		return nil, nil
	case "Sequence":
	default:
		return []component{c}, nil
	}
	if depth == 0 {
		return nil, fmt.Errorf("Sequence: more than %d within each other are not supported", maxNesting)
	}
	var members map[string]json.RawMessage
	if err := c.decode(&members); err != nil {
		return nil, err
	}
	var parts []component
	if err := json.Unmarshal(members[key], &parts); err != nil {
		return nil, fmt.Errorf("Sequence: %s is not a list of components: %w", key, err)
	}
	var all []component
	for _, p := range parts {
		if p.kind == "" {
			return nil, fmt.Errorf("Sequence: %s has a null", key)
		}
		inner, err := p.flatten(key, depth-1)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// notSupported is the error for a component that this package does not have.
func (c component) notSupported(supported string) error {
	kind := c.kind
	if kind == "" {
		kind = "null"
	}
	return fmt.Errorf("%.60q is not supported: supported are %s", kind, supported)
}

// pattern is what Split and Replace look for.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

func (p pattern) spans() (spans, error) {
	switch {
	case p.Regex != nil && p.String == nil:
		return patternSpans(*p.Regex)
	case p.String != nil && p.Regex == nil && *p.String != "":
		return literalSpans(*p.String), nil
	}
	return nil, errors.New("pattern must be one Regex or one String that is not empty")
}

// replacer is the function of a Replace.
func (c component) replacer() (func(string) string, error) {
	var r struct {
		Pattern pattern `json:"pattern"`
		Content string  `json:"content"`
	}
	if err := c.decode(&r); err != nil {
		return nil, err
	}
	of, err := r.Pattern.spans()
	if err != nil {
		return nil, fmt.Errorf("Replace: %w", err)
	}
	if r.Pattern.String != nil {
		return func(s string) string { return strings.ReplaceAll(s, *r.Pattern.String, r.Content) }, nil
	}
	return func(s string) string {
		var b strings.Builder
		of(s, func(p span) {
			if p.match {
				b.WriteString(r.Content)
			} else {
				b.WriteString(s[p.start:p.end])
			}
		})
		return b.String()
	}, nil
}

// readNormalizer makes the function of a normaliser; nil if it does nothing.
func readNormalizer(c component) (func(string) string, error) {
	parts, err := c.flat("normalizers")
	if err != nil {
		return nil, err
	}
	var steps []func(string) string
	for _, p := range parts {
		var step func(string) string
		var err error
		switch p.kind {
		case "NFC":
			step = norm.NFC.String
		case "NFD":
			step = norm.NFD.String
		case "NFKC":
			step = norm.NFKC.String
		case "NFKD":
			step = norm.NFKD.String
		case "Prepend":
			var m struct {
				Prepend string `json:"prepend"`
			}
			err = p.decode(&m)
			step = func(s string) string {
				if s == "" {
					return s
				}
				return m.Prepend + s
			}
		case "Replace":
			step, err = p.replacer()
		default:
			err = p.notSupported("NFC, NFD, NFKC, NFKD, Prepend, Replace and a Sequence of these")
		}
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	if len(steps) == 0 {
		return nil, nil
	}
	return func(s string) string {
		for _, step := range steps {
			s = step(s)
		}
		return s
	}, nil
}

// readPreTokenizer makes the splitter of a pre-tokenizer. byteLevel says that
// the pieces are to be taken as bytes.
func readPreTokenizer(c component) (split splitter, byteLevel bool, err error) {
	parts, err := c.flat("pretokenizers")
	if err != nil {
		return nil, false, err
	}
	var steps []splitter
	for i, p := range parts {
		var step splitter
		switch p.kind {
		case "ByteLevel":
			if i < len(parts)-1 {
				return nil, false, errors.New("Sequence: ByteLevel is supported at the end only")
			}
			byteLevel = true
			step, err = readByteLevel(p)
		case "Split":
			step, err = readSplit(p)
		case "Digits":
			step, err = readDigits(p)
		case "Metaspace":
			step, err = readMetaspace(p)
		default:
			err = p.notSupported("ByteLevel, Split, Digits, Metaspace and a Sequence of these")
		}
		if err != nil {
			return nil, false, err
		}
		steps = append(steps, step)
	}
	return chain(steps), byteLevel, nil
}

func readByteLevel(c component) (splitter, error) {
	m := struct {
		AddPrefixSpace bool `json:"add_prefix_space"`
		UseRegex       bool `json:"use_regex"`
	}{UseRegex: true}
	if err := c.decode(&m); err != nil {
		return nil, err
	}
	split := splitter(whole)
	if m.UseRegex {
		of, err := patternSpans(gpt2Pattern)
		if err != nil {
			return nil, err
		}
		split = newSplitter(of, "Isolated", false)
	}
	if m.AddPrefixSpace {
		split = prefixed(" ", false, split)
	}
	return split, nil
}

func readSplit(c component) (splitter, error) {
	var m struct {
		Pattern  pattern `json:"pattern"`
		Behavior string  `json:"behavior"`
		Invert   bool    `json:"invert"`
	}
	if err := c.decode(&m); err != nil {
		return nil, err
	}
	of, err := m.Pattern.spans()
	if err != nil {
		return nil, fmt.Errorf("Split: %w", err)
	}
	if behaviors[m.Behavior] == nil {
		return nil, fmt.Errorf("Split: behavior %.60q is not supported: supported are Isolated, Removed, Contiguous, MergedWithPrevious and MergedWithNext", m.Behavior)
	}
	return newSplitter(of, m.Behavior, m.Invert), nil
}

func readDigits(c component) (splitter, error) {
	var m struct {
		Individual bool `json:"individual_digits"`
	}
	if err := c.decode(&m); err != nil {
		return nil, err
	}
	numbers := func(text string, f func(span)) {
		for at := 0; at < len(text); {
			match := true
			n := run(text[at:], 1, isNumber)
			if n == 0 {
				match = false
				n = run(text[at:], noLimit, func(r rune) bool { return !isNumber(r) })
			}
			f(span{at, at + n, match})
			at += n
		}
	}
	if m.Individual {
		return newSplitter(numbers, "Isolated", false), nil
	}
	return newSplitter(numbers, "Contiguous", false), nil
}

// metaspace is the members of Metaspace, which is a pre-tokenizer and a decoder:
// a code point, usually ▁, stands for the space.
type metaspace struct {
	Replacement    string  `json:"replacement"`
	PrependScheme  *string `json:"prepend_scheme"`
	AddPrefixSpace *bool   `json:"add_prefix_space"` // of older files
	Split          *bool   `json:"split"`
}

func (c component) metaspace() (metaspace, error) {
	var m metaspace
	if err := c.decode(&m); err != nil {
		return m, err
	}
	if len([]rune(m.Replacement)) != 1 {
		return m, fmt.Errorf("Metaspace: replacement %.60q must be one code point", m.Replacement)
	}
	if m.PrependScheme == nil {
		scheme := "always"
		if m.AddPrefixSpace != nil && !*m.AddPrefixSpace {
			scheme = "never"
		}
		m.PrependScheme = &scheme
	}
	switch *m.PrependScheme {
	case "always", "first", "never":
		return m, nil
	}
	return m, fmt.Errorf("Metaspace: prepend_scheme %.60q is not supported: supported are always, first and never", *m.PrependScheme)
}

func readMetaspace(c component) (splitter, error) {
	m, err := c.metaspace()
	if err != nil {
		return nil, err
	}
	split := splitter(whole)
	if m.Split == nil || *m.Split {
		split = newSplitter(literalSpans(m.Replacement), "MergedWithNext", false)
	}
	if scheme := *m.PrependScheme; scheme != "never" {
		split = prefixed(m.Replacement, scheme == "first", split)
	}
	return func(text string, first bool, yield func(string, bool)) {
		split(strings.ReplaceAll(text, " ", m.Replacement), first, yield)
	}, nil
}
