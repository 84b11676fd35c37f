package doccheck

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

var (
	fence   = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```\\s*$")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\[[^\]\n]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// pages are the Markdown files that git knows or would add.
func pages(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var names []string
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if _, err := os.Stat(filepath.Join(root, name)); err == nil { // a deleted file is listed until it is committed
			names = append(names, name)
		}
	}
	return names
}

// slug is the anchor that GitHub gives a heading.
func slug(text string) string {
	text = strings.NewReplacer("`", "", "*", "").Replace(regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1"))
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

// anchors are those of a page: of its headings, the second of a name with -1, and its own.
func anchors(page []byte) map[string]bool {
	page = fence.ReplaceAll(page, nil)
	have, times := map[string]bool{}, map[string]int{}
	for _, h := range heading.FindAllSubmatch(page, -1) {
		s := slug(string(h[1]))
		if n := times[s]; n > 0 {
			have[fmt.Sprintf("%s-%d", s, n)] = true
		} else {
			have[s] = true
		}
		times[s]++
	}
	for _, a := range anchor.FindAllSubmatch(page, -1) {
		have[string(a[1])] = true
	}
	return have
}

// broken says what is wrong with a link of a page; "" for nothing. Links to
// other hosts are not followed: a test must not depend on them.
func broken(page, target string) string {
	if u, err := url.Parse(target); err != nil {
		return err.Error()
	} else if u.Scheme != "" {
		return ""
	}
	name, frag, _ := strings.Cut(target, "#")
	file := page
	if name != "" {
		file = filepath.Join(filepath.Dir(page), name)
	}
	if strings.HasPrefix(file, "..") {
		return "leads out of the repository"
	}
	content, err := os.ReadFile(filepath.Join(root, file))
	if info, e := os.Stat(filepath.Join(root, file)); e == nil && info.IsDir() && frag == "" {
		return ""
	}
	if err != nil {
		return "there is no " + file
	}
	if frag != "" && strings.HasSuffix(file, ".md") && !anchors(content)[frag] {
		return file + " has no heading #" + frag
	}
	return ""
}

// blank keeps lengths and lines, so that what follows stays where it is.
func blank(b []byte) []byte {
	out := bytes.Repeat([]byte(" "), len(b))
	for i, c := range b {
		if c == '\n' {
			out[i] = c
		}
	}
	return out
}

func TestLinks(t *testing.T) {
	checked := 0
	for _, page := range pages(t) {
		content, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		text := code.ReplaceAllFunc(fence.ReplaceAllFunc(content, blank), blank)
		for _, m := range link.FindAllSubmatchIndex(text, -1) {
			checked++
			target := string(content[m[2]:m[3]])
			if why := broken(page, target); why != "" {
				t.Errorf("%s:%d: link to %s: %s", page, 1+bytes.Count(content[:m[0]], []byte("\n")), target, why)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d links were found", checked)
	}
}

func TestBroken(t *testing.T) {
	for target, want := range map[string]string{
		"docs/operator.md":                    "",
		"docs/operator.md#reading-the-status": "",
		"docs":                                "",
		"https://example.com/#nowhere":        "",
		"#two-commands":                       "",
		"docs/nowhere.md":                     "there is no docs/nowhere.md",
		"docs/operator.md#nowhere":            "docs/operator.md has no heading #nowhere",
		"#nowhere":                            "README.md has no heading #nowhere",
		"../secret":                           "leads out of the repository",
	} {
		if got := broken("README.md", target); got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}
