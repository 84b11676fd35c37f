//go:build apiserver

package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// TestValidation has what the API server refuses, and what it says to write instead.
func TestValidation(t *testing.T) {
	const builtin = "model: {source: {builtin: {name: gocode-7m}}}"
	const folder = "model: {source: {hostPath: {path: /m/x}}}"
	spec := func(parts ...string) string {
		return "metadata: {name: s, namespace: default}\nspec:\n  " + strings.Join(parts, "\n  ")
	}
	for _, tt := range []struct {
		name, yaml string
		want       string // part of the refusal; "" when accepted
	}{
		{"smallest", spec(builtin), ""},
		{"no model", spec("replicas: 1"), "spec.model"},
		{"empty source", spec("model: {source: {}}"), "set exactly one of builtin and hostPath"},
		{"two sources", spec("model: {source: {builtin: {name: gocode-7m}, hostPath: {path: /m}}}"), "set exactly one of builtin and hostPath"},
		{"unknown builtin", spec("model: {source: {builtin: {name: gpt}}}"), `supported values: "gocode-7m"`},
		{"relative path", spec("model: {source: {hostPath: {path: m/x}}}", "speculation: {algorithm: None}"), "write an absolute path without '..'"},
		{"path upwards", spec("model: {source: {hostPath: {path: /m/../etc}}}", "speculation: {algorithm: None}"), "write an absolute path without '..'"},
		{"dots in a name", spec("model: {source: {hostPath: {path: /m/a..b}}}", "speculation: {algorithm: None}"), ""},
		{"folder without draft", spec(folder), "set speculation.draft.source to it, or write speculation.algorithm: NGram or None"},
		{"folder with draft", spec(folder, "speculation: {draft: {source: {hostPath: {path: /d}}}}"), ""},
		{"folder, no speculation", spec(folder, "speculation: {algorithm: None}"), ""},
		{"draft without source", spec(folder, "speculation: {draft: {source: {}}}"), "set exactly one of builtin and hostPath"},
		{"builtin draft", spec(builtin, "speculation: {draft: {source: {builtin: {name: gocode-7m-eagle3}}}}"), ""},
		{"algorithm unknown", spec(builtin, "speculation: {algorithm: NGRAM}"), `supported values: "EAGLE3", "NGram", "DraftModel", "None"`},
		{"n-grams", spec(folder, "speculation: {algorithm: NGram, numSteps: 5, nGram: {minMatchWindow: 3}}"), ""},
		{"n-grams with a draft", spec(folder, "speculation: {algorithm: NGram, draft: {source: {hostPath: {path: /d}}}}"), "leave topK and draft out"},
		{"n-grams in trees", spec(folder, "speculation: {algorithm: NGram, topK: 2}"), "leave topK and draft out"},
		{"n-grams crossed", spec(folder, "speculation: {algorithm: NGram, nGram: {minMatchWindow: 5, maxMatchWindow: 4}}"), "write minMatchWindow at most maxMatchWindow"},
		{"n-grams below the default", spec(folder, "speculation: {algorithm: NGram, nGram: {maxMatchWindow: 1}}"), "write minMatchWindow at most maxMatchWindow"},
		{"n-grams too long", spec(folder, "speculation: {algorithm: NGram, nGram: {maxMatchWindow: 65}}"), "less than or equal to 64"},
		{"n-grams of a head", spec(builtin, "speculation: {nGram: {minMatchWindow: 3}}"), "nGram is for algorithm NGram"},
		{"draft model", spec(folder, "speculation: {algorithm: DraftModel, draft: {source: {hostPath: {path: /d}}}}"), ""},
		{"draft model without one", spec(builtin, "speculation: {algorithm: DraftModel}"), "set draft.source.hostPath to its folder"},
		{"draft model that is a head", spec(builtin, "speculation: {algorithm: DraftModel, draft: {source: {builtin: {name: gocode-7m-eagle3}}}}"), "set draft.source.hostPath to its folder"},
		{"draft tokens fit", spec(builtin, "speculation: {numSteps: 5, topK: 1, numDraftTokens: 6}"), ""},
		{"draft tokens do not fit", spec(builtin, "speculation: {numSteps: 5, numDraftTokens: 5}"), "with topK 1, numDraftTokens must be numSteps + 1"},
		{"draft tokens against the default", spec(builtin, "speculation: {numDraftTokens: 6}"), "leave numDraftTokens out, which means that"},
		{"trees", spec(builtin, "speculation: {topK: 4, numDraftTokens: 8}"), ""},
		{"trees of a draft model", spec(folder, "speculation: {algorithm: DraftModel, topK: 2, draft: {source: {hostPath: {path: /d}}}}"), ""},
		{"more tokens than nodes", spec(builtin, "speculation: {numSteps: 2, topK: 2, numDraftTokens: 8}"), "write at most 1 + topK + (numSteps - 1) * topK * topK"},
		{"as many tokens as nodes", spec(builtin, "speculation: {numSteps: 2, topK: 2, numDraftTokens: 7}"), ""},
		{"a tree too wide", spec(builtin, "speculation: {numSteps: 6, topK: 13}"), "write a smaller topK or numSteps"},
		{"too many tokens", spec(builtin, "speculation: {numSteps: 6, topK: 8, numDraftTokens: 65}"), "less than or equal to 64"},
		{"no steps", spec(builtin, "speculation: {numSteps: 0}"), "greater than or equal to 1"},
		{"too many steps", spec(builtin, "speculation: {numSteps: 17}"), "less than or equal to 16"},
		{"tensor 0", spec(builtin, "parallelism: {tensor: 0}"), "greater than or equal to 1"},
		{"tensor 65", spec(builtin, "parallelism: {tensor: 65}"), "less than or equal to 64"},
		{"negative replicas", spec(builtin, "replicas: -1"), "greater than or equal to 0"},
		{"context too short", spec("model: {source: {builtin: {name: gocode-7m}}, maxContextLength: 1}"), "greater than or equal to 16"},
		{"served name", spec("model: {source: {builtin: {name: gocode-7m}}, servedName: 'a b'}"), "spec.model.servedName"},
		{"channels", spec(builtin, "nccl: {minChannels: 2, maxChannels: 8}"), ""},
		{"channels crossed", spec(builtin, "nccl: {minChannels: 9, maxChannels: 8}"), "write minChannels at most maxChannels"},
		{"nccl protocol", spec(builtin, "nccl: {protocol: Fast}"), `supported values: "LL", "LL128", "Simple"`},
		{"env", spec(builtin, "extraEnv: [{name: NCCL_BUFFSIZE, value: '1'}, {name: OUTRIDER_SIMULATE_LOAD_RATE, value: '1'}, {name: EMPTY}]"), ""},
		{"env has a field, nccl", spec(builtin, "extraEnv: [{name: NCCL_PROTO, value: LL}]"), "NCCL_PROTO has a field of its own: set it under spec.nccl"},
		{"env has a field, model", spec(builtin, "extraEnv: [{name: OUTRIDER_MODEL, value: x}]"), "OUTRIDER_MODEL has a field of its own: set it under spec.model"},
		{"env has a field, tensor", spec(builtin, "extraEnv: [{name: OUTRIDER_TP_SIZE, value: '2'}]"), "set spec.parallelism.tensor"},
		{"env has a field, speculation", spec(builtin, "extraEnv: [{name: OUTRIDER_SPECULATIVE_NUM_STEPS, value: '2'}]"), "set it under spec.speculation"},
		{"env is the operator's", spec(builtin, "extraEnv: [{name: OUTRIDER_ADMIN_PORT, value: '2'}]"), "is set by the operator, whose probes and Service rely on it: leave it out"},
		{"env name", spec(builtin, "extraEnv: [{name: A-B}]"), "spec.extraEnv[0].name"},
		{"env twice", spec(builtin, "extraEnv: [{name: A}, {name: A}]"), "Duplicate value"},
		{"surge alone", spec(builtin, "rollout: {maxSurge: 1}"), ""},
		{"none missing, no surge", spec(builtin, "rollout: {maxUnavailable: 0}"), "write maxSurge: 1, or leave maxUnavailable out"},
		{"none missing, surge", spec(builtin, "rollout: {maxUnavailable: 0, maxSurge: 2}"), ""},
		{"short load budget", spec(builtin, "rollout: {loadBudgetSeconds: 59}"), "greater than or equal to 60"},
		{"health", spec(builtin, "health: {deepProbe: {intervalSeconds: 5, timeoutSeconds: 1}, stallTimeoutSeconds: 5, crashBudget: 0}"), ""},
		{"image with a space", spec(builtin, "image: 'a b'"), "spec.image"},
		{"pull policy", spec(builtin, "imagePullPolicy: Sometimes"), `supported values: "Always", "IfNotPresent", "Never"`},
		{"quantity", spec(builtin, "resources: {limits: {memory: lots}}"), "spec.resources.limits"},
		{"unknown field", spec(builtin, "replica: 2"), `unknown field "spec.replica"`},
		{"name too long", strings.Replace(spec(builtin), "name: s", "name: "+strings.Repeat("s", 53), 1), "write at most 52 of a-z"},
		{"name with a dot", strings.Replace(spec(builtin), "name: s", "name: a.b", 1), "a letter first"},
		{"name with a digit first", strings.Replace(spec(builtin), "name: s", "name: 1a", 1), "a letter first"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			text := "apiVersion: inference.outrider.dev/v1alpha1\nkind: SpeculativeServer\n" + tt.yaml
			if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
				t.Fatal(err)
			}
			err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want == "":
			case err == nil:
				t.Errorf("accepted; want a refusal with %q", tt.want)
			case !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err):
				t.Errorf("%v: not a refusal", err)
			case !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tt.want)):
				t.Errorf("refusal %v\nlacks %q", err, tt.want)
			}
		})
	}
}

// TestSamples has the API server take each sample.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/[^k]*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(b, &u.Object); err != nil {
			t.Fatal(err)
		}
		if err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestDefaults has what the API server fills in.
func TestDefaults(t *testing.T) {
	p := begin(t)
	p.create(manifest)
	got, err := yaml.Marshal(p.server().Spec)
	if err != nil {
		t.Fatal(err)
	}
	const want = `imagePullPolicy: IfNotPresent
model:
  source:
    builtin:
      name: gocode-7m
parallelism:
  tensor: 1
replicas: 1
speculation:
  algorithm: EAGLE3
  numSteps: 3
  topK: 1
`
	if string(got) != want {
		t.Errorf("the spec became\n%s\nwant\n%s", got, want)
	}
}
