package build

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func ptr[T any](v T) *T { return &v }

func server(name string, spec v1alpha1.SpeculativeServerSpec) *v1alpha1.SpeculativeServer {
	return &v1alpha1.SpeculativeServer{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "3b0c7d2e-0000-4000-8000-000000000001"},
		Spec:       spec,
	}
}

func builtin() v1alpha1.ModelSpec {
	return v1alpha1.ModelSpec{Source: v1alpha1.ModelSource{Builtin: &v1alpha1.BuiltinModel{Name: "gocode-7m"}}}
}

func folder(path string) v1alpha1.ModelSpec {
	return v1alpha1.ModelSpec{Source: v1alpha1.ModelSource{HostPath: &v1alpha1.HostPath{Path: path}}}
}

// eagle3 is the speculation that the API server's defaults give.
func eagle3(steps int32) v1alpha1.SpeculationSpec {
	return v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmEAGLE3, NumSteps: ptr(steps), TopK: ptr(int32(1))}
}

var options = Options{EngineImage: "example.test/engine:1"}

// TestPodGolden holds the pods as they are: a change here restarts every server
// of everyone who upgrades the operator, and has to be meant.
func TestPodGolden(t *testing.T) {
	full := server("full", v1alpha1.SpeculativeServerSpec{
		Model:       folder("/var/lib/models/llama"),
		Parallelism: v1alpha1.ParallelismSpec{Tensor: ptr(int32(4))},
		Speculation: eagle3(2),
		NCCL: &v1alpha1.NCCLSpec{Algorithm: "Ring", Protocol: "LL", P2PLevel: "SYS",
			MinChannels: ptr(int32(2)), MaxChannels: ptr(int32(8)), Debug: "WARN"},
		Resources: &v1alpha1.Resources{
			Requests: map[corev1.ResourceName]resource.Quantity{"memory": resource.MustParse("16Gi"), "cpu": resource.MustParse("4")},
			Limits:   map[corev1.ResourceName]resource.Quantity{"memory": resource.MustParse("16Gi"), "nvidia.com/gpu": resource.MustParse("4")}},
		Image: "registry.test/engine@sha256:00", ImagePullPolicy: corev1.PullAlways,
		ExtraEnv: []v1alpha1.EnvVar{{Name: "NCCL_BUFFSIZE", Value: "8388608"}, {Name: "PRICE", Value: "$(HOME) $5"}, {Name: "EMPTY"}},
	})
	full.Spec.Model.ServedName = "llama"
	full.Spec.Model.MaxContextLength = ptr(int32(8192))
	full.Spec.Speculation.NumDraftTokens = ptr(int32(3))
	full.Spec.Speculation.Draft = &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{HostPath: &v1alpha1.HostPath{Path: "/var/lib/models/head"}}}

	plain := server("plain", v1alpha1.SpeculativeServerSpec{Model: folder("/models/x"), Speculation: eagle3(3)})
	plain.Spec.Speculation.Algorithm = v1alpha1.AlgorithmNone
	plain.Spec.Speculation.Draft = full.Spec.Speculation.Draft

	named := server("named", v1alpha1.SpeculativeServerSpec{Model: builtin(), Speculation: eagle3(3)})
	named.Spec.Speculation.Draft = &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{Builtin: &v1alpha1.BuiltinDraft{Name: "gocode-7m-eagle3"}}}

	ngram := server("ngram", v1alpha1.SpeculativeServerSpec{Model: folder("/models/x"), Speculation: eagle3(4)})
	ngram.Spec.Speculation.Algorithm = v1alpha1.AlgorithmNGram
	ngram.Spec.Speculation.NGram = &v1alpha1.NGramSpec{MinMatchWindow: ptr(int32(3)), MaxMatchWindow: ptr(int32(5))}

	tree := server("tree", v1alpha1.SpeculativeServerSpec{Model: folder("/models/x"), Speculation: eagle3(4)})
	tree.Spec.Speculation.Algorithm = v1alpha1.AlgorithmDraftModel
	tree.Spec.Speculation.Draft = full.Spec.Speculation.Draft
	tree.Spec.Speculation.TopK, tree.Spec.Speculation.NumDraftTokens = ptr(int32(4)), ptr(int32(16))

	hub := server("hub", v1alpha1.SpeculativeServerSpec{Speculation: eagle3(3)})
	hub.Spec.Model.Source.HuggingFace = &v1alpha1.HubSource{Repo: "org/llama", Revision: "main", TokenSecretRef: &v1alpha1.SecretKeyRef{Name: "hub", Key: "token"}}
	hub.Spec.Model.DType, hub.Spec.Model.Quantization, hub.Spec.KVCache = "Float32", "CompressedTensors", &v1alpha1.KVCacheSpec{DType: "Float32"}
	hub.Spec.Speculation.Draft = &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{HuggingFace: &v1alpha1.HubSource{Repo: "org/head"}}}

	store := server("store", v1alpha1.SpeculativeServerSpec{Speculation: eagle3(3)})
	store.Spec.Model.Source.S3 = &v1alpha1.S3Source{URI: "s3://models/$llama", Endpoint: "https://minio.test:9000", Region: "eu",
		CredentialsSecretRef: &v1alpha1.SecretKeyRef{Name: "s3", Key: "file"}}
	store.Spec.Speculation.Draft = &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{Image: &v1alpha1.ImageSource{Name: "registry.test/head:1", Path: "head"}}}

	cached := hub.DeepCopy()
	cached.Name = "cached"
	cached.Spec.ModelCache = &v1alpha1.ModelCacheSpec{ClaimName: "shared"}
	cached = Fetched(cached, "hf/org--llama/0123", "hf/org--head/4567")

	for _, tt := range []struct {
		name    string
		server  *v1alpha1.SpeculativeServer
		ordinal int32
	}{
		{"hub", hub, 0},
		{"s3", store, 0},
		{"cached", cached, 0},
		{"quickstart", server("quickstart", v1alpha1.SpeculativeServerSpec{
			Model: builtin(), Parallelism: v1alpha1.ParallelismSpec{Tensor: ptr(int32(2))}, Speculation: eagle3(3),
			Resources: &v1alpha1.Resources{Limits: map[corev1.ResourceName]resource.Quantity{"memory": resource.MustParse("512Mi")}}}), 0},
		{"full", full, 12},
		{"plain", plain, 1},
		{"named-draft", named, 0},
		{"ngram", ngram, 0},
		{"draft-model-tree", tree, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, err := Pod(tt.server, tt.ordinal, options)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "pod-"+tt.name+".yaml", pod)
		})
	}
}

func TestServiceGolden(t *testing.T) {
	golden(t, "service.yaml", Service(server("quickstart", v1alpha1.SpeculativeServerSpec{Model: builtin()})))
}

func golden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s is out of date (go test -update writes it, if the change is meant):\n%s", path, d)
	}
}

func TestServedName(t *testing.T) {
	for _, tt := range []struct {
		model v1alpha1.ModelSpec
		want  string
	}{
		{builtin(), "gocode-7m"},
		{folder("/m"), "s"},
		{v1alpha1.ModelSpec{Source: builtin().Source, ServedName: "x"}, "x"},
	} {
		if got := ServedName(server("s", v1alpha1.SpeculativeServerSpec{Model: tt.model})); got != tt.want {
			t.Errorf("served name of %+v: %q, want %q", tt.model, got, tt.want)
		}
	}
}

// TestRevisionGolden: an upgrade of the operator must not restart the pods of
// servers whose spec has not changed. What changes this file restarts them all.
func TestRevisionGolden(t *testing.T) {
	revisions := map[string]string{}
	for _, s := range []*v1alpha1.SpeculativeServer{
		server("builtin", v1alpha1.SpeculativeServerSpec{Model: builtin(), Speculation: eagle3(3)}),
		server("folder", v1alpha1.SpeculativeServerSpec{Model: folder("/m"), Speculation: v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmNone}}),
		server("tensor", v1alpha1.SpeculativeServerSpec{Model: builtin(), Parallelism: v1alpha1.ParallelismSpec{Tensor: ptr(int32(8))}, Speculation: eagle3(3)}),
	} {
		r, err := Revision(s, options)
		if err != nil {
			t.Fatal(err)
		}
		revisions[s.Name] = r
	}
	golden(t, "revisions.yaml", revisions)
}

func TestPodAvoids(t *testing.T) {
	s := server("s", v1alpha1.SpeculativeServerSpec{Model: builtin()})
	pod, err := Pod(s, 0, options, "bad")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Revision(s, options); err != nil || pod.Labels[v1alpha1.LabelRevision] != r {
		t.Errorf("revision %s, want %s, %v: a node to avoid is no other template", pod.Labels[v1alpha1.LabelRevision], r, err)
	}
	terms := pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 || terms[0].Preference.MatchFields[0].Values[0] != "bad" || *terms[0].Preference.MatchFields[0].Operator != corev1.NodeSelectorOpNotIn {
		t.Errorf("%+v", terms)
	}
}
