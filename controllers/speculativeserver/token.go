package speculativeserver

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// tokenRetry is the shortest time between two reads of a Secret whose tokens an
// engine refuses: kubelets take up to two minutes to bring a change to the pods.
const tokenRetry = 10 * time.Second

// maxTokens is how many tokens of one server are tried.
const maxTokens = 8

// adminTokens are the tokens of a server's admin ports, the newest first.
type adminTokens struct {
	list []string
	read time.Time
}

// tokens are the tokens to ask the server's engines with. The Secret is read when
// this process does not know them yet, or an engine refuses them: reads cost the
// API server, and tokens hardly change. Those from before are kept, since an
// engine has them until its kubelet has brought it the new ones.
func (r *Reconciler) tokens(ctx context.Context, s *v1alpha1.SpeculativeServer, refused bool) ([]string, error) {
	r.mu.Lock()
	known, ok := r.admin[s.UID]
	r.mu.Unlock()
	if ok && (!refused || r.now().Sub(known.read) < tokenRetry) {
		return known.list, nil
	}
	return r.ensureTokens(ctx, s)
}

// ensureTokens reads the Secret with the tokens, and makes it if it is not there:
// without it no pod can start.
func (r *Reconciler) ensureTokens(ctx context.Context, s *v1alpha1.SpeculativeServer) ([]string, error) {
	text, err := r.ensureSecret(ctx, s, build.AdminSecretName(s.Name), build.AdminTokenKey)
	list := strings.Fields(text)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, old := range r.admin[s.UID].list {
		if len(list) < maxTokens && !strings.Contains(" "+strings.Join(list, " ")+" ", " "+old+" ") {
			list = append(list, old)
		}
	}
	r.admin[s.UID] = adminTokens{list, r.now()}
	return list, nil
}

// ensureSecret reads the one key of a Secret that the operator makes for a server,
// and makes it, with a random text of at least 128 bits, if it is not there. It is
// empty while the namespace goes.
func (r *Reconciler) ensureSecret(ctx context.Context, s *v1alpha1.SpeculativeServer, name, field string) (string, error) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: name}
	secret := &corev1.Secret{}
	err := r.live.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		secret, err = r.createSecret(ctx, s, key, field)
		if apierrors.IsAlreadyExists(err) {
			err = r.live.Get(ctx, key, secret)
		}
	}
	switch {
	case err != nil && namespaceGoes(err):
		return "", nil
	case err != nil && refuses(err):
		return "", &errRefused{fmt.Sprintf("The API server refuses Secret %s: %v", key.Name, err)}
	case err != nil:
		return "", fmt.Errorf("reading or making the Secret %s: %w", key, err)
	case !metav1.IsControlledBy(secret, s):
		if c := metav1.GetControllerOf(secret); c != nil && c.Kind == "SpeculativeServer" && c.Name == s.Name {
			return "", fmt.Errorf("the Secret %s still belongs to a deleted SpeculativeServer of this name; waiting until it is gone", key)
		}
		return "", &errTaken{fmt.Sprintf("A Secret named %s is there and is not this server's: delete it, or give the server another name.", key)}
	}
	text := strings.TrimSpace(string(secret.Data[field]))
	if text == "" {
		return "", &errRefused{fmt.Sprintf("Secret %s has no key %q with a text: delete it, and it is made anew.", key, field)}
	}
	return text, nil
}

func (r *Reconciler) createSecret(ctx context.Context, s *v1alpha1.SpeculativeServer, key types.NamespacedName, field string) (*corev1.Secret, error) {
	secret, err := convert[corev1.Secret](corev1ac.Secret(key.Name, key.Namespace).
		WithLabels(build.Labels(s.Name)).WithOwnerReferences(build.Owner(s)).
		WithType(corev1.SecretTypeOpaque).
		WithData(map[string][]byte{field: []byte(rand.Text() + "\n")}))
	if err != nil {
		return nil, err
	}
	return secret, r.client.Create(ctx, secret, FieldOwner)
}
