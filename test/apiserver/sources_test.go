//go:build apiserver

package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestSourcesValidation is TestValidation of model sources, caches, number
// formats and certificates.
func TestSourcesValidation(t *testing.T) {
	const none = "speculation: {algorithm: None}"
	spec := func(parts ...string) string {
		return "metadata: {name: s, namespace: default}\nspec:\n  " + strings.Join(parts, "\n  ")
	}
	hub := func(fields string) string { return "model: {source: {huggingFace: {" + fields + "}}}" }
	s3 := func(fields string) string { return "model: {source: {s3: {" + fields + "}}}" }
	draft := func(source string) string { return "speculation: {draft: {source: {" + source + "}}}" }
	for _, tt := range []struct {
		name, yaml string
		want       string // part of the refusal; "" when accepted
	}{
		{"hub", spec(hub("repo: a/b, revision: v1.0, endpoint: 'https://hub.test/x', tokenSecretRef: {name: t, key: k}"), none), ""},
		{"hub, no owner", spec(hub("repo: gpt2"), none), ""},
		{"hub, a URL", spec(hub("repo: 'https://huggingface.co/a/b'"), none), "write the repository as owner/name"},
		{"hub, upwards", spec(hub("repo: a/b..c"), none), "write the repository as owner/name"},
		{"hub, revision", spec(hub("repo: a/b, revision: '-x'"), none), "write a branch, a tag or a commit"},
		{"hub, endpoint", spec(hub("repo: a/b, endpoint: hub.test"), none), "write the hub's address without credentials"},
		{"hub, password", spec(hub("repo: a/b, endpoint: 'https://u:p@hub.test'"), none), "write the hub's address without credentials"},
		{"hub without draft", spec(hub("repo: a/b")), "set speculation.draft.source to it"},
		{"hub twice", spec(hub("repo: a/b"), draft("huggingFace: {repo: a/c, tokenSecretRef: {name: t, key: k}}")), ""},
		{"two hubs", spec(hub("repo: a/b"), draft("huggingFace: {repo: a/c, endpoint: 'https://x.test'}")), "write the same endpoint for both, and one tokenSecretRef"},
		{"two tokens", spec(hub("repo: a/b, tokenSecretRef: {name: t, key: k}"), draft("huggingFace: {repo: a/c, tokenSecretRef: {name: t, key: l}}")), "one tokenSecretRef"},
		{"store", spec(s3("uri: 's3://bucket/llama/8b', endpoint: 'http://minio:9000', region: eu-1, credentialsSecretRef: {name: c, key: k}"), none), ""},
		{"store, no bucket", spec(s3("uri: 's3:///llama'"), none), "write s3://bucket/prefix"},
		{"store, another scheme", spec(s3("uri: 'gs://bucket/llama'"), none), "write s3://bucket/prefix"},
		{"store, path in the endpoint", spec(s3("uri: 's3://bucket/x', endpoint: 'https://minio/x'"), none), "without path and credentials"},
		{"two stores", spec(s3("uri: 's3://bucket/x', region: a"), draft("s3: {uri: 's3://bucket/y', region: b}")), "write the same endpoint and region for both"},
		{"hub and store", spec(hub("repo: a/b"), draft("s3: {uri: 's3://bucket/y', region: b}")), ""},
		{"draft model of a hub", spec(hub("repo: a/b"), "speculation: {algorithm: DraftModel, draft: {source: {huggingFace: {repo: a/c}}}}"), ""},
		{"draft of two", spec(hub("repo: a/b"), draft("huggingFace: {repo: a/c}, hostPath: {path: /x}")), "set exactly one of"},
		{"cache", spec(hub("repo: a/b"), none, "modelCache: {claimName: models}"), ""},
		{"cache of a draft", spec("model: {source: {hostPath: {path: /m}}}", draft("huggingFace: {repo: a/c}"), "modelCache: {claimName: models}"), ""},
		{"cache, template", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 50Gi, storageClassName: fast, accessMode: ReadWriteMany, whenDeleted: Retain}}", "replicas: 3"), ""},
		{"cache of nothing", spec("model: {source: {builtin: {name: gocode-7m}}}", "modelCache: {claimName: models}"), "modelCache is for models that are downloaded"},
		{"cache of both kinds", spec(hub("repo: a/b"), none, "modelCache: {claimName: models, template: {size: 1Gi}}"), "set exactly one of claimName and template"},
		{"cache of no kind", spec(hub("repo: a/b"), none, "modelCache: {}"), "set exactly one of claimName and template"},
		{"cache of no size", spec(hub("repo: a/b"), none, "modelCache: {template: {size: '0'}}"), "size is not above 0"},
		{"cache, storage class", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 1Gi, storageClassName: A_b}}"), "storageClassName"},
		{"cache without a size", spec(hub("repo: a/b"), none, "modelCache: {template: {accessMode: ReadWriteOnce}}"), "size"},
		{"cache of one node", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 1Gi}}", "replicas: 2"), "one node can mount a ReadWriteOnce claim"},
		{"cache of one node and a surge", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 1Gi}}", "rollout: {maxSurge: 1}"), "one node can mount a ReadWriteOnce claim"},
		{"cache of one node, all there", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 1Gi}}", "replicas: 2", "scheduling: {nodeSelector: {kubernetes.io/hostname: node1}}"), ""},
		{"cache of one node and an autoscaler", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 1Gi}}", "autoscaling: {maxReplicas: 2}"), "one node can mount a ReadWriteOnce claim"},
		{"cache of many nodes and an autoscaler", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 1Gi, accessMode: ReadWriteMany}}", "autoscaling: {maxReplicas: 2}"), ""},
		{"cache, another mode", spec(hub("repo: a/b"), none, "modelCache: {template: {size: 1Gi, accessMode: ReadOnlyMany}}"), "supported values"},
		{"formats", spec("model: {source: {builtin: {name: gocode-7m}}, dtype: Float32, quantization: CompressedTensors}", "kvCache: {dtype: Float32}", "device: CPU"), ""},
		{"dtype", spec("model: {source: {builtin: {name: gocode-7m}}, dtype: Float16}"), `supported values: "Auto", "BFloat16", "Float32"`},
		{"dtype of another device", spec("model: {source: {builtin: {name: gocode-7m}}, dtype: BFloat16}", "device: CPU"), "write Float32 with device CPU, BFloat16 with CUDA"},
		{"cache dtype of another device", spec("model: {source: {builtin: {name: gocode-7m}}}", "kvCache: {dtype: Float32}", "device: CUDA", "resources: {limits: {nvidia.com/gpu: 1}}"), "write Float32 with device CPU, BFloat16 with CUDA"},
		{"float8 cache on CPU", spec("model: {source: {builtin: {name: gocode-7m}}}", "kvCache: {dtype: FP8}", "device: CPU"), ""},
		{"float8 cache on GPUs", spec("model: {source: {builtin: {name: gocode-7m}}, dtype: BFloat16}", "kvCache: {dtype: FP8}", "device: CUDA", "resources: {limits: {nvidia.com/gpu: 1}}"), ""},
		{"cache dtype", spec("model: {source: {builtin: {name: gocode-7m}}}", "kvCache: {dtype: FP4}"), `supported values: "Auto", "BFloat16", "Float32", "FP8"`},
		{"dtype of any device", spec("model: {source: {builtin: {name: gocode-7m}}, dtype: BFloat16}", "device: Auto"), ""},
		{"quantization", spec("model: {source: {builtin: {name: gocode-7m}}, quantization: AWQ}"), "supported values"},
		{"certificate", spec("model: {source: {builtin: {name: gocode-7m}}}", "security: {tlsSecretName: cert}"), ""},
		{"certificate's name", spec("model: {source: {builtin: {name: gocode-7m}}}", "security: {tlsSecretName: A_b}"), "tlsSecretName"},
		{"env of a hub", spec("model: {source: {builtin: {name: gocode-7m}}}", "extraEnv: [{name: HF_TOKEN, value: x}]"), "HF_TOKEN has a field of its own: set it under huggingFace or s3"},
		{"env of the admin port", spec("model: {source: {builtin: {name: gocode-7m}}}", "extraEnv: [{name: OUTRIDER_ADMIN_TOKEN_FILE, value: x}]"), "is set by the operator, which relies on it"},
		{"args of a certificate", spec("model: {source: {builtin: {name: gocode-7m}}}", "extraArgs: ['--tls-cert-file=/x']"), "a flag that a field of this resource sets"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte("apiVersion: inference.outrider.dev/v1alpha1\nkind: SpeculativeServer\n"+tt.yaml), &u.Object); err != nil {
				t.Fatal(err)
			}
			err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want a refusal with %q", err, tt.want)
			}
			if tt.want == "" && err == nil {
				makes(t, u)
			}
		})
	}
}

const cachedManifest = `
apiVersion: inference.outrider.dev/v1alpha1
kind: SpeculativeServer
metadata: {name: s}
spec:
  model: {source: {huggingFace: {repo: org/llama, tokenSecretRef: {name: hub, key: token}}}}
  speculation: {algorithm: None}
`

// job waits for the Job that downloads, other than one that was there before.
func (p *play) job(before types.UID) *batchv1.Job {
	p.Helper()
	job := &batchv1.Job{}
	p.eventually("Job s-fetch", func() string {
		if err := k8s.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s-fetch"}, job); err != nil {
			return err.Error()
		}
		if job.UID == before || job.DeletionTimestamp != nil {
			return "it is the old one"
		}
		return ""
	})
	return job
}

// fetchPod plays the Job controller: it makes a pod of the Job's.
func (p *play) fetchPod(job *batchv1.Job, name string) *corev1.Pod {
	p.Helper()
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name, Labels: job.Spec.Template.Labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: &yes}}},
		Spec: job.Spec.Template.Spec}
	if err := k8s.Create(p.Context(), pod); err != nil {
		p.Fatal(err)
	}
	return pod
}

// ends plays the kubelet and the Job controller at the end of a fetch.
func (p *play) ends(job *batchv1.Job, pod *corev1.Pod, code int32, message string, kind batchv1.JobConditionType) {
	p.Helper()
	p.exits(pod, code, message)
	if code == 0 {
		p.setStatus(pod, func(s *corev1.PodStatus) { s.Phase = corev1.PodSucceeded })
	}
	if kind == "" {
		return
	}
	p.eventually("status of the Job", func() string {
		if err := k8s.Get(p.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err.Error()
		}
		now := metav1.Now()
		before := map[batchv1.JobConditionType]batchv1.JobConditionType{batchv1.JobComplete: batchv1.JobSuccessCriteriaMet, batchv1.JobFailed: batchv1.JobFailureTarget}[kind]
		job.Status.StartTime = &now
		if kind == batchv1.JobComplete {
			job.Status.CompletionTime, job.Status.Succeeded = &now, 1
		}
		job.Status.Conditions = []batchv1.JobCondition{{Type: before, Status: corev1.ConditionTrue, LastTransitionTime: now}, {Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}}
		if err := k8s.Status().Update(p.Context(), job); err != nil {
			return err.Error()
		}
		return ""
	})
}

// TestFetch: one Job brings the files, says how far it is, and pods are made when
// they are whole, once, and without any secret; another revision is fetched while
// the pods of the last one serve.
func TestFetch(t *testing.T) {
	p := begin(t)
	p.create(cachedManifest + "  modelCache: {template: {size: 2Gi}}\n")
	job := p.job("")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s-models"}}
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || !metav1.IsControlledBy(claim, p.server()) || !metav1.IsControlledBy(job, p.server()) {
		t.Errorf("claim %v, owners %v and %v", err, claim.OwnerReferences, job.OwnerReferences)
	}
	fake.fetches(43, 1<<30)
	pod := p.fetchPod(job, "s-fetch-a")
	p.bind(pod)
	p.runs(pod, true)
	s := p.phase(v1alpha1.PhaseFetching, "Fetching 43 %")
	if s.Status.Fetch == nil || s.Status.Fetch.Percent == nil || *s.Status.Fetch.Percent != 43 {
		t.Errorf("%+v", s.Status.Fetch)
	}
	p.condition(v1alpha1.ConditionModelLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoading)
	p.noPods()

	p.ends(job, pod, 10, `{"reason":"Unauthorized","message":"org/llama is gated: accept its terms"}`, "")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonUnauthorized)
	p.phase(v1alpha1.PhaseCrashed, "accept its terms. The Job s-fetch tries again.")
	p.noPods()

	fake.serves(3, 3.31, 118, "")
	second := p.fetchPod(job, "s-fetch-b")
	p.bind(second)
	p.ends(job, second, 0, `{"model":"hf/org--llama/0123","draft":""}`, batchv1.JobComplete)
	engine := p.pod(0, "")
	mount := ""
	for _, m := range engine.Spec.Containers[0].VolumeMounts {
		if m.MountPath == "/models/target" && m.ReadOnly {
			mount = m.SubPath
		}
	}
	if mount != "hf/org--llama/0123" || slices.ContainsFunc(engine.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "hub" }) {
		t.Errorf("mounted from %q; volumes %+v", mount, engine.Spec.Volumes)
	}
	p.bind(engine)
	p.ready(engine)
	p.phase(v1alpha1.PhaseReady, "Serving")
	if f := p.server().Status.Fetch; f.Phase != v1alpha1.PhaseReady || f.Model != "hf/org--llama/0123" || f.CompletionTime == nil {
		t.Errorf("%+v", f)
	}
	p.quiet()

	p.patch(`{"spec":{"model":{"source":{"huggingFace":{"revision":"v2"}}}}}`)
	p.jobGoes(job) // without a garbage collector
	job = p.job(job.UID)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
	if now := p.pod(0, ""); now.UID != engine.UID || now.DeletionTimestamp != nil {
		t.Error("the pod did not wait for the files")
	}
	third := p.fetchPod(job, "s-fetch-c")
	p.bind(third)
	p.ends(job, third, 0, `{"model":"hf/org--llama/4567","draft":""}`, batchv1.JobComplete)
	p.gone(engine)
	p.pod(0, engine.UID)
}

func (p *play) noPods() {
	p.Helper()
	var pods corev1.PodList
	if err := k8s.List(p.Context(), &pods, client.InNamespace(p.namespace), client.HasLabels{v1alpha1.LabelServer}); err != nil || len(pods.Items) > 0 {
		p.Errorf("%d pods were made before the files were there, %v", len(pods.Items), err)
	}
}

// jobGoes plays the garbage collector for a Job that is being deleted.
func (p *play) jobGoes(job *batchv1.Job) {
	p.Helper()
	p.eventually("deletion of the Job", func() string {
		now := &batchv1.Job{}
		err := k8s.Get(p.Context(), client.ObjectKeyFromObject(job), now)
		if apierrors.IsNotFound(err) || err == nil && now.UID != job.UID {
			return ""
		}
		if err == nil && now.DeletionTimestamp == nil {
			return "nobody deletes it"
		}
		now.Finalizers = nil
		return fmt.Sprint("it goes: ", k8s.Update(p.Context(), now))
	})
}

// TestFetchGivesUp: what trying again does not heal ends, with the reason and
// what to do; and the Job's deletion is one more try.
func TestFetchGivesUp(t *testing.T) {
	p := begin(t)
	p.create(cachedManifest + "  modelCache: {template: {size: 2Gi}}\n")
	job := p.job("")
	pod := p.fetchPod(job, "s-fetch-a")
	p.bind(pod)
	p.ends(job, pod, 10, `{"reason":"ModelNotFound","message":"there is no org/llama: check owner and name"}`, batchv1.JobFailed)
	p.phase(v1alpha1.PhaseFailed, "check owner and name. Not tried again until the spec changes or the Job s-fetch is deleted.")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonModelNotFound)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)
	p.events("ModelNotFound")
	if err := k8s.Delete(t.Context(), job, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	p.jobGoes(job)
	p.job(job.UID)
	p.patch(`{"spec":{"modelCache":null}}`)
	p.jobGoes(p.server2job())
	p.pod(0, "")
}

// server2job is the Job as it is now.
func (p *play) server2job() *batchv1.Job {
	p.Helper()
	job := &batchv1.Job{}
	if err := k8s.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s-fetch"}, job); err != nil && !apierrors.IsNotFound(err) {
		p.Fatal(err)
	}
	job.Namespace, job.Name = p.namespace, "s-fetch"
	return job
}

// TestRetain: a claim that is to outlive its server has no owner, and is found
// again by the next server of the name.
func TestRetain(t *testing.T) {
	p := begin(t)
	p.create(cachedManifest + "  modelCache: {template: {size: 2Gi, whenDeleted: Retain}}\n")
	p.job("")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s-models"}}
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || len(claim.OwnerReferences) != 0 {
		t.Errorf("%v, owners %v", err, claim.OwnerReferences)
	}
	p.patch(`{"spec":{"modelCache":{"template":{"whenDeleted":"Delete"}}}}`)
	p.eventually("owner", func() string {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil || !metav1.IsControlledBy(claim, p.server()) {
			return fmt.Sprint("it goes with no one: ", err)
		}
		return ""
	})
}

// TestAdminToken: the operator makes a token for each server, its pods mount it,
// and it is shown where the admin port asks for one, also after a rotation.
func TestAdminToken(t *testing.T) {
	p := begin(t)
	p.create(manifest + "  speculation: {adaptation: {mode: Auto}}\n")
	pod := p.pod(0, "")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s-admin"}}
	if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil || !metav1.IsControlledBy(secret, p.server()) || len(secret.Data["token"]) < 20 {
		t.Fatalf("%v, %d bytes, owners %v", err, len(secret.Data["token"]), secret.OwnerReferences)
	}
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "s-admin" }) {
		t.Errorf("volumes %+v", pod.Spec.Volumes)
	}
	fake.asks(strings.TrimSpace(string(secret.Data["token"])))
	defer fake.asks("")
	p.bind(pod)
	p.ready(pod)
	confirmed := func(want string) {
		p.Helper()
		p.eventually("bounds", func() string {
			if s := p.server().Status.Speculation; s == nil || s.Confirmed != want {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
	confirmed("1/1")
	if fake.fresh(); fake.held() == "auto 0 3" {
		t.Fatal("the fake remembers")
	}
	// The Secret has another token before the engine does.
	secret.Data["token"] = []byte("second")
	if err := k8s.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	confirmed("1/1")
	fake.asks("second")
	fake.fresh()
	p.eventually("the new token", func() string {
		if held := fake.held(); held != "auto 0 3" {
			return held
		}
		return ""
	})
	if err := k8s.Delete(t.Context(), p.server()); err != nil {
		t.Fatal(err)
	}
	p.eventually("end of the asking", func() string { // the next test has the fake for itself
		fake.fresh()
		time.Sleep(200 * time.Millisecond)
		if held := fake.held(); held == "auto 0 3" {
			return held
		}
		return ""
	})
}
