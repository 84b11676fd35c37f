package build

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

func cached() *v1alpha1.SpeculativeServer {
	s := server("s", v1alpha1.SpeculativeServerSpec{Speculation: eagle3(3), ModelCache: &v1alpha1.ModelCacheSpec{ClaimName: "c"}})
	s.Spec.Model.Source.HuggingFace = &v1alpha1.HubSource{Repo: "org/llama"}
	s.Spec.Speculation.Draft = &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{S3: &v1alpha1.S3Source{URI: "s3://b/head"}}}
	return s
}

// TestSources: what is downloaded again, and what only makes another Job.
func TestSources(t *testing.T) {
	for _, tt := range []struct {
		name         string
		change       func(*v1alpha1.SpeculativeServer)
		sources, job bool
	}{
		{"nothing", func(*v1alpha1.SpeculativeServer) {}, false, false},
		{"replicas", func(s *v1alpha1.SpeculativeServer) { s.Spec.Replicas = ptr(int32(3)) }, false, false},
		{"revision", func(s *v1alpha1.SpeculativeServer) { s.Spec.Model.Source.HuggingFace.Revision = "v2" }, true, true},
		{"endpoint", func(s *v1alpha1.SpeculativeServer) { s.Spec.Model.Source.HuggingFace.Endpoint = "https://x.test" }, true, true},
		{"draft", func(s *v1alpha1.SpeculativeServer) { s.Spec.Speculation.Draft.Source.S3.URI = "s3://b/other" }, true, true},
		{"claim", func(s *v1alpha1.SpeculativeServer) { s.Spec.ModelCache.ClaimName = "d" }, true, true},
		{"no draft", func(s *v1alpha1.SpeculativeServer) { s.Spec.Speculation.Algorithm = v1alpha1.AlgorithmNone }, true, true},
		{"a draft that must be there", func(s *v1alpha1.SpeculativeServer) { s.Spec.Speculation.OnDraftFailure = "Fail" }, true, true},
		{"token", func(s *v1alpha1.SpeculativeServer) {
			s.Spec.Model.Source.HuggingFace.TokenSecretRef = &v1alpha1.SecretKeyRef{Name: "t", Key: "k"}
		}, false, true},
		{"image", func(s *v1alpha1.SpeculativeServer) { s.Spec.Image = "other:1" }, false, true},
	} {
		before, after := Fetch(cached(), options), cached()
		tt.change(after)
		job := Fetch(after, options)
		for label, want := range map[string]bool{v1alpha1.LabelSources: tt.sources, v1alpha1.LabelRevision: tt.job} {
			if changed := job.Labels[label] != before.Labels[label]; changed != want {
				t.Errorf("%s: label %s changed %v, want %v", tt.name, label, changed, want)
			}
		}
	}
}

// TestFetched: pods of files that are in the claim know nothing of where they
// came from, need no secret, and cannot write to them.
func TestFetched(t *testing.T) {
	s := cached()
	s.Spec.Model.Source.HuggingFace.TokenSecretRef = &v1alpha1.SecretKeyRef{Name: "t", Key: "k"}
	f := Fetched(s, "hf/a/1", "s3/b/2")
	if Fetches(f) || !Fetches(s) {
		t.Error("what is fetched is fetched again")
	}
	pod, err := Pod(f, 0, options)
	if err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if text := strings.Join(c.Args, " "); strings.Contains(text, "hf://") || strings.Contains(text, "--hf-token-file") || strings.Contains(text, "--download-dir") {
		t.Errorf("args %s", text)
	}
	paths := map[string]string{}
	for _, m := range c.VolumeMounts {
		if m.SubPath != nil {
			paths[*m.MountPath] = *m.SubPath
			if m.ReadOnly == nil || !*m.ReadOnly {
				t.Errorf("%s can be written", *m.MountPath)
			}
		}
		if strings.Contains(*m.Name, "hub") {
			t.Errorf("mounts %s", *m.Name)
		}
	}
	if paths[targetDir] != "hf/a/1" || paths[draftDir] != "s3/b/2" {
		t.Errorf("%v", paths)
	}
	one, _ := Revision(f, options)
	if other, _ := Revision(Fetched(s, "hf/a/9", "s3/b/2"), options); one == other {
		t.Error("another commit is no other revision")
	}
}

// TestSecretsAreFiles: no Secret that a source names is in a variable or a flag.
func TestSecretsAreFiles(t *testing.T) {
	s := cached()
	s.Spec.Model.Source.HuggingFace.TokenSecretRef = &v1alpha1.SecretKeyRef{Name: "secret-t", Key: "k"}
	s.Spec.Speculation.Draft.Source.S3.CredentialsSecretRef = &v1alpha1.SecretKeyRef{Name: "secret-c", Key: "k"}
	direct := s.DeepCopy()
	direct.Spec.ModelCache = nil
	pod, err := Pod(direct, 0, options)
	if err != nil {
		t.Fatal(err)
	}
	job := Fetch(s, options).Spec.Template.Spec
	for name, spec := range map[string]int{"pod": len(pod.Spec.Containers), "fetch": len(job.Containers)} {
		if spec != 1 {
			t.Fatalf("%s: %d containers", name, spec)
		}
	}
	for name, c := range map[string]struct {
		args []string
		env  int
	}{"pod": {pod.Spec.Containers[0].Args, len(pod.Spec.Containers[0].Env)}, "fetch": {job.Containers[0].Args, len(job.Containers[0].Env)}} {
		if text := strings.Join(c.args, " "); strings.Contains(text, "secret-") || !strings.Contains(text, "--hf-token-file=/var/run/outrider/hub/token") || c.env != 1 {
			t.Errorf("%s: %s, %d variables", name, text, c.env)
		}
	}
	for _, e := range append(pod.Spec.Containers[0].Env, job.Containers[0].Env...) {
		if e.ValueFrom != nil || *e.Name != "AWS_SHARED_CREDENTIALS_FILE" {
			t.Errorf("variable %s", *e.Name)
		}
	}
}

func TestCacheClaim(t *testing.T) {
	s := everything()
	if c := CacheClaim(s); len(c.OwnerReferences) != 0 {
		t.Error("a claim that is retained goes with the server")
	}
	s.Spec.ModelCache.Template.WhenDeleted, s.Spec.ModelCache.Template.AccessMode = "", ""
	if c := CacheClaim(s); len(c.OwnerReferences) != 1 || c.Spec.AccessModes[0] != corev1.ReadWriteOnce {
		t.Errorf("%+v", c)
	}
	s.Spec.ModelCache = &v1alpha1.ModelCacheSpec{ClaimName: "x"}
	if CacheClaim(s) != nil {
		t.Error("a claim is made although one is named")
	}
}
