package render

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// clusterRoles answers the templates' questions about ClusterRoles as a cluster that
// has some.
type clusterRoles struct{ client dynamic.Interface }

func (c clusterRoles) GetClientFor(_, _ string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return c.client.Resource(rbacv1.SchemeGroupVersion.WithResource("clusterroles")), false, nil
}

// An install that would meet another release's roles of the cluster is refused with
// what to do; one that meets none, or its own or nobody's, which Helm decides about,
// is not, and neither is an upgrade.
func TestReleasesOfOneName(t *testing.T) {
	const name, in = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
	install := common.ReleaseOptions{Name: "outrider", Namespace: "team-b", Revision: 1, IsInstall: true}
	upgrade := common.ReleaseOptions{Name: "outrider", Namespace: "team-b", Revision: 2, IsUpgrade: true}
	const refusal = "the ClusterRole outrider belongs to the release outrider of the namespace team-a: " +
		"give this release another name, or set fullnameOverride; if that release is gone, delete the ClusterRole first"
	theirs := map[string]string{name: "outrider", in: "team-a"}
	for _, tt := range []struct {
		name        string
		release     common.ReleaseOptions
		values      string
		role        string
		annotations map[string]string
		want        string // part of the error; empty for none
	}{
		{"in another namespace", install, ``, "outrider", theirs, refusal},
		{"of another name, with one fullnameOverride", install, `{fullnameOverride: shared}`, "shared", map[string]string{name: "first", in: "team-b"}, "the release first of the namespace team-b"},
		{"with another fullnameOverride", install, `{fullnameOverride: other}`, "outrider", theirs, ""},
		{"of another name", install, ``, "first-outrider", theirs, ""},
		{"its own", install, ``, "outrider", map[string]string{name: "outrider", in: "team-b"}, ""},
		{"of no release", install, ``, "outrider", nil, ""},
		{"without roles", install, `{rbac: {create: false}}`, "outrider", theirs, ""},
		{"upgrade", upgrade, ``, "outrider", theirs, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, top, err := input(tt.release, tt.values)
			if err != nil {
				t.Fatal(err)
			}
			role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: tt.role, Annotations: tt.annotations}}
			_, err = engine.RenderWithClientProvider(c, top, clusterRoles{fake.NewSimpleDynamicClient(clientgoscheme.Scheme, role)})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

// The operators of two releases both work, also in one namespace: each has a lease of
// its own, which the roles of the release's namespace let it hold.
func TestReleasesHaveLeases(t *testing.T) {
	for release, lease := range map[string]string{"outrider": "outrider", "team-a": "team-a-outrider", "outrider-b": "outrider-b"} {
		s := objectsOf(t, release, namespace, ``)
		args := get[*appsv1.Deployment](t, s, "Deployment/"+lease).Spec.Template.Spec.Containers[0].Args
		if want := "--leader-election-id=" + lease + ".inference.outrider.dev"; !slices.Contains(args, want) || !slices.Contains(args, "--leader-elect") {
			t.Errorf("release %s: %q, want %s", release, args, want)
		}
	}
}
