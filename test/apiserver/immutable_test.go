//go:build apiserver

package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// tried patches the server, or only asks whether it may, and returns the refusal.
func (p *play) tried(spec string, options ...client.PatchOption) error {
	p.Helper()
	b, err := yaml.YAMLToJSON([]byte("spec: {" + spec + "}"))
	if err != nil {
		p.Fatal(err)
	}
	return k8s.Patch(p.Context(), p.server(), client.RawPatch(types.MergePatchType, b), options...)
}

// refuses checks that a change is refused with a text; with none, that it is taken.
// Nothing is changed.
func (p *play) refuses(what, spec, says string) {
	p.Helper()
	err := p.tried(spec, client.DryRunAll)
	if says == "" && err != nil || says != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), says)) {
		p.Errorf("%s, %s: %v, want a refusal with %q", what, spec, err, says)
	}
}

// immutables are the fields that cannot be changed: each is changed, removed, set
// where it was not, and removed with what it is in and written again.
var immutables = []struct {
	field                string
	with, other, without string // specs with the field, with another value, and without it; "" when it must be there
	bare                 string // spec without what the field is in
	says                 string
	again                string // what the last way is refused with
}{
	{"modelCache.template.storageClassName", "modelCache: {template: {size: 2Gi, storageClassName: slow}}", "modelCache: {template: {size: 2Gi, storageClassName: fast}}",
		"modelCache: {template: {size: 2Gi, storageClassName: null}}", "modelCache: null", "storage class and access mode cannot be changed", "claim s-models of the template from before is still there"},
	{"modelCache.template.accessMode", "modelCache: {template: {size: 2Gi, accessMode: ReadWriteMany}}", "modelCache: {template: {size: 2Gi, accessMode: ReadWriteOnce}}",
		"modelCache: {template: {size: 2Gi, accessMode: null}}", "modelCache: null", "storage class and access mode cannot be changed", "claim s-models of the template from before is still there"},
	// These may be changed, but not in every way.
	{"modelCache.template.size", "modelCache: {template: {size: 2Gi}}", "modelCache: {template: {size: 1Gi}}", "", "modelCache: null", "a claim cannot shrink", "claim s-models of the template from before is still there"},
	{"parallelism.nodes", "parallelism: {tensor: 2, nodes: 2}", "parallelism: {tensor: 2, nodes: 1}", "parallelism: {tensor: 2, nodes: null}", "parallelism: null",
		"nodes cannot change between one and several", "nodes cannot change between one and several"},
}

// TestImmutable: what cannot be changed is refused in time, in every way that it
// can be tried.
func TestImmutable(t *testing.T) {
	for _, tt := range immutables {
		t.Run(tt.field, func(t *testing.T) {
			p := begin(t)
			p.create(cachedManifest + "  " + tt.with + "\n")
			cached := strings.HasPrefix(tt.field, "modelCache")
			if cached {
				p.eventually("a claim", func() string { return unless(p.server().Status.ModelCache != nil, "none in the status") })
			}
			p.refuses("nothing changed", tt.with, "")
			p.refuses("changed", tt.other, tt.says)
			if tt.without != "" {
				p.refuses("removed", tt.without, tt.says)
			}
			if cached {
				if err := p.tried(tt.bare); err != nil {
					t.Fatal(err)
				}
				p.refuses("removed and written again as it was", tt.with, "")
			}
			// Without a claim's template nothing is there to compare with; nodes are always compared.
			if cached {
				p.refuses("removed and written again", tt.other, tt.again)
			} else {
				p.refuses("removed with what it is in", tt.bare, tt.again)
			}
			if tt.without == "" {
				return
			}
			p = begin(t)
			p.create(cachedManifest + "  " + strings.NewReplacer(", storageClassName: null", "", ", accessMode: null", "", ", nodes: null", "").Replace(tt.without) + "\n")
			p.refuses("added", tt.with, tt.says)
		})
	}
	p := begin(t)
	p.create(cachedManifest + "  modelCache: {template: {size: 2Gi, storageClassName: slow}}\n")
	for _, change := range []string{"accessMode: ReadWriteOnce", "size: 3Gi", "whenDeleted: Retain"} { // the first is the default, spelled out
		p.refuses("what may be changed", "modelCache: {template: {"+change+"}}", "")
	}
}

func unless(ok bool, problem string) string {
	if ok {
		return ""
	}
	return problem
}

// TestImmutablesAreTried: the table of what a change of each field does and that of
// TestImmutable have the same immutable fields.
func TestImmutablesAreTried(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "controllers", "speculativeserver", "build", "fields_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, i := range immutables {
		tried[i.field] = true
	}
	rows := regexp.MustCompile(`(?m)^\t"([A-Za-z.]+)": +immutable,`).FindAllSubmatch(b, -1)
	if len(rows) < 2 {
		t.Fatalf("%d immutable fields were found", len(rows))
	}
	for _, row := range rows {
		if !tried[string(row[1])] {
			t.Errorf("nobody tries to change spec.%s", row[1])
		}
	}
}

// claim is the claim of the server's template, once there is one other than before.
func (p *play) claim(before types.UID) *corev1.PersistentVolumeClaim {
	p.Helper()
	c := &corev1.PersistentVolumeClaim{}
	p.eventually("claim s-models", func() string {
		if err := k8s.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s-models"}, c); err != nil {
			return err.Error()
		}
		return unless(c.UID != before, "it is the old one")
	})
	return c
}

// TestCacheTemplateLeftOut: the claim of a template that is left out goes when no
// pod mounts it, a template that comes back before has it again with its files, and
// one that comes back after has another, which is filled anew.
func TestCacheTemplateLeftOut(t *testing.T) {
	p := begin(t)
	const template = "modelCache: {template: {size: 2Gi, storageClassName: slow}}"
	p.create(cachedManifest + "  " + template + "\n")
	fetched := func(job types.UID, name string) {
		t.Helper()
		j := p.job(job)
		pod := p.fetchPod(j, name)
		p.bind(pod)
		p.ends(j, pod, 0, `{"model":"hf/org--llama/0123"}`, "Complete")
	}
	first := p.job("")
	fetched("", "s-fetch-a")
	engine := p.pod(0, "")
	p.bind(engine)
	p.ready(engine)
	p.phase(v1alpha1.PhaseReady, "")
	claim := p.claim("")
	if s := p.server().Status; s.ModelCache == nil || s.ModelCache.UID != string(claim.UID) || s.ModelCache.StorageClassName != "slow" ||
		s.ModelCache.AccessMode != "ReadWriteOnce" || s.ModelCache.Size.String() != "2Gi" || s.Fetch.ClaimUID != string(claim.UID) {
		t.Errorf("%+v, %+v", s.ModelCache, s.Fetch)
	}

	if err := p.tried("modelCache: null"); err != nil {
		t.Fatal(err)
	}
	p.jobGoes(first)
	p.eventually("a pod that goes", func() string { return unless(p.pod(0, "").DeletionTimestamp != nil, "it stays") })
	if c := p.claim(""); c.DeletionTimestamp != nil {
		t.Fatal("the claim goes while a pod mounts it")
	}
	p.gone(engine)
	p.pod(0, engine.UID) // downloads for itself
	p.eventually("deletion of the claim", func() string { return unless(p.claim("").DeletionTimestamp != nil, "nobody deletes it") })

	if err := p.tried(template); err != nil { // the same, while the claim still goes
		t.Fatal(err)
	}
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonVolumeConflict)
	p.eventually("what is wrong", func() string {
		c := meta.FindStatusCondition(p.server().Status.Conditions, v1alpha1.ConditionDegraded)
		return unless(strings.Contains(c.Message, "Claim s-models is being deleted"), c.Message)
	})
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	claim.Finalizers = nil // no pod mounts it
	if err := k8s.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	second := p.claim(claim.UID)
	if !metav1.IsControlledBy(second, p.server()) {
		t.Errorf("owners %v", second.OwnerReferences)
	}
	fetched(first.UID, "s-fetch-b")
	p.eventually("files in the second claim", func() string {
		f := p.server().Status.Fetch
		return unless(f != nil && f.Phase == v1alpha1.PhaseReady && f.ClaimUID == string(second.UID), fmt.Sprintf("%+v", f))
	})
}

// TestCacheClaimDeleted: a claim that someone deletes is made anew and filled anew;
// what was downloaded into the first is not looked for in the second, and a pod that
// serves stays.
func TestCacheClaimDeleted(t *testing.T) {
	p := begin(t)
	p.create(cachedManifest + "  modelCache: {template: {size: 2Gi}}\n")
	fetched := func(j *batchv1.Job, name string) {
		t.Helper()
		pod := p.fetchPod(j, name)
		p.bind(pod)
		p.ends(j, pod, 0, `{"model":"hf/org--llama/0123"}`, "Complete")
	}
	job := p.job("")
	fetched(job, "s-fetch-a")
	engine := p.pod(0, "")
	p.bind(engine)
	p.ready(engine)
	p.phase(v1alpha1.PhaseReady, "")

	time.Sleep(1100 * time.Millisecond) // times of objects are whole seconds
	claim := p.claim("")
	if err := k8s.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}
	claim.Finalizers = nil // no pod mounts it
	if err := k8s.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	second := p.claim(claim.UID)
	p.jobGoes(job)
	again := p.job(job.UID)
	p.eventually("no files in the second claim", func() string {
		f := p.server().Status.Fetch
		return unless(f != nil && f.Phase != v1alpha1.PhaseReady, fmt.Sprintf("%+v", f))
	})
	fetched(again, "s-fetch-b")
	p.eventually("files in the second claim", func() string {
		f := p.server().Status.Fetch
		return unless(f != nil && f.Phase == v1alpha1.PhaseReady && f.ClaimUID == string(second.UID), fmt.Sprintf("%+v", f))
	})
	if now := p.pod(0, ""); now.UID != engine.UID || now.DeletionTimestamp != nil {
		t.Error("the pod that serves was replaced")
	}
}

// TestClaimFromBefore: a claim that was retained and is not what the template asks
// for is told of, with what it has.
func TestClaimFromBefore(t *testing.T) {
	p := begin(t)
	before := &v1alpha1.SpeculativeServer{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s"}, Spec: v1alpha1.SpeculativeServerSpec{
		ModelCache: &v1alpha1.ModelCacheSpec{Template: &v1alpha1.CacheTemplate{Size: quantity("2Gi"), StorageClassName: "slow", WhenDeleted: "Retain"}}}}
	if err := k8s.Apply(t.Context(), build.CacheClaim(before), speculativeserver.FieldOwner); err != nil {
		t.Fatal(err)
	}
	claim := p.claim("")
	p.create(cachedManifest + "  modelCache: {template: {size: 1Gi}}\n")
	p.phase(v1alpha1.PhasePending, "Claim s-models is there from before with storage class slow, ReadWriteOnce and 2Gi, and a claim cannot be changed: write these into spec.modelCache.template")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonVolumeConflict)
	p.noPods()
	if err := p.tried("modelCache: {template: null, claimName: other}"); err != nil {
		t.Fatal(err)
	}
	p.job("")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	if now := p.claim(""); now.UID != claim.UID || now.DeletionTimestamp != nil {
		t.Error("the retained claim went")
	}
}
