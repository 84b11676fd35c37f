package chat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names that a rewritten template has for the parts that this package does
// itself; see funcs.go. Templates do not begin names of their own with helper.
const helper = "_or_"

// rewriter turns a template into one that means the same to the library as the
// original does to Jinja. The library gets no text at all, so its own treatment
// of white space has nothing to do; what it computes otherwise than Jinja
// becomes a call of a function of this package; and every loop, macro and
// output passes by one that keeps the limits.
type rewriter struct {
	out     strings.Builder
	texts   []string
	lines   int // line ends that out is behind the original
	blocks  []block
	names   int // made up so far
	assigns map[int][]string
}

// block is an open statement.
type block struct {
	kind string // "if", "for", "macro", "call", "set", "filter", "generation"
	line int
	end  string // what its end tag becomes
}

// rewrite gives the source for the library, and the texts that it shows by number.
func rewrite(src string) (string, []string, error) {
	segments, err := lex(src)
	if err != nil {
		return "", nil, err
	}
	r := &rewriter{assigns: assignments(segments)}
	for i, s := range segments {
		switch s.kind {
		case 't':
			r.emit("{{ %stext(%d)", helper, len(r.texts))
			r.texts = append(r.texts, s.text)
			r.close(s, "}}")
		case '{':
			var inner string
			if inner, err = expression(s.tokens); err == nil {
				r.emit("{{ %sshow(%d, (%s))", helper, s.line, inner)
				r.close(s, "}}")
			}
		default:
			err = r.statement(i, s)
		}
		if err != nil {
			return "", nil, &templateError{s.line, err.Error()}
		}
	}
	if n := len(r.blocks); n > 0 {
		b := r.blocks[n-1]
		return "", nil, &templateError{b.line, fmt.Sprintf("%s has no end: write {%% end%s %%}", b.kind, b.kind)}
	}
	return r.out.String(), r.texts, nil
}

func (r *rewriter) emit(format string, args ...any) { fmt.Fprintf(&r.out, format, args...) }

// close ends a tag, with the line ends of its segment in it: the library's
// errors then name the lines of the original.
func (r *rewriter) close(s segment, end string) {
	r.out.WriteString(strings.Repeat("\n", s.lines+r.lines))
	r.lines = 0
	r.out.WriteString(end)
}

// stmt emits a statement tag.
func (r *rewriter) stmt(s segment, format string, args ...any) {
	r.out.WriteString("{% ")
	r.emit(format, args...)
	r.close(s, " %}")
}

// name makes up a variable.
func (r *rewriter) name() string {
	r.names++
	return helper + "v" + strconv.Itoa(r.names)
}

func (r *rewriter) open(kind string, s segment, end string) error {
	if len(r.blocks) == maxDepth {
		return fmt.Errorf("more than %d blocks within each other", maxDepth)
	}
	r.blocks = append(r.blocks, block{kind, s.line, end})
	return nil
}

// inside tells whether the innermost block is one of kinds.
func (r *rewriter) inside(kinds ...string) bool {
	n := len(r.blocks)
	return n > 0 && slices.Contains(kinds, r.blocks[n-1].kind)
}

func (r *rewriter) statement(i int, s segment) error {
	if len(s.tokens) == 0 || s.tokens[0].kind != 'n' {
		return fmt.Errorf("a statement tag must begin with a keyword, such as if or for")
	}
	rest := s.tokens[1:]
	switch keyword := s.tokens[0].text; keyword {
	case "if", "elif":
		if keyword == "elif" && !r.inside("if") {
			return fmt.Errorf("elif is not within if")
		}
		condition, err := expression(rest)
		if err != nil {
			return err
		}
		r.stmt(s, "%s (%s)", keyword, condition)
		if keyword == "if" {
			return r.open("if", s, "{% endif %}")
		}
	case "else":
		if !r.inside("if", "for") {
			return fmt.Errorf("else is not within if or for")
		}
		r.stmt(s, "else")
	case "for":
		return r.loop(i, s, rest)
	case "break", "continue":
		if !slices.ContainsFunc(r.blocks, func(b block) bool { return b.kind == "for" }) {
			return fmt.Errorf("%s is not within for", keyword)
		}
		r.stmt(s, "%s", keyword)
	case "set":
		return r.set(s, rest)
	case "macro":
		return r.macro(s, rest)
	case "call":
		return r.call(s, rest)
	case "filter":
		name := r.name()
		shown, err := expression(append([]token{{'n', name}, {'o', "|"}}, rest...))
		if err != nil {
			return err
		}
		r.stmt(s, "set %s", name)
		return r.open("filter", s, fmt.Sprintf("{%% endset %%}{{ %sshow(%d, (%s)) }}", helper, s.line, shown))
	case "generation": // marks what was trained on
		r.lines += s.lines
		return r.open("generation", s, "")
	default:
		if kind, ok := strings.CutPrefix(keyword, "end"); ok && r.inside(kind) {
			n := len(r.blocks) - 1
			r.out.WriteString(r.blocks[n].end)
			r.blocks, r.lines = r.blocks[:n], r.lines+s.lines
			return nil
		}
		return fmt.Errorf("statement %q is not supported here: supported are if, for, set, macro, call, filter, raw, break, continue and generation", keyword)
	}
	return nil
}

// loop is a for statement. To the library all turns of a loop share their
// variables; in Jinja each begins with those of before the loop. So what the
// body sets is kept before the loop and put back at each turn.
func (r *rewriter) loop(i int, s segment, rest []token) error {
	in := slices.Index(rest, token{'n', "in"})
	if in < 1 {
		return fmt.Errorf("for needs the form: for NAME in LIST")
	}
	if n := len(rest); rest[n-1].is('n', "recursive") {
		return fmt.Errorf("for with recursive is not supported")
	}
	targets, err := names(rest[:in])
	if err != nil || len(targets) > 2 {
		return fmt.Errorf("for takes one or two names before in")
	}
	of, err := expression(rest[in+1:])
	if err != nil {
		return err
	}
	var back strings.Builder
	for _, name := range r.assigns[i] {
		if !slices.Contains(targets, name) {
			kept := r.name()
			r.emit("{%% set %s = %s %%}", kept, name)
			fmt.Fprintf(&back, "{%% set %s = %s %%}", name, kept)
		}
	}
	r.stmt(s, "for %s in %s", strings.Join(targets, ", "), of)
	r.emit("{{ %sturn(%d) }}%s", helper, s.line, back.String())
	return r.open("for", s, "{% endfor %}")
}

// names reads a list of names, with brackets around it or not.
func names(tokens []token) ([]string, error) {
	if n := len(tokens); n > 2 && tokens[0].is('o', "(") && tokens[n-1].is('o', ")") {
		tokens = tokens[1 : n-1]
	}
	var all []string
	for i, t := range tokens {
		if i%2 == 0 && t.kind == 'n' {
			all = append(all, t.text)
		} else if i%2 == 0 || !t.is('o', ",") {
			return nil, fmt.Errorf("%q is not a list of names", t.text)
		}
	}
	return all, nil
}

func (r *rewriter) set(s segment, rest []token) error {
	equals := slices.Index(rest, token{'o', "="})
	if len(rest) == 0 || rest[0].kind != 'n' {
		return fmt.Errorf("set needs a name")
	}
	if equals < 0 {
		return r.setBlock(s, rest)
	}
	target := rest[0].text
	switch {
	case equals == 3 && rest[1].is('o', ".") && rest[2].kind == 'n':
		target += "." + rest[2].text
	case equals != 1:
		return fmt.Errorf("set takes one name, or one member of a namespace")
	}
	value, err := expression(rest[equals+1:])
	if err != nil {
		return err
	}
	r.stmt(s, "set %s = (%s)", target, value)
	return nil
}

// setBlock is set without a value: the name gets what is shown up to endset.
func (r *rewriter) setBlock(s segment, rest []token) error {
	if len(rest) == 1 {
		r.stmt(s, "set %s", rest[0].text)
		return r.open("set", s, "{% endset %}")
	}
	name := r.name()
	value, err := expression(append([]token{{'n', name}}, rest[1:]...))
	if err != nil || !rest[1].is('o', "|") {
		return fmt.Errorf("set without = takes a name, and filters after |")
	}
	r.stmt(s, "set %s", name)
	return r.open("set", s, fmt.Sprintf("{%% endset %%}{%% set %s = (%s) %%}", rest[0].text, value))
}

// macro begins a macro. Defaults become statements of its body, since the
// library takes only the simplest.
func (r *rewriter) macro(s segment, rest []token) error {
	n := len(rest)
	if n < 3 || rest[0].kind != 'n' || !rest[1].is('o', "(") || !rest[n-1].is('o', ")") {
		return fmt.Errorf("macro needs the form: macro NAME(PARAMETERS)")
	}
	var params []string
	var defaults strings.Builder
	for _, part := range split(rest[2 : n-1]) {
		if part[0].kind != 'n' || len(part) == 2 || len(part) > 1 && !part[1].is('o', "=") {
			return fmt.Errorf("a parameter of a macro is a name, or a name = a default")
		}
		params = append(params, part[0].text)
		if len(part) > 2 {
			value, err := expression(part[2:])
			if err != nil {
				return err
			}
			fmt.Fprintf(&defaults, "{%% if %s is undefined %%}{%% set %s = (%s) %%}{%% endif %%}", part[0].text, part[0].text, value)
		}
	}
	r.stmt(s, "macro %s(%s)", rest[0].text, strings.Join(params, ", "))
	r.emit("{{ %senter(%d) }}%s", helper, s.line, defaults.String())
	return r.open("macro", s, "{{ "+helper+"leave() }}{% endmacro %}")
}

// split cuts tokens at the commas that are not within brackets; empty parts are left out.
func split(tokens []token) [][]token {
	var parts [][]token
	depth, from := 0, 0
	for i := 0; i <= len(tokens); i++ {
		if i == len(tokens) || depth == 0 && tokens[i].is('o', ",") {
			if i > from {
				parts = append(parts, tokens[from:i])
			}
			from = i + 1
			continue
		}
		depth += bracket(tokens[i])
	}
	return parts
}

// bracket is 1 for one that opens, −1 for one that closes.
func bracket(t token) int {
	switch {
	case t.kind != 'o':
		return 0
	case strings.Contains("([{", t.text):
		return 1
	case strings.Contains(")]}", t.text):
		return -1
	}
	return 0
}

// call is a call block; its arguments, if any, come before the macro.
func (r *rewriter) call(s segment, rest []token) error {
	args := ""
	if len(rest) > 0 && rest[0].is('o', "(") {
		end := slices.Index(rest, token{'o', ")"})
		params, err := names(rest[1:max(1, end)])
		if err != nil {
			return err
		}
		args, rest = "("+strings.Join(params, ", ")+")", rest[end+1:]
	}
	what, err := expression(rest)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(what, ")") {
		return fmt.Errorf("call needs the form: call MACRO(ARGUMENTS)")
	}
	r.stmt(s, "call%s %s", args, what)
	return r.open("call", s, "{% endcall %}")
}

// assignments are the names that each loop's body sets, by the segment of the loop.
func assignments(segments []segment) map[int][]string {
	all := map[int][]string{}
	var loops []int
	for i, s := range segments {
		if s.kind != '%' || len(s.tokens) == 0 {
			continue
		}
		switch s.tokens[0].text {
		case "for":
			loops = append(loops, i)
		case "endfor":
			loops = loops[:max(0, len(loops)-1)]
		case "set":
			if len(loops) == 0 || len(s.tokens) < 2 || len(s.tokens) > 2 && s.tokens[2].is('o', ".") {
				continue
			}
			loop, name := loops[len(loops)-1], s.tokens[1].text
			if !slices.Contains(all[loop], name) {
				all[loop] = append(all[loop], name)
			}
		}
	}
	return all
}
