package answer

// Hermes, Qwen2.5 and Qwen3: <tool_call>{"name": …, "arguments": …}</tool_call>.
const (
	hermesOpen  = "<tool_call>"
	hermesClose = "</tool_call>"
)

type hermes struct {
	sink *sink
	call *caller // nil: in the content
}

func (h *hermes) markers() []string {
	switch {
	case h.call == nil:
		return []string{hermesOpen}
	case h.call.inString():
		return nil
	}
	return []string{hermesOpen, hermesClose}
}

func (h *hermes) marker(m string) {
	h.leave(m)
	if m == hermesOpen {
		h.call = &caller{sink: h.sink}
	}
}

// leave ends a call. What was none is content.
func (h *hermes) leave(closing string) {
	if c := h.call; c != nil && !c.begun {
		h.sink.texts(hermesOpen + string(c.raw))
		if closing == hermesClose {
			h.sink.texts(closing)
		}
	}
	h.call = nil
}

func (h *hermes) text(c byte) {
	switch {
	case h.call == nil:
		h.sink.text(c)
	case !h.call.done():
		h.call.step(c)
	case !h.call.begun:
		h.call.raw = append(h.call.raw, c)
	}
}

func (h *hermes) end() { h.leave("") }

// Llama 3.1 to 3.3: the answer is {"name": …, "parameters": …}, alone or several
// with ";" between, perhaps after <|python_tag|>.
const pythonTag = "<|python_tag|>"

type llama struct {
	sink  *sink
	call  *caller
	plain bool // the answer is no call
	after bool // a call was there
}

func (l *llama) markers() []string {
	if l.plain || l.call != nil {
		return nil
	}
	return []string{pythonTag}
}

func (l *llama) marker(string) {}

func (l *llama) text(c byte) {
	switch {
	case l.call != nil:
		l.step(c)
	case l.plain:
		l.sink.text(c)
	case c == '{':
		l.call = &caller{sink: l.sink, known: true}
		l.step(c)
	case isSpace(c) && !l.after:
		l.sink.text(c)
	case !isSpace(c) && (!l.after || c != ';' && c != ','):
		l.plain = true
		l.sink.text(c)
	}
}

func (l *llama) step(c byte) {
	l.call.step(c)
	if !l.call.done() {
		return
	}
	if l.call.begun {
		l.after = true
	} else {
		l.plain = true
		l.sink.texts(string(l.call.raw))
	}
	l.call = nil
}

func (l *llama) end() {
	if l.call != nil && !l.call.begun {
		l.sink.texts(string(l.call.raw))
	}
}
