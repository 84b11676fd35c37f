package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
)

// Limits of a schema's text.
const (
	maxSchemaBytes = 1 << 20
	maxSchemaDepth = 64
)

// document is a JSON value whose members keep their order.
type document struct {
	parent  *document
	name    string // in the parent
	kind    byte   // '{', '[', '"', '0' for numbers, 't', 'f' or 'n'
	text    string // of strings; of numbers as written
	items   []*document
	keys    []string
	members map[string]*document
}

// readDocument reads one JSON value.
func readDocument(raw []byte) (*document, error) {
	if len(raw) > maxSchemaBytes {
		return nil, fmt.Errorf("the schema has %d bytes: allowed are %d", len(raw), maxSchemaBytes)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	d, err := readValue(dec, nil, "", 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the schema goes on after its end")
	}
	return d, nil
}

// at is the value's JSON pointer.
func (d *document) at() string {
	if d.parent == nil {
		return "#"
	}
	return d.parent.at() + "/" + escapePointer.Replace(d.name)
}

func readValue(dec *json.Decoder, parent *document, name string, depth int) (*document, error) {
	d := &document{parent: parent, name: name}
	if depth > maxSchemaDepth {
		return nil, fmt.Errorf("%s: the schema is nested deeper than %d, which is the most", d.at(), maxSchemaDepth)
	}
	token, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("the schema is not valid JSON: %w", err)
	}
	switch v := token.(type) {
	case string:
		d.kind, d.text = '"', v
	case json.Number:
		d.kind, d.text = '0', v.String()
	case bool:
		d.kind = 'f'
		if v {
			d.kind = 't'
		}
	case nil:
		d.kind = 'n'
	case json.Delim:
		d.kind = byte(v)
		if v == '[' {
			return d, d.readItems(dec, depth)
		}
		return d, d.readMembers(dec, depth)
	}
	return d, nil
}

func (d *document) readItems(dec *json.Decoder, depth int) error {
	for dec.More() {
		item, err := readValue(dec, d, strconv.Itoa(len(d.items)), depth+1)
		if err != nil {
			return err
		}
		d.items = append(d.items, item)
	}
	return closing(dec)
}

// closing reads the end of a list or an object.
func closing(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("the schema is not valid JSON: %w", err)
	}
	return nil
}

func (d *document) readMembers(dec *json.Decoder, depth int) error {
	d.members = map[string]*document{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return fmt.Errorf("the schema is not valid JSON: %w", err)
		}
		key, _ := token.(string) // the decoder takes nothing else for a key
		if d.members[key] != nil {
			return fmt.Errorf("%s: %s is given twice", d.at(), quote(key))
		}
		member, err := readValue(dec, d, key, depth+1)
		if err != nil {
			return err
		}
		d.set(key, member)
	}
	return closing(dec)
}

// set adds or replaces a member.
func (d *document) set(key string, member *document) {
	if d.members[key] == nil {
		d.keys = append(d.keys, key)
	}
	d.members[key] = member
}

// RFC 6901.
var (
	escapePointer   = strings.NewReplacer("~", "~0", "/", "~1")
	unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")
)

// find is the value that a pointer such as "#/$defs/a" leads to; nil for none.
func (d *document) find(pointer string) *document {
	if pointer == "#" || pointer == "" {
		return d
	}
	rest, ok := strings.CutPrefix(pointer, "#/")
	if !ok {
		return nil
	}
	for part := range strings.SplitSeq(rest, "/") {
		if plain, err := url.PathUnescape(part); err == nil {
			part = plain
		}
		part = unescapePointer.Replace(part)
		switch d.kind {
		case '{':
			d = d.members[part]
		case '[':
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(d.items) {
				return nil
			}
			d = d.items[i]
		default:
			return nil
		}
		if d == nil {
			return nil
		}
	}
	return d
}

// String is the value as JSON without white space.
func (d *document) String() string {
	var s strings.Builder
	d.write(&s)
	return s.String()
}

func (d *document) write(s *strings.Builder) {
	switch d.kind {
	case '"':
		s.WriteString(quoted(d.text))
	case '0':
		s.WriteString(d.text)
	case 't':
		s.WriteString("true")
	case 'f':
		s.WriteString("false")
	case 'n':
		s.WriteString("null")
	case '[':
		s.WriteByte('[')
		for i, item := range d.items {
			if i > 0 {
				s.WriteByte(',')
			}
			item.write(s)
		}
		s.WriteByte(']')
	case '{':
		s.WriteByte('{')
		for i, key := range d.keys {
			if i > 0 {
				s.WriteByte(',')
			}
			s.WriteString(quoted(key))
			s.WriteByte(':')
			d.members[key].write(s)
		}
		s.WriteByte('}')
	}
}

// typeName is the JSON schema type of a value.
func (d *document) typeName() string {
	switch d.kind {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case '0':
		return "number"
	case 'n':
		return "null"
	}
	return "boolean"
}

// texts are the strings of a list of different ones.
func (d *document) texts() ([]string, bool) {
	if d.kind != '[' {
		return nil, false
	}
	var all []string
	seen := map[string]bool{}
	for _, item := range d.items {
		if item.kind != '"' || seen[item.text] {
			return nil, false
		}
		seen[item.text] = true
		all = append(all, item.text)
	}
	return all, true
}
