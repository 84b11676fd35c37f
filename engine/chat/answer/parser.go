// Package answer takes a model's answer apart while it comes: reasoning,
// content, and calls of tools, in the formats that models were trained on.
//
// Parsers go byte by byte, so what an answer is taken for does not depend on
// how it was cut into pieces. Text that may still turn out to be a marker is
// held back; a call is passed on as soon as its name is certain.
package answer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Delta is what a piece of an answer adds to the message.
type Delta struct {
	Reasoning string
	Content   string
	Calls     []Call
}

// Empty tells whether nothing was added.
func (d *Delta) Empty() bool { return d.Reasoning == "" && d.Content == "" && len(d.Calls) == 0 }

// Call is a call of a tool, or more of its arguments.
type Call struct {
	Index     int    // of the answer's calls
	ID        string // on the first piece only
	Name      string // on the first piece only
	Arguments string // JSON, as the model wrote it
}

// Config says what to look for.
type Config struct {
	Tools     string          // the format of calls, one of ToolFormats; empty: none
	Names     map[string]bool // the tools that there are; used where a call looks like any JSON
	Think     bool            // reasoning is between <think> and </think>
	Thinking  bool            // the prompt ends within the reasoning
	NewID     func() string   // names a call that the model did not name
	KeepSpace bool            // pass white space on at once, also where a call may follow
}

// Names of the formats of calls.
const (
	Hermes   = "hermes"
	Llama3   = "llama3_json"
	Mistral  = "mistral"
	KimiK2   = "kimi_k2"
	DeepSeek = "deepseek_v3"
)

// formats make the part that finds calls, and list its markers.
var formats = map[string]struct {
	make    func(*sink) state
	markers []string
	sign    string // is in the templates of models with this format
}{
	Hermes:   {func(s *sink) state { return &hermes{sink: s} }, []string{hermesOpen, hermesClose}, hermesOpen},
	Llama3:   {func(s *sink) state { return &llama{sink: s} }, []string{pythonTag}, `"parameters": `},
	Mistral:  {func(s *sink) state { return &mistral{sink: s} }, []string{mistralCalls, mistralArgs, mistralID}, mistralCalls},
	KimiK2:   {func(s *sink) state { return &sections{sink: s, marks: kimiMarks} }, kimiMarks.all(), kimiMarks.section},
	DeepSeek: {func(s *sink) state { return &sections{sink: s, marks: deepSeekMarks} }, deepSeekMarks.all(), deepSeekMarks.section},
}

// ToolFormats are the names of the formats of calls.
func ToolFormats() []string { return slices.Sorted(maps.Keys(formats)) }

// Detect guesses from a chat template what a model's answers look like: the
// format of calls, empty for none, and whether there is reasoning.
func Detect(template string) (tools string, think bool) {
	for _, name := range []string{KimiK2, DeepSeek, Mistral, Hermes, Llama3} {
		if strings.Contains(template, formats[name].sign) && (name != Llama3 || strings.Contains(template, "<|start_header_id|>")) {
			tools = name
			break
		}
	}
	return tools, strings.Contains(template, thinkClose)
}

// Markers are the texts that a parser must see, though they may be special tokens.
func Markers(tools string, think bool) []string {
	all := slices.Clone(formats[tools].markers)
	if think {
		all = append(all, thinkOpen, thinkClose)
	}
	return all
}

// ThinkMarks are the texts before and after reasoning.
func ThinkMarks() (open, shut string) { return thinkOpen, thinkClose }

// Parser takes one answer apart.
type Parser struct {
	sink  sink
	think *thinker // nil: no reasoning, or it is over
	rest  state    // of the answer proper
	first matcher
	match matcher
}

// New makes a Parser; the error is an unknown format.
func New(c Config) (*Parser, error) {
	p := &Parser{sink: sink{names: c.Names, newID: c.NewID, keepSpace: c.KeepSpace || c.Tools == ""}}
	if c.Tools == "" {
		p.rest = &plain{sink: &p.sink}
	} else if f, ok := formats[c.Tools]; ok {
		p.rest = f.make(&p.sink)
	} else {
		return nil, fmt.Errorf("there is no format of tool calls %q: allowed are %s", c.Tools, strings.Join(ToolFormats(), ", "))
	}
	if c.Think || c.Thinking {
		p.think = &thinker{p: p, inside: c.Thinking}
	}
	return p, nil
}

// Push adds text of the answer.
func (p *Parser) Push(text string) Delta {
	for i := range len(text) {
		if p.think != nil {
			p.first.push(text[i], p.think)
		} else {
			p.match.push(text[i], p.rest)
		}
	}
	return p.sink.take()
}

// Flush ends the answer. A call without its closing marker stays a call.
func (p *Parser) Flush() Delta {
	if p.think != nil {
		p.first.flush(p.think)
	}
	p.match.flush(p.rest)
	p.rest.end()
	p.sink.end()
	return p.sink.take()
}

// Calls is the number of calls so far.
func (p *Parser) Calls() int { return p.sink.calls }

// state is a part of an answer's way.
type state interface {
	markers() []string // those that count now
	marker(m string)   // one was found
	text(c byte)       // what is no part of one
	end()              // of the answer
}

// matcher finds markers in bytes that come one by one.
type matcher struct{ pending []byte }

func (m *matcher) push(c byte, s state) {
	m.pending = append(m.pending, c)
	for len(m.pending) > 0 {
		whole, part := m.find(s.markers())
		if whole == "" && part {
			return
		}
		if whole != "" {
			m.drop(len(whole))
			s.marker(whole)
			continue
		}
		c := m.pending[0]
		m.drop(1)
		s.text(c)
	}
}

func (m *matcher) drop(n int) { m.pending = m.pending[:copy(m.pending, m.pending[n:])] }

// find tells whether what is pending begins with a marker, or may become one.
func (m *matcher) find(markers []string) (whole string, part bool) {
	for _, marker := range markers {
		n := min(len(m.pending), len(marker))
		if string(m.pending[:n]) != marker[:n] {
			continue
		}
		if n == len(marker) {
			return marker, false
		}
		part = true
	}
	return "", part
}

// flush passes on what did not become a marker.
func (m *matcher) flush(s state) {
	for len(m.pending) > 0 {
		c := m.pending[0]
		m.drop(1)
		s.text(c)
	}
}

// sink collects what the states find.
type sink struct {
	names     map[string]bool
	newID     func() string
	keepSpace bool

	reasoning, content strings.Builder
	deltas             []Call
	arguments          []byte // more of those of the last of deltas
	held               []byte // white space that is content only if more content follows
	skip               bool   // white space before content is left out
	calls              int
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// text adds a byte of content.
func (s *sink) text(c byte) {
	switch {
	case isSpace(c) && s.skip:
	case isSpace(c) && !s.keepSpace:
		s.held = append(s.held, c)
	default:
		s.content.Write(s.held)
		s.held, s.skip = s.held[:0], false
		s.content.WriteByte(c)
	}
}

func (s *sink) texts(all string) {
	for i := range len(all) {
		s.text(all[i])
	}
}

// begin starts a call and returns its index. What has no name is no call: its
// index is −1, and its arguments are content.
func (s *sink) begin(name, id string) int {
	if name == "" {
		return -1
	}
	s.held, s.skip = s.held[:0], true
	if id == "" {
		id = s.newID()
	}
	s.settle()
	s.deltas = append(s.deltas, Call{Index: s.calls, ID: id, Name: name})
	s.calls++
	return s.calls - 1
}

// argument adds to a call's arguments.
func (s *sink) argument(index int, text []byte) {
	switch {
	case len(text) == 0:
		return
	case index < 0:
		s.texts(string(text))
		return
	}
	if n := len(s.deltas); n == 0 || s.deltas[n-1].Index != index {
		s.settle()
		s.deltas = append(s.deltas, Call{Index: index})
	}
	s.arguments = append(s.arguments, text...)
}

// settle gives the last of deltas its arguments.
func (s *sink) settle() {
	if len(s.arguments) > 0 {
		s.deltas[len(s.deltas)-1].Arguments += string(s.arguments)
		s.arguments = s.arguments[:0]
	}
}

func (s *sink) end() {
	if s.calls == 0 {
		s.content.Write(s.held)
	}
	s.held = nil
}

// take is what was collected since the last time.
func (s *sink) take() Delta {
	s.settle()
	d := Delta{Reasoning: s.reasoning.String(), Content: s.content.String(), Calls: s.deltas}
	s.reasoning.Reset()
	s.content.Reset()
	s.deltas = nil
	return d
}

// plain has no calls.
type plain struct{ sink *sink }

func (p *plain) markers() []string { return nil }
func (p *plain) marker(string)     {}
func (p *plain) text(c byte)       { p.sink.text(c) }
func (p *plain) end()              {}

const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// thinker is the reasoning at an answer's begin, without the white space around it.
type thinker struct {
	p      *Parser
	inside bool
	begun  bool   // something of the reasoning was there
	held   []byte // white space
}

func (t *thinker) markers() []string {
	switch {
	case t.p.think == nil:
		return nil
	case t.inside && t.begun:
		return []string{thinkClose}
	}
	return []string{thinkOpen, thinkClose} // some models open it though the prompt did
}

func (t *thinker) marker(m string) {
	if m == thinkOpen {
		t.inside, t.held = true, nil
		return
	}
	t.p.sink.skip = true
	t.leave(nil)
}

// leave goes on to the answer proper, with what belongs to it.
func (t *thinker) leave(text []byte) {
	t.p.think = nil
	for _, c := range text {
		t.p.match.push(c, t.p.rest)
	}
}

func (t *thinker) text(c byte) {
	switch {
	case t.p.think == nil: // what was pending when the reasoning ended
		t.p.match.push(c, t.p.rest)
	case isSpace(c):
		t.held = append(t.held, c)
	case !t.inside:
		t.leave(append(t.held, c))
	default:
		if t.begun {
			t.p.sink.reasoning.Write(t.held)
		}
		t.begun, t.held = true, t.held[:0]
		t.p.sink.reasoning.WriteByte(c)
	}
}

func (t *thinker) end() {}
