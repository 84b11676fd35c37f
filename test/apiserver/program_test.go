//go:build apiserver

package apiserver

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/outrider-dev/outrider/internal/freeport"
)

// program builds the operator; start runs it, with the rights of its service
// account and flags, until the test ends.
func program(t *testing.T) (start func(flags ...string) (*exec.Cmd, *bytes.Buffer)) {
	t.Helper()
	dir := t.TempDir()
	path, config := filepath.Join(dir, "outrider"), filepath.Join(dir, "kubeconfig")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../cmd/outrider").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(config, kubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(flags ...string) (*exec.Cmd, *bytes.Buffer) {
		t.Helper()
		cmd, log := exec.CommandContext(t.Context(), path, append(flags, "--health-probe-bind-address=0")...), &bytes.Buffer{}
		cmd.Env, cmd.Stderr = append(os.Environ(), "KUBECONFIG="+config), log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, log
	}
}

// end tells an operator to stop, and waits until it has.
func end(t *testing.T, cmd *exec.Cmd, log *bytes.Buffer) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the operator ended with %v: %s", err, log)
	}
}

// TestLeaseReleased: an operator that is told to stop gives its lease back before
// it ends, so that the next one leads without waiting for the lease to run out, or
// for its caches, which it has by then.
func TestLeaseReleased(t *testing.T) {
	p := begin(t)
	run := program(t)
	const shared, own = "outrider.inference.outrider.dev", "team-b.inference.outrider.dev"
	start := func(flags ...string) (*exec.Cmd, *bytes.Buffer) {
		return run(append(flags, "--leader-elect", "--leader-election-namespace=outrider-system", "--watch-namespaces="+p.namespace, "--metrics-bind-address=0")...)
	}
	var lease coordinationv1.Lease
	name := shared
	holder := func() (string, error) {
		lease = coordinationv1.Lease{}
		err := k8s.Get(t.Context(), types.NamespacedName{Namespace: "outrider-system", Name: name}, &lease)
		if err != nil || lease.Spec.HolderIdentity == nil {
			return "", err
		}
		return *lease.Spec.HolderIdentity, nil
	}
	// One that is stopped before it hears that it has the lease cannot know to give it back: it renews it first.
	leads := func(not string) (leader string) {
		t.Helper()
		p.eventually("a leader that has renewed its lease", func() string {
			var err error
			if leader, err = holder(); err != nil || leader == "" || leader == not || !lease.Spec.RenewTime.After(lease.Spec.AcquireTime.Time) {
				return fmt.Sprintf("it is %q, %v, %+v", leader, err, lease.Spec)
			}
			return ""
		})
		return leader
	}
	first, log := start()
	leader := leads("")
	other, log3 := start("--leader-election-id=" + own)
	name = own
	leads("") // beside the first, in the same namespace
	end(t, other, log3)
	name = shared
	before := watches(t)
	second, log2 := start()
	p.eventually("an operator that does not lead and follows the servers", func() string {
		return unless(watches(t) > before, "no more watches than before")
	})
	if now, err := holder(); err != nil || now != leader {
		t.Errorf("the lease went to %q, %v", now, err)
	}
	end(t, first, log)
	if now, err := holder(); err != nil || now == leader {
		t.Errorf("the lease is %q's, which has ended, %v", now, err)
	}
	leads(leader)
	end(t, second, log2)
	if now, err := holder(); err != nil || now != "" {
		t.Errorf("after both have ended the lease is %q's, %v", now, err)
	}
}

// watches is how many watch SpeculativeServers now, as the API server counts.
func watches(t *testing.T) (n int) {
	t.Helper()
	set, err := kubernetes.NewForConfig(apiConfig)
	if err != nil {
		t.Fatal(err)
	}
	text, err := set.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_longrunning_requests{") || !strings.Contains(line, `resource="speculativeservers"`) || !strings.Contains(line, `verb="WATCH"`) {
			continue
		}
		value := strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
		count, err := strconv.Atoi(value)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		n += count
	}
	return n
}

// TestProgram: an operator of some namespaces reads servers of no others, and
// tells its metrics, which say so, only to those who may read them.
func TestProgram(t *testing.T) {
	p, other := begin(t), begin(t)
	for _, s := range []*play{p, other} {
		s.create(manifest + "  replicas: 0\n")
	}
	address := freeport.Address(t)
	operator, log := program(t)("--watch-namespaces="+p.namespace, "--metrics-secure", "--metrics-bind-address="+address, "--engine-image=example.test/engine:1")
	defer end(t, operator, log)

	stranger, reader := p.account("stranger"), p.account("reader")
	if err := k8s.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: p.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "outrider-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.namespace, Name: "reader"}},
	}); err != nil {
		t.Fatal(err)
	}
	// The certificate is made at start, so nobody knows it.
	scraper := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer scraper.CloseIdleConnections()
	scrape := func(token string) (int, string, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", http.NoBody)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := scraper.Do(r)
		if err != nil {
			return 0, "", err
		}
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), errors.Join(err, resp.Body.Close())
	}
	p.eventually("metrics of the namespace's server", func() string {
		code, body, err := scrape(reader)
		if err != nil || code != http.StatusOK || !strings.Contains(body, `namespace="`+p.namespace+`"`) {
			return fmt.Sprintf("status %d, %v, %d bytes without it", code, err, len(body))
		}
		if strings.Contains(body, other.namespace) {
			t.Errorf("the metrics have a server of %s, which is not watched", other.namespace)
		}
		return ""
	})
	for _, tt := range []struct {
		who, token string
		want       int
	}{{"nobody", "", http.StatusUnauthorized}, {"a stranger", stranger, http.StatusForbidden}} {
		if code, _, err := scrape(tt.token); err != nil || code != tt.want {
			t.Errorf("%s got status %d, %v, want %d", tt.who, code, err, tt.want)
		}
	}
}

// account makes a service account and a token of it.
func (p *play) account(name string) string {
	p.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name}}
	if err := k8s.Create(p.Context(), account); err != nil {
		p.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if err := k8s.SubResource("token").Create(p.Context(), account, request); err != nil {
		p.Fatal(err)
	}
	return request.Status.Token
}
