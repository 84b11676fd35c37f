//go:build apiserver

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// grant makes a user of the API server who is the operator's service account and
// has the rights of config/rbac, and no others: what is missing there fails the
// tests of what needs it.
func grant(ctx context.Context, env *envtest.Environment) (*envtest.AuthenticatedUser, error) {
	if err := k8s.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "outrider-system"}}); err != nil {
		return nil, err
	}
	for _, name := range []string{"service_account", "role", "role_binding", "metrics_reader"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", name+".yaml"))
		if err != nil {
			return nil, err
		}
		for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096); ; {
			u := &unstructured.Unstructured{}
			if err := d.Decode(u); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if err := k8s.Create(ctx, u); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return env.AddUser(envtest.User{Name: "system:serviceaccount:outrider-system:outrider"}, nil)
}

// rights notes which rights the operator's requests were let through by, each as
// "verb resource.group".
type rights struct {
	mu   sync.Mutex
	used map[string]bool
}

func (u *rights) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil {
			u.mu.Lock()
			defer u.mu.Unlock()
			for _, verb := range verbs(r, resp.StatusCode) {
				u.used[verb+" "+resourceOf(r.URL.Path)] = true
			}
		}
		return resp, err
	})
}

// verbs are those that a request needs the right to.
func verbs(r *http.Request, status int) []string {
	switch r.Method {
	case http.MethodPost:
		return []string{"create"}
	case http.MethodPut:
		return []string{"update"}
	case http.MethodDelete:
		return []string{"delete"}
	case http.MethodPatch:
		if status == http.StatusCreated { // an apply of what was not there
			return []string{"patch", "create"}
		}
		return []string{"patch"}
	}
	switch {
	case r.URL.Query().Has("watch"):
		return []string{"watch"}
	case len(afterNamespace(r.URL.Path)) > 1:
		return []string{"get"}
	}
	return []string{"list"}
}

// afterNamespace are the elements of a path from the resource on.
func afterNamespace(path string) []string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if skip := map[string]int{"api": 2, "apis": 3}[parts[0]]; skip > 0 && len(parts) > skip {
		if parts = parts[skip:]; parts[0] == "namespaces" && len(parts) > 2 {
			parts = parts[2:]
		}
		return parts
	}
	return nil // discovery, which everybody may
}

// resourceOf is the resource of a path, with its subresource and group.
func resourceOf(path string) string {
	parts := afterNamespace(path)
	if len(parts) == 0 {
		return ""
	}
	name, group := parts[0], ""
	if len(parts) > 2 {
		name += "/" + parts[2]
	}
	if g, ok := strings.CutPrefix(path, "/apis/"); ok {
		group, _, _ = strings.Cut(g, "/")
	}
	return name + "." + group
}

// unasked are the rights that no request of the operator in this process shows:
// the API server looks for the first when it admits an owner reference, and the
// program asks for the others, in TestProgram.
var unasked = []string{
	"update speculativeservers/finalizers.inference.outrider.dev",
	"create tokenreviews.authentication.k8s.io",
	"create subjectaccessreviews.authorization.k8s.io",
}

// unused lists the rights of the operator's ClusterRole that nothing has used
// after all tests; nil where only some ran.
func (u *rights) unused(ctx context.Context) ([]string, error) {
	for _, name := range []string{"test.run", "test.skip"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return nil, nil
		}
	}
	role := &rbacv1.ClusterRole{}
	if err := k8s.Get(ctx, client.ObjectKey{Name: "outrider"}, role); err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []string
	for _, rule := range role.Rules {
		for _, name := range rule.Resources {
			for _, verb := range rule.Verbs {
				if verb == "list" { // a cache watches, and lists first where it must
					verb = "watch"
				}
				right := verb + " " + name + "." + rule.APIGroups[0]
				if !u.used[right] && !slices.Contains(unasked, right) {
					list = append(list, right)
				}
			}
		}
	}
	return list, nil
}
