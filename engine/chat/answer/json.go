package answer

import (
	"bytes"
	"encoding/json"
)

// extent finds where a JSON value that begins with a bracket ends.
type extent struct {
	depth            int
	inString, escape bool
	done             bool
}

// step takes the next byte.
func (e *extent) step(c byte) {
	switch {
	case e.escape:
		e.escape = false
	case e.inString:
		e.escape = c == '\\'
		e.inString = c != '"'
	case c == '"':
		e.inString = true
	case c == '{' || c == '[':
		e.depth++
	case c == '}' || c == ']':
		e.depth--
		e.done = e.depth <= 0
	}
}

// Where a reader of an object is.
const (
	beforeObject = iota
	beforeKey
	inKey
	beforeColon
	inValue
	afterObject
)

// object reads a JSON object that is a call: {"name": …, "arguments": …}, in
// any order, with "parameters" for the arguments too.
type object struct {
	place  int
	extent extent // of the value
	part   []byte // the key or the value
	key    string

	name, id string
	wrong    bool   // it is not such an object
	has      bool   // arguments are there
	args     []byte // what of them is certain
}

func (o *object) done() bool { return o.place == afterObject || o.wrong }

// inString tells whether the reader is in a string, where markers do not count.
func (o *object) inString() bool {
	return !o.wrong && (o.place == inKey || o.place == inValue && o.extent.inString)
}

// step takes the next byte. After done it must not be called.
func (o *object) step(c byte) {
	switch o.place {
	case beforeObject:
		if c == '{' {
			o.place = beforeKey
		} else if !isSpace(c) {
			o.wrong = true
		}
	case beforeKey:
		switch {
		case c == '"':
			o.place, o.part = inKey, append(o.part[:0], c)
			o.extent = extent{inString: true}
		case c == '}':
			o.place = afterObject
		case c != ',' && !isSpace(c):
			o.wrong = true
		}
	case inKey:
		o.part = append(o.part, c)
		if o.extent.step(c); !o.extent.inString {
			o.wrong = json.Unmarshal(o.part, &o.key) != nil
			o.place = beforeColon
		}
	case beforeColon:
		if c == ':' {
			o.place, o.part, o.extent = inValue, o.part[:0], extent{}
		} else if !isSpace(c) {
			o.wrong = true
		}
	case inValue:
		o.value(c)
	}
}

// value takes the next byte of a value.
func (o *object) value(c byte) {
	outside := o.extent.depth == 0 && !o.extent.inString
	if outside && (c == ',' || c == '}') {
		o.endValue()
		if o.place = beforeKey; c == '}' {
			o.place = afterObject
		}
		return
	}
	if outside && isSpace(c) {
		return
	}
	o.extent.step(c)
	if o.isArguments() && (len(o.part) == 0 && (c == '{' || c == '[') || len(o.part) > 0 && (o.part[0] == '{' || o.part[0] == '[')) {
		o.has = true
		o.args = append(o.args, c)
		o.part = append(o.part[:0], '{') // enough to know its kind
		return
	}
	o.part = append(o.part, c)
}

func (o *object) isArguments() bool { return o.key == "arguments" || o.key == "parameters" }

// endValue takes the value that has ended, unless it was passed on already.
func (o *object) endValue() {
	var s string
	isString := json.Unmarshal(o.part, &s) == nil && len(o.part) > 0 && o.part[0] == '"'
	switch {
	case o.key == "name" && isString && o.name == "":
		o.name = s
	case o.key == "id" && isString:
		o.id = s
	case o.isArguments() && isString: // JSON within a string
		o.args, o.has = append(o.args, s...), true
	case o.isArguments() && !o.has && len(o.part) > 0 && !bytes.Equal(o.part, []byte("null")):
		o.args, o.has = append(o.args, o.part...), true
	}
}

// caller passes an object on as a call, as soon as it is certain to be one.
type caller struct {
	object
	sink  *sink
	known bool // the name must be one of the tools'
	begun bool
	index int
	sent  int // bytes of the arguments
	raw   []byte
}

// step takes the next byte of the object.
func (c *caller) step(b byte) {
	if !c.begun {
		c.raw = append(c.raw, b)
	}
	c.object.step(b)
	ready := c.name != "" && !c.wrong && (c.has || c.place == afterObject && !c.known)
	if !c.begun && ready && (!c.known || c.sink.names[c.name]) {
		c.begun, c.raw = true, nil
		c.index = c.sink.begin(c.name, c.id)
	}
	if !c.begun {
		return
	}
	c.sink.argument(c.index, c.args[c.sent:])
	c.sent = len(c.args)
	if c.place == afterObject && c.sent == 0 {
		c.sink.argument(c.index, []byte("{}"))
		c.sent = 2
		c.args = []byte("{}")
	}
}
