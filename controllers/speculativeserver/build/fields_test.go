package build

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// What a change of a field does.
const (
	restart = "restart" // the pods are replaced, as spec.rollout says
	live    = "live"    // no pod is touched
	// The API server refuses another value.
	immutable = "immutable"
)

// fields says of every field of the spec what a change of it does. A field that
// is not here, or that does something else, fails the test: whether users' pods
// restart is a decision.
var fields = map[string]string{
	"replicas":                 live,
	"model.source.builtin":     restart,
	"model.source.pvc":         restart,
	"model.source.image":       restart,
	"model.source.hostPath":    restart,
	"model.source.huggingFace": restart,
	"model.source.s3":          restart,
	"model.servedName":         restart,
	"model.maxContextLength":   restart,
	"model.dtype":              restart,
	"model.quantization":       restart,

	"modelCache.claimName":                 restart,
	"modelCache.template.size":             live,
	"modelCache.template.storageClassName": immutable,
	"modelCache.template.accessMode":       immutable,
	"modelCache.template.whenDeleted":      live,
	"parallelism.tensor":                   restart,
	"parallelism.nodes":                    restart,
	"parallelism.nodeSecretRef":            restart,
	"speculation.algorithm":                restart,
	"speculation.draft":                    restart,
	"speculation.numSteps":                 restart,
	"speculation.topK":                     restart,
	"speculation.numDraftTokens":           restart,
	"speculation.nGram":                    restart,

	"speculation.adaptation.mode":                      live,
	"speculation.adaptation.minSteps":                  live,
	"speculation.adaptation.maxSteps":                  live,
	"speculation.adaptation.objective":                 live,
	"speculation.adaptation.maxInterTokenMilliseconds": live,
	"speculation.onDraftFailure":                       live,
	"nccl.algorithm":                                   restart,
	"nccl.protocol":                                    restart,
	"nccl.p2pLevel":                                    restart,
	"nccl.minChannels":                                 restart,
	"nccl.maxChannels":                                 restart,
	"nccl.netDevices":                                  restart,
	"nccl.socketInterface":                             restart,
	"nccl.debug":                                       restart,
	"nccl.extra":                                       restart,
	"kvCache.dtype":                                    restart,
	"kvCache.memoryFraction":                           restart,
	"kvCache.pageSize":                                 restart,
	"kvCache.maxTokens":                                restart,
	"device":                                           restart,
	"resources.requests":                               restart,
	"resources.limits":                                 restart,
	"rollout.maxUnavailable":                           live,
	"rollout.maxSurge":                                 live,
	"rollout.waitForIdleSeconds":                       live,
	"rollout.drainSeconds":                             restart,
	"rollout.loadBudgetSeconds":                        live,
	"health.deepProbe.intervalSeconds":                 live,
	"health.deepProbe.timeoutSeconds":                  live,
	"health.stallTimeoutSeconds":                       restart,
	"health.crashBudget":                               live,
	"image":                                            restart,
	"imagePullPolicy":                                  restart,
	"imagePullSecrets":                                 restart,
	"scheduling.nodeSelector":                          restart,
	"scheduling.nodeAffinity":                          restart,
	"scheduling.tolerations":                           restart,
	"scheduling.topologySpread":                        restart,
	"scheduling.priorityClassName":                     restart,
	"scheduling.runtimeClassName":                      restart,
	"scheduling.schedulerName":                         restart,
	"podMetadata.labels":                               restart,
	"podMetadata.annotations":                          restart,
	"service.type":                                     live,
	"service.port":                                     live,
	"service.annotations":                              live,
	"service.headless":                                 live,
	"security.apiKeySecretRef":                         restart,
	"security.tlsSecretName":                           restart,
	"security.runAsUser":                               restart,
	"security.runAsGroup":                              restart,
	"security.fsGroup":                                 restart,
	"security.serviceAccountName":                      restart,
	"networkPolicy.clients":                            live,
	"networkPolicy.scrapers":                           live,
	"monitoring.intervalSeconds":                       live,
	"monitoring.labels":                                live,
	"routing.inferencePool":                            restart, // the engines name their metrics as the endpoint picker does
	"routing.httpRoute":                                live,
	"disruption.maxUnavailable":                        live,
	"autoscaling.minReplicas":                          live,
	"autoscaling.maxReplicas":                          live,
	"autoscaling.metrics":                              live,
	"autoscaling.scaleDownDelaySeconds":                live,
	"extraEnv":                                         restart,
	"extraArgs":                                        restart,
	"extraVolumes":                                     restart,
}

// deeper are the structs whose fields have rows of their own.
var deeper = []string{"Model", "Source", "Parallelism", "Speculation", "NCCL", "KVCache", "Resources", "Rollout", "Health", "DeepProbe",
	"Scheduling", "PodMetadata", "Service", "Security", "NetworkPolicy", "Monitoring", "Disruption", "Adaptation", "ModelCache", "Template", "Routing", "Autoscaling"}

// TestFields changes every field of a full spec, one at a time: by taking it
// away, or setting what is not set.
func TestFields(t *testing.T) {
	want, err := Revision(everything(), options)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var walk func(path string, at func(*v1alpha1.SpeculativeServer) reflect.Value)
	walk = func(path string, at func(*v1alpha1.SpeculativeServer) reflect.Value) {
		kind := at(everything()).Type()
		for i := range kind.NumField() {
			f := kind.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			field := strings.TrimPrefix(path+"."+name, ".")
			get := func(s *v1alpha1.SpeculativeServer) reflect.Value {
				v := at(s).Field(i)
				if v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct && slices.Contains(deeper, f.Name) {
					v = v.Elem()
				}
				return v
			}
			if v := get(everything()); v.Kind() == reflect.Struct && slices.Contains(deeper, f.Name) {
				walk(field, get)
				continue
			}
			seen[field] = true
			s := everything()
			v := get(s)
			was := !v.IsZero()
			want := want
			if field == "parallelism.nodeSecretRef" { // of several nodes
				several := everything()
				several.Spec.Parallelism.Nodes, s.Spec.Parallelism.Nodes = ptr(int32(2)), ptr(int32(2))
				if want, err = Revision(several, options); err != nil {
					t.Fatal(err)
				}
			}
			switch {
			case field == "speculation.algorithm":
				v.Set(reflect.ValueOf(v1alpha1.AlgorithmNone)) // absent is the default
			case path == "model.source" && !was:
				at(s).SetZero() // exactly one may be set
				v.Set(filled(v.Type()))
			case was:
				v.SetZero()
			default:
				v.Set(filled(v.Type()))
			}
			got, err := Revision(s, options)
			if err != nil {
				t.Fatal(err)
			}
			does := live
			if got != want {
				does = restart
			}
			if fields[field] == immutable {
				does = strings.Replace(does, live, immutable, 1) // TestImmutable of the API server's tests does the rest
			}
			if fields[field] != does {
				t.Errorf("a change of spec.%s: %s, the table says %q", field, does, fields[field])
			}
		}
	}
	walk("", func(s *v1alpha1.SpeculativeServer) reflect.Value { return reflect.ValueOf(&s.Spec).Elem() })
	for field := range fields {
		if !seen[field] {
			t.Errorf("the table has spec.%s, the spec does not", field)
		}
	}
}

// filled is a value of a type that is not zero.
func filled(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(filled(t.Elem()))
	case reflect.Struct:
		for i := range t.NumField() {
			if v.Field(i).CanSet() {
				v.Field(i).Set(filled(t.Field(i).Type))
			}
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Slice:
		v.Set(reflect.Append(v, filled(t.Elem())))
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(filled(t.Key()), filled(t.Elem()))
	}
	return v
}

// TestImage: servers with GPUs have the image with CUDA, unless they name one.
func TestImage(t *testing.T) {
	const cpu, cuda = "example.test/engine:1", "example.test/engine-cuda:1"
	gpus := func(name corev1.ResourceName) *v1alpha1.Resources {
		return &v1alpha1.Resources{Limits: corev1.ResourceList{name: resource.MustParse("1")}}
	}
	for _, tt := range []struct {
		name    string
		spec    v1alpha1.SpeculativeServerSpec
		options Options
		want    string
	}{
		{"no GPU", v1alpha1.SpeculativeServerSpec{}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, cpu},
		{"memory alone", v1alpha1.SpeculativeServerSpec{Resources: gpus(corev1.ResourceMemory)}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, cpu},
		{"a GPU", v1alpha1.SpeculativeServerSpec{Resources: gpus("nvidia.com/gpu")}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, cuda},
		{"a slice of one", v1alpha1.SpeculativeServerSpec{Resources: gpus("nvidia.com/mig-3g.40gb")}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, cuda},
		{"under another name", v1alpha1.SpeculativeServerSpec{Device: v1alpha1.DeviceCUDA, Resources: gpus("example.test/gpu")}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, cuda},
		{"of another vendor", v1alpha1.SpeculativeServerSpec{Resources: gpus("example.test/gpu")}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, cpu},
		{"on CPU all the same", v1alpha1.SpeculativeServerSpec{Device: v1alpha1.DeviceCPU, Resources: gpus("nvidia.com/gpu")}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, cpu},
		{"an image of its own", v1alpha1.SpeculativeServerSpec{Image: "mine:1", Resources: gpus("nvidia.com/gpu")}, Options{EngineImage: cpu, CUDAEngineImage: cuda}, "mine:1"},
		{"one image for all", v1alpha1.SpeculativeServerSpec{Resources: gpus("nvidia.com/gpu")}, Options{EngineImage: cpu}, cpu},
	} {
		tt.spec.Model = builtin()
		pod, err := Pod(server("s", tt.spec), 0, tt.options)
		if err != nil {
			t.Fatal(err)
		}
		if got := *pod.Spec.Containers[0].Image; got != tt.want {
			t.Errorf("%s: image %s, want %s", tt.name, got, tt.want)
		}
	}
	// What downloads needs no GPU, and so not the large image.
	s := cached()
	s.Spec.Resources = gpus("nvidia.com/gpu")
	job := Fetch(s, Options{EngineImage: cpu, CUDAEngineImage: cuda})
	if got := *job.Spec.Template.Spec.Containers[0].Image; got != cpu {
		t.Errorf("the Job's image is %s, want %s", got, cpu)
	}
}

// TestRevision: what is not a field of the spec, and what spells a default out.
func TestRevision(t *testing.T) {
	base := func() *v1alpha1.SpeculativeServer {
		return server("s", v1alpha1.SpeculativeServerSpec{Model: builtin(), Speculation: eagle3(3)})
	}
	want, err := Revision(base(), options)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		change  func(*v1alpha1.SpeculativeServer)
		options Options
		restart bool
	}{
		{"nothing", func(*v1alpha1.SpeculativeServer) {}, options, false},
		{"labels of the server", func(s *v1alpha1.SpeculativeServer) { s.Labels = map[string]string{"a": "b"} }, options, false},
		{"the default spelled out", func(s *v1alpha1.SpeculativeServer) { s.Spec.Parallelism.Tensor = ptr(int32(1)) }, options, false},
		{"the drain spelled out", func(s *v1alpha1.SpeculativeServer) {
			s.Spec.Rollout = &v1alpha1.RolloutSpec{DrainSeconds: ptr(int32(30))}
		}, options, false},
		{"the device spelled out", func(s *v1alpha1.SpeculativeServer) { s.Spec.Device = v1alpha1.DeviceAuto }, options, false},
		{"empty structs", func(s *v1alpha1.SpeculativeServer) {
			s.Spec.NCCL, s.Spec.Scheduling, s.Spec.Security, s.Spec.PodMetadata = &v1alpha1.NCCLSpec{}, &v1alpha1.SchedulingSpec{}, &v1alpha1.SecuritySpec{}, &v1alpha1.PodMetadata{}
		}, options, false},
		{"the image spelled out", func(s *v1alpha1.SpeculativeServer) { s.Spec.Image = options.EngineImage }, options, false},
		{"operator's image", func(*v1alpha1.SpeculativeServer) {}, Options{EngineImage: "example.test/engine:2"}, true},
		{"operator's image, pinned", func(s *v1alpha1.SpeculativeServer) { s.Spec.Image = options.EngineImage }, Options{EngineImage: "other"}, false},
		{"operator's namespace", func(*v1alpha1.SpeculativeServer) {}, Options{EngineImage: options.EngineImage, OperatorNamespace: "x"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := base()
			tt.change(s)
			got, err := Revision(s, tt.options)
			if err != nil {
				t.Fatal(err)
			}
			if (got != want) != tt.restart {
				t.Errorf("revision %s, before %s: restart %v, want %v", got, want, got != want, tt.restart)
			}
		})
	}
}

// TestSettingsHaveFields: of each flag and variable that the engine is given, what
// fails names the field, except of those that no field sets.
func TestSettingsHaveFields(t *testing.T) {
	own := []string{"--host", "--port", "--admin-host", "--admin-port", "--admin-token-file", "--draft-optional", "--termination-log"}
	settings := map[string]bool{}
	pattern := regexp.MustCompile(`\b(?:set|number|format)\("([A-Za-z][A-Za-z0-9_-]*)"|"(--[a-z][a-z0-9-]*)`)
	for _, file := range []string{"engine.go", "sources.go", "fetch.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pattern.FindAllStringSubmatch(string(source), -1) {
			switch name := m[1]; {
			case name == "":
				settings[m[2]] = true
			case name == strings.ToUpper(name):
				settings[name] = true
			default:
				settings["--"+name] = true
			}
		}
	}
	s := everything()
	for _, a := range args(s)[1:] {
		if flag, _, _ := strings.Cut(a, "="); !settings[flag] && !slices.Contains(s.Spec.ExtraArgs, a) && !strings.Contains(a, "$$") {
			t.Errorf("the pattern has not found %s in the source", flag)
		}
	}
	for name := range settings {
		if (failure.Fields[name] != "") == slices.Contains(own, name) {
			t.Errorf("%s: the field %q, and of no field: %t", name, failure.Fields[name], slices.Contains(own, name))
		}
	}
	for name, field := range failure.Fields {
		if again := strings.HasPrefix(name, "--nccl-") && strings.HasPrefix(field, "nccl."); !settings[name] && !again {
			t.Errorf("no field sets %s", name)
		}
		if !hasField(reflect.TypeFor[v1alpha1.SpeculativeServerSpec](), field) {
			t.Errorf("%s: the spec has no field %s", name, field)
		}
	}
}

// hasField follows a path of JSON names.
func hasField(in reflect.Type, path string) bool {
	name, rest, more := strings.Cut(path, ".")
	for in.Kind() == reflect.Pointer {
		in = in.Elem()
	}
	if in.Kind() != reflect.Struct {
		return false
	}
	for f := range in.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" && f.Anonymous && hasField(f.Type, path) {
			return true
		}
		if tag == name {
			return !more || hasField(f.Type, rest)
		}
	}
	return false
}
