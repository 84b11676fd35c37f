package render

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// A release's install.yaml is what "kubectl apply" takes: the kind, the namespace
// before what is in it, an account with rights, and images of this version only.
func TestInstallManifest(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), root+"hack/release.sh", "--install-manifest")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("hack/release.sh: %v: %s", err, stderr.String())
	}
	version, err := os.ReadFile(root + "VERSION")
	if err != nil {
		t.Fatal(err)
	}
	text, tag := string(out), ":"+strings.TrimSpace(string(version))
	s := set{}
	s.decode(t, "install.yaml", text, namespace)
	crd := get[*apiextensionsv1.CustomResourceDefinition](t, s, "CustomResourceDefinition/speculativeservers.inference.outrider.dev")
	if crd.Spec.Group != "inference.outrider.dev" {
		t.Errorf("the kind's group is %s", crd.Spec.Group)
	}
	if ns, first := strings.Index(text, "\nkind: Namespace\n"), strings.Index(text, "\n  namespace: "); ns < 0 || first < ns {
		t.Errorf("the namespace is at byte %d, and the first thing in it at %d", ns, first)
	}
	d := get[*appsv1.Deployment](t, s, "Deployment/outrider")
	c := d.Spec.Template.Spec.Containers[0]
	images := map[string]string{"outrider": c.Image}
	for _, a := range c.Args {
		if flag, image, ok := strings.Cut(a, "image="); ok {
			images[flag] = image
		}
	}
	if len(images) != 3 {
		t.Errorf("images %v, want the operator's and two of engines", images)
	}
	for _, of := range slices.Sorted(maps.Keys(images)) {
		if !strings.HasSuffix(images[of], tag) {
			t.Errorf("%s: image %s, want %s", of, images[of], tag)
		}
	}
	if strings.Contains(text, ":dev") {
		t.Error("there is an image of development")
	}
	bound := false
	for _, o := range s {
		if b, ok := o.(*rbacv1.ClusterRoleBinding); ok {
			for _, subject := range b.Subjects {
				bound = bound || subject.Name == d.Spec.Template.Spec.ServiceAccountName && subject.Namespace == namespace && s["ClusterRole/"+b.RoleRef.Name] != nil
			}
		}
	}
	if account := d.Spec.Template.Spec.ServiceAccountName; !bound || s["ServiceAccount/"+account] == nil {
		t.Errorf("account %s is missing, or has no role: there are %s", account, strings.Join(s.keys(), ", "))
	}
}
