//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// hub is a hub with one repository, org/code, whose files are those of the bundled
// model. It is slow, and breaks the first download of the weights in the middle.
type hub struct {
	folder string
	rate   int64 // bytes of weights a second
	broken atomic.Bool
	sent   atomic.Int64 // bytes of weights
}

const hubCommit = "0123456789abcdef0123456789abcdef01234567"

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/api/models/org/code/revision/main" {
		entries, err := os.ReadDir(h.folder)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		siblings := []map[string]any{}
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil {
				siblings = append(siblings, map[string]any{"rfilename": entry.Name(), "size": info.Size()})
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": hubCommit, "siblings": siblings})
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/org/code/resolve/"+hubCommit+"/")
	if !ok {
		http.NotFound(w, r)
		return
	}
	f, err := os.Open(filepath.Join(h.folder, filepath.Base(name)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = f.Close() }()
	var content io.ReadSeeker = f
	if strings.HasSuffix(name, ".safetensors") {
		content = &slow{file: f, hub: h}
	}
	http.ServeContent(w, r, name, time.Unix(1, 0), content)
}

// slow reads a file as slowly as its hub is. It does not embed the file, which the
// kernel would then send past it.
type slow struct {
	file *os.File
	hub  *hub
}

func (s *slow) Seek(offset int64, whence int) (int64, error) { return s.file.Seek(offset, whence) }

func (s *slow) Read(b []byte) (int, error) {
	n, err := s.file.Read(b[:min(len(b), 1<<16)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(s.hub.rate))
	if s.hub.sent.Add(int64(n)) > 8<<20 && s.hub.broken.CompareAndSwap(false, true) {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// node is the cluster's node, or the first of them.
func (e *env) node() *corev1.Node {
	e.Helper()
	var nodes corev1.NodeList
	if err := k8s.List(e.Context(), &nodes); err != nil || len(nodes.Items) == 0 {
		e.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	return &nodes.Items[0]
}

// listen serves a hub on the node's address, where pods reach it.
func (e *env) listen(h *hub) string {
	e.Helper()
	addresses := e.node().Status.Addresses
	i := slices.IndexFunc(addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		e.Fatalf("the node has no address: %+v", addresses)
	}
	l, err := new(net.ListenConfig).Listen(e.Context(), "tcp", net.JoinHostPort(addresses[i].Address, "0"))
	if err != nil {
		e.Fatalf("listening on the node's address: %v: this test needs to run on the node, as in the cluster of hack/cluster", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	e.Cleanup(func() { _ = server.Close() })
	return "http://" + l.Addr().String()
}

// weights is the size of the hub's weights, in bytes.
func (e *env) weights(h *hub) int64 {
	e.Helper()
	info, err := os.Stat(filepath.Join(h.folder, "model.safetensors"))
	if err != nil {
		e.Fatal(err)
	}
	return info.Size()
}

// TestSlowHub: while a model comes from a slow hub, the status says how far and
// how fast, a connection that breaks is gone on with, and what is served in the
// end is that model.
func TestSlowHub(t *testing.T) {
	e := begin(t)
	h := &hub{folder: filepath.Join("..", "..", "engine", "fetch", "builtin", "gocode-7m"), rate: 1 << 20}
	address := e.listen(h)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Model.Source = v1alpha1.ModelSource{HuggingFace: &v1alpha1.HubSource{Repo: "org/code", Endpoint: address}}
		s.Spec.Model.ServedName = "gocode-7m"
		s.Spec.Speculation = v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmNone}
	})
	var seen []int32
	paced := false
	e.within(3*time.Minute, "ready", func() string {
		s := e.server().Status
		if s.Phase == v1alpha1.PhaseFetching && len(s.Pods) == 1 && s.Pods[0].Percent != nil {
			if !strings.HasPrefix(s.Message, fmt.Sprintf("Fetching %d %%", *s.Pods[0].Percent)) {
				t.Errorf("message %q at %d %%", s.Message, *s.Pods[0].Percent)
			}
			paced = paced || strings.Contains(s.Message, "B/s")
			if n := len(seen); n == 0 || seen[n-1] != *s.Pods[0].Percent {
				seen = append(seen, *s.Pods[0].Percent)
			}
		}
		if s.Phase == v1alpha1.PhaseReady {
			return ""
		}
		return fmt.Sprintf("it is %s: %s", s.Phase, s.Message)
	})
	if len(seen) < 3 || !slices.IsSorted(seen) || !paced {
		t.Errorf("percentages seen: %v; want at least three, ascending, and how fast it goes: %v", seen, paced)
	}
	t.Logf("percentages seen: %v", seen)
	if sent, size := h.sent.Load(), e.weights(h); !h.broken.Load() || sent > size+4<<20 {
		t.Errorf("of %d bytes of weights %d were sent, with the connection broken: %v; want it gone on with", size, sent, h.broken.Load())
	}
	if row := e.server().Status.Pods[0]; row.Restarts != 0 {
		t.Errorf("a slow download was restarted: %+v", row)
	}
	e.checkGolden(false)
}
