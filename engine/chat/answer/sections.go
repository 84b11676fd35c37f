package answer

import "strings"

// marks are the special tokens around a section of calls.
type marks struct {
	section, call, sep, callEnd, sectionEnd string
	qualified                               bool // the header is functions.NAME:NUMBER, and the call's id
}

func (m marks) all() []string {
	return []string{m.section, m.call, m.sep, m.callEnd, m.sectionEnd}
}

// Kimi K2: the header is the call's id, functions.NAME:NUMBER.
var kimiMarks = marks{
	"<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>", true,
}

// DeepSeek V3.1: the header is the name, and JSON follows. V3 and R1: the
// header is "function", then come the name, a line end, and JSON in a fence.
var deepSeekMarks = marks{
	"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", false,
}

// Where a sections is.
const (
	sectionContent = iota
	sectionBetween // the calls
	sectionHeader
	sectionLine // the name is in the line after the header
	sectionArguments
)

type sections struct {
	sink   *sink
	marks  marks
	place  int
	header strings.Builder
	args   arguments
}

func (s *sections) markers() []string {
	switch s.place {
	case sectionContent:
		return []string{s.marks.section, s.marks.call}
	case sectionBetween:
		return []string{s.marks.call, s.marks.sectionEnd}
	case sectionArguments:
		if s.args.inString() {
			return nil
		}
	}
	return []string{s.marks.sep, s.marks.call, s.marks.callEnd, s.marks.sectionEnd}
}

func (s *sections) marker(m string) {
	if s.place == sectionArguments && m != s.marks.sep {
		s.args.end()
	}
	switch m {
	case s.marks.section, s.marks.callEnd:
		s.place = sectionBetween
	case s.marks.call:
		s.place = sectionHeader
		s.header.Reset()
	case s.marks.sectionEnd:
		s.place = sectionContent
	case s.marks.sep:
		if s.place == sectionHeader {
			s.separated()
		}
	}
}

// separated begins a call, whose header is complete.
func (s *sections) separated() {
	name := strings.TrimSpace(s.header.String())
	if !s.marks.qualified && name == "function" {
		s.place = sectionLine
		s.header.Reset()
		return
	}
	id := ""
	if s.marks.qualified {
		id = name
		if i := strings.LastIndexByte(name, ':'); i >= 0 {
			name = name[:i]
		}
		name = strings.TrimPrefix(name, "functions.")
	}
	s.begin(name, id)
}

func (s *sections) begin(name, id string) {
	s.place = sectionArguments
	s.args = arguments{sink: s.sink, index: s.sink.begin(name, id)}
}

func (s *sections) text(c byte) {
	switch s.place {
	case sectionContent:
		s.sink.text(c)
	case sectionHeader:
		s.header.WriteByte(c)
	case sectionLine:
		name := strings.TrimSpace(s.header.String())
		switch {
		case c == '{' && name == "": // a tool that is called function
			s.begin("function", "")
			s.args.step(c)
		case c == '\n' && name != "":
			s.begin(name, "")
		default:
			s.header.WriteByte(c)
		}
	case sectionArguments:
		s.args.step(c)
	}
}

func (s *sections) end() {
	switch s.place {
	case sectionArguments:
		s.args.end()
	case sectionHeader: // cut off before it was a call
		s.sink.texts(s.marks.call + s.header.String())
	}
}
