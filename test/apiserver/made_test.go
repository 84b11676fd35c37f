//go:build apiserver

package apiserver

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// makes checks that the API server takes all that the operator makes of a spec
// that it has taken: what is wrong with a spec is said when it is applied. What it
// forbids for want of an object (a priority class) is not the spec's fault. It
// returns how many objects were tried.
func makes(t *testing.T, u *unstructured.Unstructured) int {
	t.Helper()
	s := &v1alpha1.SpeculativeServer{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, s); err != nil {
		t.Fatal(err)
	}
	options := build.Options{EngineImage: "example.test/engine:1", OperatorNamespace: "outrider-system"}
	pod, err := build.Pod(s, 0, options)
	if err != nil {
		t.Fatal(err)
	}
	objects := []any{pod, build.Service(s), build.Headless(s), build.Budget(s), build.Autoscaler(s),
		build.Network(s, options), build.FetchNetwork(s, options), build.CacheClaim(s)}
	if build.Fetches(s) {
		objects = append(objects, build.Fetch(s, options))
	}
	n := 0
	for _, o := range objects {
		if reflect.ValueOf(o).IsNil() {
			continue // not asked for
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{Object: content}
		n++
		if err := k8s.Create(t.Context(), object, client.DryRunAll); err != nil && !apierrors.IsForbidden(err) {
			b, _ := yaml.Marshal(u.Object["spec"])
			t.Errorf("the API server takes the spec, and not its %s: %v\n%s", object.GetKind(), err, b)
		}
	}
	return n
}

// hostile are values of fields, right and wrong ones, and what is in between.
var hostile = struct{ key, value, name, quantity, resource, path []string }{
	key: []string{"a", "team", "a b", "''", "-a", "a-", "a.b_c", "example.com/x", "Example.com/x", "/x", "x/", "a/b/c", "kubernetes.io/hostname", "a..b/c",
		strings.Repeat("k", 63), strings.Repeat("k", 64), strings.Repeat("d", 253) + "/k", strings.Repeat("d", 254) + "/k", "é"},
	value: []string{"v", "''", "a b", "-", "a-", "'1'", "'true'", "a/b", "é", strings.Repeat("v", 63), strings.Repeat("v", 64)},
	name: []string{"x", "a.b-c", "''", "X", "a..b", "-a", "a.", "a_b", "'1'", strings.Repeat("n", 63), strings.Repeat("n", 253), strings.Repeat("n", 254),
		"default", "system-node-critical"},
	quantity: []string{"1", "1Gi", "0", "-1", "'1.5'", "500m", "1e3", "abc", "''", "9223372036854775807", "100Ei", "1n"},
	resource: []string{"cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "example.com/fpga", "foo", "hugepages-2Mi", "hugepages-x", "kubernetes.io/x",
		"requests.cpu", "x/", "/x", "pods", "storage", "requests.nvidia.com/gpu", "a.kubernetes.io/b"},
	path: []string{"/a", "/b", "/a/", "/", "''", "a", "/var", "/var/run", "/run/", "/var/run/outrider", "/tmp", "/tmpx", "/a:b", "'/a b'", "/a/../b", "/a/./b", "/etc/passwd",
		"/dev/shm", "/a/b", "/é"},
}

// randomSpec is a spec of a few fields with hostile values.
func randomSpec(r *rand.Rand) string {
	one := func(list []string) string { // every other one of the first two, which are right
		if r.IntN(2) == 0 {
			return list[r.IntN(2)]
		}
		return list[r.IntN(len(list))]
	}
	quoted := func(s string) string {
		if strings.HasPrefix(s, "'") {
			return s
		}
		return "'" + s + "'"
	}
	labels := func() string {
		return fmt.Sprintf("{%s: %s, %s: %s}", quoted(one(hostile.key[:4])), one(hostile.value), quoted(one(hostile.key)), one(hostile.value))
	}
	resources := func() string {
		return fmt.Sprintf("{%s: %s, %s: %s}", one(hostile.resource[:3]), one(hostile.quantity), quoted(one(hostile.resource)), one(hostile.quantity))
	}
	volume := func(name string) string {
		source := one([]string{"emptyDir: {}", "emptyDir: {sizeLimit: " + one(hostile.quantity) + "}", "configMap: " + one(hostile.name), "secret: " + one(hostile.name),
			"pvc: {claimName: " + one(hostile.name) + ", path: " + one([]string{"a", "a/b", "''", "a//b", "'.'"}) + "}", "hostPath: {path: " + one(hostile.path) + "}"})
		return fmt.Sprintf("{name: %s, mountPath: %s, access: %s, %s}", name, one(hostile.path), one([]string{"ReadOnly", "ReadWrite"}), source)
	}
	number := func() string { return one([]string{"1", "65532", "0", "2147483647", "2147483648", "4294967294", "-1"}) }
	fields := []func() string{
		func() string { return "resources: {limits: " + resources() + "}" },
		func() string { return "resources: {requests: " + resources() + ", limits: " + resources() + "}" },
		func() string { return "podMetadata: {labels: " + labels() + "}" },
		func() string { return "podMetadata: {annotations: " + labels() + "}" },
		func() string { return "service: {headless: Enabled, annotations: " + labels() + "}" },
		func() string { return "scheduling: {nodeSelector: " + labels() + "}" },
		func() string {
			return fmt.Sprintf("scheduling: {nodeAffinity: [{key: %s, operator: %s, values: [%s]}]}", quoted(one(hostile.key)), one([]string{"In", "NotIn", "Gt", "Lt"}), one(append(hostile.value, "'5'", "'-5'", "a, b")))
		},
		func() string {
			return fmt.Sprintf("scheduling: {tolerations: [{key: %s, operator: Equal, value: %s, effect: %s, tolerationSeconds: 5}]}", quoted(one(hostile.key)), one(hostile.value), one([]string{"NoSchedule", "NoExecute", "''"}))
		},
		func() string {
			return fmt.Sprintf("scheduling: {topologySpread: [{topologyKey: %s, maxSkew: %s}]}", quoted(one(hostile.key)), number())
		},
		func() string { return "scheduling: {priorityClassName: " + one(hostile.name) + "}" },
		func() string { return "scheduling: {runtimeClassName: " + one(hostile.name) + "}" },
		func() string { return "scheduling: {schedulerName: " + one(hostile.name) + "}" },
		func() string {
			return fmt.Sprintf("security: {runAsUser: %s, runAsGroup: %s, fsGroup: %s, serviceAccountName: %s}", number(), number(), number(), one(hostile.name))
		},
		func() string {
			return "security: {tlsSecretName: " + one(hostile.name) + ", apiKeySecretRef: {name: " + one(hostile.name) + ", key: " + one([]string{"k", "'.'", "'..'", "a.b", "'..a'"}) + "}}"
		},
		func() string { return "imagePullSecrets: [" + one(hostile.name) + "]" },
		func() string {
			return "image: " + one([]string{"a", "'a b'", "A:b", "registry.test/x@sha256:abc", "''"})
		},
		func() string { return "extraVolumes: [" + volume("a") + "]" },
		func() string { return "extraVolumes: [" + volume("a") + ", " + volume("b") + "]" },
		func() string {
			return "extraEnv: [{name: A, secretKeyRef: {name: " + one(hostile.name) + ", key: " + one([]string{"k", "'.'", "'..'", "'..a'", "a.b"}) + "}}, {name: b, value: '$(A)'}]"
		},
		func() string {
			return "networkPolicy: {clients: [{namespaceLabels: " + labels() + "}], scrapers: [{namespaceLabels: {a: b}, podLabels: " + labels() + "}]}"
		},
		func() string {
			return fmt.Sprintf("autoscaling: {maxReplicas: 3, metrics: [{name: %s, source: External, averageValue: %s, matchLabels: %s}]}", quoted(one(append(hostile.name, "a:b", "a/b"))), one(hostile.quantity), labels())
		},
		func() string { return "disruption: {maxUnavailable: " + number() + "}" },
		func() string { return "rollout: {drainSeconds: " + number() + "}" },
	}
	parts := []string{"model: {source: {builtin: {name: gocode-7m}}}"}
	if r.IntN(4) == 0 {
		parts = []string{"model: {source: {huggingFace: {repo: a/b}}}", "speculation: {algorithm: None}",
			fmt.Sprintf("modelCache: {template: {size: %s, storageClassName: %s}}", one(hostile.quantity), one(hostile.name))}
	}
	used := map[string]bool{}
	for range 1 + r.IntN(2) {
		part := fields[r.IntN(len(fields))]()
		if name, _, _ := strings.Cut(part, ":"); !used[name] {
			used[name] = true
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "\n  ")
}

// TestTakenMeansMade: of whatever specs the API server takes, it takes the pods
// and the objects around them.
func TestTakenMeansMade(t *testing.T) {
	const specs = 1500
	r := rand.New(rand.NewPCG(1, 2))
	taken, refused, objects := 0, 0, 0
	for range specs {
		text := "apiVersion: inference.outrider.dev/v1alpha1\nkind: SpeculativeServer\nmetadata: {name: s, namespace: default}\nspec:\n  " + randomSpec(r)
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))
		switch {
		case err == nil:
			taken++
			objects += makes(t, u)
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			refused++
			// A rule that cannot be evaluated says nothing that helps.
			for _, word := range []string{"no such overload", "no such key", "conversion error", "failed rule", "rule evaluation error"} {
				if strings.Contains(err.Error(), word) && !strings.Contains(err.Error(), "some validation rules were not checked") {
					t.Errorf("%q in the refusal of\n%s\n%v", word, text, err)
				}
			}
		default:
			t.Fatalf("%v for\n%s", err, text)
		}
	}
	t.Logf("%d specs taken, %d refused, %d objects tried", taken, refused, objects)
	if taken < specs/4 || refused < specs/4 || objects < 2*taken {
		t.Error("the specs try too little")
	}
}

// TestRefusedRolloutKeepsPods: a spec whose pods the API server refuses, or whose
// claims they could not mount, takes down none of those that serve; the status says
// why, and what was right goes on being so.
func TestRefusedRolloutKeepsPods(t *testing.T) {
	for _, tt := range []struct{ name, change, back, reason, says string }{
		{"priority class", `{"spec":{"scheduling":{"priorityClassName":"absent"}}}`, `{"spec":{"scheduling":null}}`,
			v1alpha1.ReasonPodRefused, "2 of 2 replicas serve. The API server refuses the pods of this spec, so those from before stay: "},
		{"claim", `{"spec":{"extraVolumes":[{"name":"x","mountPath":"/x","pvc":{"claimName":"single"}}]}}`, `{"spec":{"extraVolumes":null}}`,
			v1alpha1.ReasonVolumeConflict, "2 of 2 replicas serve. Claim single is ReadWriteOncePod"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := begin(t)
			if err := k8s.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "single"},
				Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}}}}); err != nil {
				t.Fatal(err)
			}
			fake.serves(3, 3.31, 118, "")
			p.create(manifest + "  replicas: 2\n")
			var pods []*corev1.Pod
			for i := range 2 {
				pod := p.pod(i, "")
				p.bind(pod)
				p.ready(pod)
				pods = append(pods, pod)
			}
			p.phase(v1alpha1.PhaseReady, "")
			p.patch(tt.change)
			p.phase(v1alpha1.PhaseDegraded, tt.says)
			p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, tt.reason)
			p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)
			p.condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
			p.events(tt.reason)
			p.quiet()
			p.patch(tt.back)
			p.phase(v1alpha1.PhaseReady, "")
			for i, pod := range pods {
				if now := p.pod(i, ""); now.UID != pod.UID || now.DeletionTimestamp != nil {
					t.Errorf("%s went", pod.Name)
				}
			}
			p.patch(`{"spec":{"parallelism":{"tensor":2}}}`) // and a right one is rolled out
			p.eventually("a pod that goes", func() string {
				for i := range 2 {
					if now := p.pod(i, ""); now.DeletionTimestamp != nil {
						return ""
					}
				}
				return "all stay"
			})
		})
	}
}

// TestNameTakenWhileServing: the phase says that it serves, the condition what is
// wrong, and no pod goes for which there would be no other.
func TestNameTakenWhileServing(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	pod := p.serving(manifest)
	other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s-pods"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if err := k8s.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	p.patch(`{"spec":{"service":{"headless":"Enabled"},"parallelism":{"tensor":2}}}`)
	p.phase(v1alpha1.PhaseDegraded, "1 of 1 replicas serve. A Service named "+p.namespace+"/s-pods is there and is not this server's")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameTaken)
	p.condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)
	p.events(v1alpha1.ReasonNameTaken)
	p.quiet()
	if now := p.pod(0, ""); now.UID != pod.UID || now.DeletionTimestamp != nil {
		t.Fatal("the pod went, and no other could be made")
	}
	if err := k8s.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	p.patch(`{"spec":{"parallelism":{"tensor":4}}}`) // the operator does not watch Services of others
	p.gone(pod)
	p.pod(0, pod.UID)
}

// TestRolloutUnderQuota: a quota that is spent by the pods that serve keeps no rollout
// from them: the old one goes first, and makes room.
func TestRolloutUnderQuota(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "pods"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: quantity("1")}}}
	if err := k8s.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	used := func(n string) { // as its controller would say
		t.Helper()
		p.eventually("a status of the quota", func() string {
			if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(quota), quota); err != nil {
				return err.Error()
			}
			quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourcePods: quantity(n)}}
			if err := k8s.Status().Update(t.Context(), quota); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	used("0")
	first := p.serving(manifest)
	used("1")
	p.patch(`{"spec":{"parallelism":{"tensor":2}}}`)
	p.gone(first)
	used("0")
	p.patch(`{"spec":{"service":{"port":8080}}}`) // sooner than by itself
	second := p.pod(0, first.UID)
	p.bind(second)
	p.ready(second)
	p.phase(v1alpha1.PhaseReady, ":8080/v1")
}
