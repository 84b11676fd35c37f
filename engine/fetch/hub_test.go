package fetch

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

const sha = "0123456789abcdef0123456789abcdef01234567"

// fakeHub is a hub with one repository, whose weights lie on a store of another
// host.
type fakeHub struct {
	t     *testing.T
	files map[string]string
	sums  map[string]string // SHA-256 that it lists, of files that it keeps as LFS
	token string            // that it asks for

	hub, store *httptest.Server
	lists      atomic.Int64
	sent       atomic.Int64 // bytes of weights

	mu     sync.Mutex
	tries  map[string]int                                                                 // of each file
	serve  func(w http.ResponseWriter, r *http.Request, name, content string, n int) bool // instead of the store; n counts from 1
	answer http.HandlerFunc                                                               // instead of the list
}

func newFakeHub(t *testing.T) *fakeHub {
	weights := strings.Repeat("weights ", 40_000)
	h := &fakeHub{t: t, sums: map[string]string{}, tries: map[string]int{}, files: map[string]string{
		"config.json": `{"architectures": []}`, "tokenizer.json": "{}", "chat_template.jinja": "{{ messages }}",
		"README.md": "not needed", ".gitattributes": "hidden", "onnx/model.onnx": "not needed", "consolidated.safetensors": "the same again",
		"model.safetensors.index.json":     `{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}`,
		"model-00001-of-00002.safetensors": weights, "model-00002-of-00002.safetensors": weights + "and more", "pytorch_model.bin": "older",
	}}
	for name, content := range h.files {
		if strings.HasSuffix(name, ".safetensors") {
			sum := sha256.Sum256([]byte(content))
			h.sums[name] = hex.EncodeToString(sum[:])
		}
	}
	h.store = httptest.NewServer(http.HandlerFunc(h.storeFile))
	h.hub = httptest.NewServer(http.HandlerFunc(h.hubFile))
	t.Cleanup(h.store.Close)
	t.Cleanup(h.hub.Close)
	return h
}

// hubFile is the hub: list, small files, redirects to the store.
func (h *fakeHub) hubFile(w http.ResponseWriter, r *http.Request) {
	if h.token != "" && r.Header.Get("Authorization") != "Bearer "+h.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/models/org/model/revision/") {
		h.lists.Add(1)
		h.mu.Lock()
		answer := h.answer
		h.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		_, _ = w.Write(h.list())
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/org/model/resolve/"+sha+"/")
	content, there := h.files[name]
	switch {
	case !ok || !there:
		w.WriteHeader(http.StatusNotFound)
	case h.sums[name] != "":
		http.Redirect(w, r, h.store.URL+"/"+name+"?signature=secret", http.StatusFound)
	default:
		_, _ = w.Write([]byte(content))
	}
}

func (h *fakeHub) list() []byte {
	siblings := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(h.files)) {
		content := h.files[name]
		s := map[string]any{"rfilename": name, "size": len(content), "blobId": hex.EncodeToString(blobSum(content))}
		if sum := h.sums[name]; sum != "" {
			s["lfs"] = map[string]any{"sha256": sum, "size": len(content), "pointerSize": 135}
		}
		siblings = append(siblings, s)
	}
	b, err := json.Marshal(map[string]any{"sha": sha, "siblings": siblings})
	if err != nil {
		h.t.Error(err)
	}
	return b
}

func blobSum(content string) []byte {
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content))
	return sum[:]
}

// storeFile is the store.
func (h *fakeHub) storeFile(w http.ResponseWriter, r *http.Request) {
	if a := r.Header.Get("Authorization"); a != "" {
		h.t.Errorf("the store gets the hub's credentials: %q", a)
	}
	name := r.URL.Path[1:]
	h.mu.Lock()
	h.tries[name]++
	n, serve := h.tries[name], h.serve
	h.mu.Unlock()
	if serve != nil && serve(w, r, name, h.files[name], n) {
		return
	}
	h.send(w, r, h.files[name], len(h.files[name]))
}

// send answers as a store that knows ranges, and breaks the connection at most
// bytes in.
func (h *fakeHub) send(w http.ResponseWriter, r *http.Request, content string, most int) {
	start := 0
	if span, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		start, _ = strconv.Atoi(strings.TrimSuffix(span, "-"))
		if start >= len(content) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(content)-1, len(content)))
	}
	rest := content[start:]
	w.Header().Set("Content-Length", strconv.Itoa(len(rest)))
	if start > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	n, _ := w.Write([]byte(rest[:min(most, len(rest))]))
	h.sent.Add(int64(n))
	if n < len(rest) {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

// tally is the progress that a download reports.
type tally struct {
	total, done  atomic.Int64
	files, ended atomic.Int64
}

func (h *fakeHub) options(dir string) (Options, *tally) {
	p := &tally{}
	return Options{
		Dir: dir, Endpoint: h.hub.URL, Token: h.token, backoff: time.Millisecond, stall: time.Minute,
		Expect:  func(n int64, files int) { p.total.Add(n); p.files.Add(int64(files)) },
		Advance: func(n int64) { p.done.Add(n) },
		Done:    func() { p.ended.Add(1) },
	}, p
}

// needed are the files of the repository that a model needs.
var needed = []string{"chat_template.jinja", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"}

// same checks that a folder has exactly the needed files, as the hub has them.
func (h *fakeHub) same(t *testing.T, s Source) {
	t.Helper()
	var got []string
	err := fs.WalkDir(s.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(name, ".") {
			return err
		}
		got = append(got, name)
		if b, err := fs.ReadFile(s.Files, name); err != nil || string(b) != h.files[name] {
			t.Errorf("%s has %d bytes, %v: want %d", name, len(b), err, len(h.files[name]))
		}
		return nil
	})
	if err != nil || !slices.Equal(got, needed) {
		t.Errorf("the folder has %q, %v: want %q", got, err, needed)
	}
}

func TestHub(t *testing.T) {
	h := newFakeHub(t)
	h.token = "hf_secret"
	dir := t.TempDir()
	opts, p := h.options(dir)
	s, err := Open(t.Context(), "hf://org/model@main", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
	var want int64
	for _, name := range needed {
		want += int64(len(h.files[name]))
	}
	if p.total.Load() != want || p.done.Load() != want || p.files.Load() != 6 || p.ended.Load() != 6 {
		t.Errorf("progress: %d of %d bytes, %d of %d files: want %d bytes", p.done.Load(), p.total.Load(), p.ended.Load(), p.files.Load(), want)
	}
	// Again: only the revision is asked for; and with a commit, nothing is.
	sent := h.sent.Load()
	if s, err = Open(t.Context(), "hf://org/model", opts); err != nil || h.sent.Load() != sent || h.lists.Load() != 2 {
		t.Errorf("a model in the cache is downloaded: %v, %d bytes, %d lists", err, h.sent.Load()-sent, h.lists.Load())
	}
	h.same(t, s)
	h.hub.Close()
	if s, err = Open(t.Context(), "hf://org/model@"+sha, opts); err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
	// A branch with the hub gone is what it was.
	if s, err = Open(t.Context(), "hf://org/model@main", opts); err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
	if _, err = Open(t.Context(), "hf://org/model@dev", opts); fault.ReasonOf(err) != fault.FetchFailed {
		t.Errorf("a branch that was never asked for, with the hub gone: %v", err)
	}
}

// Connections that break are gone on with where they broke.
func TestHubResumes(t *testing.T) {
	h := newFakeHub(t)
	h.serve = func(w http.ResponseWriter, r *http.Request, _, content string, n int) bool {
		if n%2 == 0 {
			w.WriteHeader(http.StatusBadGateway)
		} else {
			h.send(w, r, content, 50_000)
		}
		return true
	}
	opts, p := h.options(t.TempDir())
	s, err := Open(t.Context(), "hf://org/model", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
	if want := int64(len(h.files[needed[2]]) + len(h.files[needed[3]])); h.sent.Load() != want || p.done.Load() != p.total.Load() {
		t.Errorf("the store sent %d bytes, progress has %d of %d: want each of %d bytes once", h.sent.Load(), p.done.Load(), p.total.Load(), want)
	}
}

// A process that ended leaves its part to the next one.
func TestHubResumesAfterEnd(t *testing.T) {
	h := newFakeHub(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	h.serve = func(w http.ResponseWriter, r *http.Request, _, content string, _ int) bool {
		_, _ = w.Write([]byte(content[:100_000]))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	opts, p := h.options(dir)
	advance := opts.Advance
	opts.Advance = func(n int64) {
		if advance(n); p.done.Load() > 200_000 {
			cancel()
		}
	}
	if _, err := Open(ctx, "hf://org/model", opts); !errors.Is(err, context.Canceled) {
		t.Fatalf("after its end: %v", err)
	}
	h.mu.Lock()
	h.serve = nil
	h.mu.Unlock()
	opts, _ = h.options(dir)
	s, err := Open(t.Context(), "hf://org/model", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
	if want := int64(len(h.files[needed[2]]) + len(h.files[needed[3]])); h.sent.Load() > want-150_000 {
		t.Errorf("the second process got %d of %d bytes: the first one had over 200000", h.sent.Load(), want)
	}
}

// A store that knows no ranges sends the whole, which is taken from its start.
func TestHubWithoutRanges(t *testing.T) {
	h := newFakeHub(t)
	h.serve = func(w http.ResponseWriter, r *http.Request, _, content string, n int) bool {
		r.Header.Del("Range")
		if n == 1 {
			h.send(w, r, content, 90_000)
		} else {
			h.send(w, r, content, len(content))
		}
		return true
	}
	opts, p := h.options(t.TempDir())
	s, err := Open(t.Context(), "hf://org/model", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
	if p.done.Load() != p.total.Load() {
		t.Errorf("progress has %d of %d bytes: bytes that came twice count once", p.done.Load(), p.total.Load())
	}
}

// What is not what the hub lists is never served.
func TestHubDamage(t *testing.T) {
	change := func(content string) string { return "W" + content[1:] }
	for name, serve := range map[string]func(h *fakeHub, w http.ResponseWriter, r *http.Request, content string, n int){
		"other bytes": func(h *fakeHub, w http.ResponseWriter, r *http.Request, c string, _ int) {
			h.send(w, r, change(c), len(c))
		},
		"too short":    func(h *fakeHub, w http.ResponseWriter, r *http.Request, c string, _ int) { h.send(w, r, c[:100], 100) },
		"too long":     func(_ *fakeHub, w http.ResponseWriter, _ *http.Request, c string, _ int) { _, _ = fmt.Fprint(w, c, c) },
		"empty answer": func(_ *fakeHub, _ http.ResponseWriter, _ *http.Request, _ string, _ int) {},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHub(t)
			h.serve = func(w http.ResponseWriter, r *http.Request, file, content string, n int) bool {
				if file != needed[3] {
					return false
				}
				serve(h, w, r, content, n)
				return true
			}
			dir := t.TempDir()
			opts, _ := h.options(dir)
			_, err := Open(t.Context(), "hf://org/model", opts)
			if fault.ReasonOf(err) != fault.FetchFailed || !strings.Contains(err.Error(), needed[3]) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v: want FetchFailed with the file's name", err)
			}
			if found, _ := filepath.Glob(filepath.Join(dir, "hf", "*", "*", sha, markerFile)); len(found) != 0 {
				t.Error("the folder is marked as complete")
			}
			// Once the store is well again, so is the folder.
			h.mu.Lock()
			h.serve = nil
			h.mu.Unlock()
			s, err := Open(t.Context(), "hf://org/model", opts)
			if err != nil {
				t.Fatal(err)
			}
			h.same(t, s)
		})
	}
}

// A connection that says nothing is given up, and what follows goes on from there.
func TestHubStall(t *testing.T) {
	h := newFakeHub(t)
	h.serve = func(w http.ResponseWriter, r *http.Request, _, content string, n int) bool {
		if n > 1 {
			return false
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write([]byte(content[:1000]))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	opts, _ := h.options(t.TempDir())
	opts.stall = time.Second
	s, err := Open(t.Context(), "hf://org/model", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
}

// Two pods on one cache folder download once.
func TestHubTwoPods(t *testing.T) {
	h := newFakeHub(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			opts, _ := h.options(dir)
			s, err := Open(t.Context(), "hf://org/model", opts)
			if err != nil {
				t.Error(err)
				return
			}
			h.same(t, s)
		})
	}
	wg.Wait()
	if want := int64(len(h.files[needed[2]]) + len(h.files[needed[3]])); h.sent.Load() != want {
		t.Errorf("the store sent %d bytes: want %d", h.sent.Load(), want)
	}
}

// Who waits for another process's download shows how far that is, and tells each
// byte and file once when it goes on where the other was stopped.
func TestHubWaiterShowsProgress(t *testing.T) {
	for _, finishes := range []bool{true, false} {
		h := newFakeHub(t)
		dir := t.TempDir()
		half := make(chan struct{}) // closed when the first process may go on
		h.serve = func(w http.ResponseWriter, r *http.Request, name, content string, try int) bool {
			if name != needed[3] || try > 1 {
				return false
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			_, _ = w.Write([]byte(content[:len(content)/2]))
			w.(http.Flusher).Flush()
			<-half
			_, _ = w.Write([]byte(content[len(content)/2:]))
			return true
		}
		ctx, stop := context.WithCancel(t.Context())
		open := func(ctx context.Context) (*tally, chan error) {
			opts, p := h.options(dir)
			opts.stall = time.Minute
			ended := make(chan error, 1)
			go func() {
				_, err := Open(ctx, "hf://org/model", opts)
				ended <- err
			}()
			return p, ended
		}
		first, firstEnded := open(ctx)
		until := func(what string, ok func() bool) {
			t.Helper()
			for end := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal(what)
				}
			}
		}
		missing := int64(len(h.files[needed[3]]) - len(h.files[needed[3]])/2)
		until("the first process does not come half-way", func() bool { return first.total.Load() > 0 && first.done.Load() == first.total.Load()-missing })
		second, secondEnded := open(t.Context())
		until("the second process does not show what the first has", func() bool {
			return second.total.Load() == first.total.Load() && second.done.Load() == first.done.Load() && second.ended.Load() == int64(len(needed))-1
		})
		if finishes {
			close(half)
		} else {
			stop()
		}
		if err := <-firstEnded; (err == nil) != finishes {
			t.Errorf("the first process: %v", err)
		}
		if !finishes {
			close(half) // the second one asks for the rest, with another request
		}
		if err := <-secondEnded; err != nil {
			t.Error(err)
		}
		if second.done.Load() != second.total.Load() || second.total.Load() != first.total.Load() || second.ended.Load() != int64(len(needed)) || second.files.Load() != int64(len(needed)) {
			t.Errorf("first finishes %t: the second process shows %d of %d bytes, %d of %d files", finishes,
				second.done.Load(), second.total.Load(), second.ended.Load(), second.files.Load())
		}
		stop()
	}
}

// Who waits for another process's download can be stopped.
func TestHubLockIsCancelled(t *testing.T) {
	h := newFakeHub(t)
	opts, _ := h.options(t.TempDir())
	r, err := newHub("hf://org/model", opts)
	if err != nil {
		t.Fatal(err)
	}
	d := &downloader{Options: opts.withDefaults(), remote: r}
	dir := filepath.Join(opts.Dir, filepath.FromSlash(r.key()), sha)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := d.lock(t.Context(), dir, func() {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, "hf://org/model", opts); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	unlock()
	s, err := Open(t.Context(), "hf://org/model", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
}

// Each refusal has its reason, and says what to do.
func TestHubRefusals(t *testing.T) {
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
		}
	}
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(s)) }
	}
	listed := func(siblings string) http.HandlerFunc {
		return text(`{"sha": "` + sha + `", "siblings": [` + siblings + `]}`)
	}
	const config = `{"rfilename": "config.json", "size": 21, "blobId": ""}`
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		reason fault.Reason
		says   string
	}{
		{"private", status(401), fault.Unauthorized, "HF_TOKEN"},
		{"forbidden", status(403), fault.Unauthorized, "HF_TOKEN"},
		{"gated", status(403, "X-Error-Code", "GatedRepo"), fault.Unauthorized, "accept its terms"},
		{"no repository", status(404), fault.ModelNotFound, "check owner, name and revision"},
		{"no revision", status(404, "X-Error-Code", "RevisionNotFound"), fault.ModelNotFound, "has no revision main"},
		{"broken", status(500), fault.FetchFailed, "tried 6 times"},
		{"teapot", status(418), fault.FetchFailed, "418"},
		{"no JSON", text("<html>"), fault.FetchFailed, "refused"},
		{"no commit", text(`{"sha": "../../etc", "siblings": []}`), fault.FetchFailed, "40 hexadecimal digits"},
		{"no files", listed(""), fault.ModelNotFound, "config.json"},
		{"no weights", listed(config), fault.ModelNotFound, "no weights"},
		{"negative size", listed(`{"rfilename": "config.json", "size": -1}`), fault.FetchFailed, "-1 bytes"},
		{"absurd size", listed(`{"rfilename": "config.json", "size": 999999999999999}`), fault.FetchFailed, "999999999999999 bytes"},
		{"no size", listed(`{"rfilename": "config.json"}`), fault.FetchFailed, "no size"},
		{"no checksum", listed(`{"rfilename": "model.safetensors", "lfs": {"sha256": "x", "size": 1}}`), fault.FetchFailed, "64 hexadecimal digits"},
		{"twice", listed(config + "," + config), fault.FetchFailed, "twice"},
		{"a great deal", listed(config + `, {"rfilename": "model.safetensors", "size": 60000000000000}`), fault.NoSpace, "--download-dir"},
		{"elsewhere", status(302, "Location", "file:///etc/passwd"), fault.FetchFailed, "redirects"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newFakeHub(t)
			h.answer = c.answer
			opts, _ := h.options(t.TempDir())
			_, err := Open(t.Context(), "hf://org/model", opts)
			if err == nil || fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "hf://org/model") {
				t.Errorf("got %v with reason %s: want %s saying %q", err, fault.ReasonOf(err), c.reason, c.says)
			}
		})
	}
}

// A hub that is busy is asked again after the time that it names.
func TestHubRetryAfter(t *testing.T) {
	h := newFakeHub(t)
	var first atomic.Pointer[time.Time]
	h.answer = func(w http.ResponseWriter, _ *http.Request) {
		if first.CompareAndSwap(nil, new(time.Now())) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if waited := time.Since(*first.Load()); waited < time.Second {
			t.Errorf("asked again after %s: want 1s or more", waited)
		}
		_, _ = w.Write(h.list())
	}
	opts, _ := h.options(t.TempDir())
	s, err := Open(t.Context(), "hf://org/model", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
}

// Names that lead out of the folder are never written, whoever names them.
func TestHubHostileNames(t *testing.T) {
	for _, name := range []string{"../evil.safetensors", "/tmp/evil.safetensors", "a/../../evil.safetensors", ".complete", "a\\b.safetensors"} {
		h := newFakeHub(t)
		h.files[name] = "evil"
		h.files["model.safetensors.index.json"] = fmt.Sprintf(`{"weight_map": {"a": %q}}`, name)
		opts, _ := h.options(t.TempDir())
		if _, err := Open(t.Context(), "hf://org/model", opts); fault.ReasonOf(err) != fault.ModelNotFound {
			t.Errorf("%q: %v", name, err)
		}
	}
}
