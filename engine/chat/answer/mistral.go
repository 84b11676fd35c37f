package answer

import "strings"

// Mistral: [TOOL_CALLS] and a list of {"name": …, "arguments": …, "id": …}; in
// newer models [TOOL_CALLS]name[ARGS]{…} for each call, perhaps with
// [CALL_ID]id before the arguments.
const (
	mistralCalls = "[TOOL_CALLS]"
	mistralArgs  = "[ARGS]"
	mistralID    = "[CALL_ID]"
)

// Where a mistral is.
const (
	mistralContent = iota
	mistralHead    // after [TOOL_CALLS]
	mistralList    // between the objects of a list
	mistralObject
	mistralName
	mistralCallID
	mistralArguments
)

type mistral struct {
	sink     *sink
	place    int
	call     *caller
	single   bool // the object is in no list
	name, id strings.Builder
	args     arguments
}

func (m *mistral) markers() []string {
	switch m.place {
	case mistralContent:
		return []string{mistralCalls}
	case mistralName, mistralCallID:
		return []string{mistralArgs, mistralID, mistralCalls}
	}
	return nil
}

func (m *mistral) marker(mark string) {
	switch mark {
	case mistralCalls:
		m.place = mistralHead
		m.name.Reset()
		m.id.Reset()
	case mistralID:
		m.place = mistralCallID
	case mistralArgs:
		m.place = mistralArguments
		m.args = arguments{sink: m.sink, index: m.sink.begin(strings.TrimSpace(m.name.String()), strings.TrimSpace(m.id.String()))}
	}
}

func (m *mistral) text(c byte) {
	switch m.place {
	case mistralContent:
		m.sink.text(c)
	case mistralHead:
		switch {
		case isSpace(c):
		case c == '[':
			m.place, m.single = mistralList, false
		case c == '{':
			m.single = true
			m.open(c)
		default:
			m.place = mistralName
			m.name.WriteByte(c)
		}
	case mistralList:
		switch {
		case c == '{':
			m.open(c)
		case c == ']':
			m.place = mistralContent
		case c != ',' && !isSpace(c):
			m.place = mistralContent
			m.sink.text(c)
		}
	case mistralObject:
		m.step(c)
	case mistralName:
		m.name.WriteByte(c)
	case mistralCallID:
		m.id.WriteByte(c)
	case mistralArguments:
		if m.args.step(c); m.args.extent.done {
			m.place = mistralContent
		}
	}
}

func (m *mistral) open(c byte) {
	m.place, m.call = mistralObject, &caller{sink: m.sink}
	m.step(c)
}

func (m *mistral) step(c byte) {
	m.call.step(c)
	if !m.call.done() {
		return
	}
	if !m.call.begun {
		m.sink.texts(string(m.call.raw))
	}
	if m.place = mistralList; m.single {
		m.place = mistralContent
	}
	m.call = nil
}

func (m *mistral) end() {
	switch {
	case m.call != nil && !m.call.begun:
		m.sink.texts(string(m.call.raw))
	case m.place == mistralName, m.place == mistralCallID:
		m.sink.texts(mistralCalls + m.name.String())
	case m.place == mistralArguments:
		m.args.end()
	}
}

// arguments passes a call's arguments on: a JSON object, and nothing around it.
type arguments struct {
	sink   *sink
	index  int
	begun  bool
	extent extent
}

func (a *arguments) step(c byte) {
	if !a.begun && c != '{' || a.extent.done {
		return
	}
	a.begun = true
	a.extent.step(c)
	a.sink.argument(a.index, []byte{c})
}

func (a *arguments) inString() bool { return a.extent.inString }

func (a *arguments) end() {
	if !a.begun {
		a.sink.argument(a.index, []byte("{}"))
		a.begun, a.extent.done = true, true
	}
}
