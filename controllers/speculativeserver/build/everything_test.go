package build

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// everything is a server with every field set that goes into an object.
func everything() *v1alpha1.SpeculativeServer {
	claim := func(path string) *v1alpha1.ClaimSource { return &v1alpha1.ClaimSource{ClaimName: "models", Path: path} }
	key := func(name string) *v1alpha1.SecretKeyRef { return &v1alpha1.SecretKeyRef{Name: name, Key: "k"} }
	return server("all", v1alpha1.SpeculativeServerSpec{
		Model: v1alpha1.ModelSpec{
			Source:     v1alpha1.ModelSource{PVC: claim("llama/8b")},
			ServedName: "llama", MaxContextLength: ptr(int32(4096)), DType: "BFloat16", Quantization: "FP8"},
		Parallelism: v1alpha1.ParallelismSpec{Tensor: ptr(int32(2))},
		Speculation: v1alpha1.SpeculationSpec{Adaptation: &v1alpha1.AdaptationSpec{Mode: v1alpha1.AdaptationAuto},
			Algorithm: v1alpha1.AlgorithmEAGLE3, NumSteps: ptr(int32(2)), TopK: ptr(int32(1)),
			Draft: &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{HuggingFace: &v1alpha1.HubSource{
				Repo: "org/head", Revision: "v1", Endpoint: "https://hub.test", TokenSecretRef: key("hub")}}}},
		ModelCache: &v1alpha1.ModelCacheSpec{Template: &v1alpha1.CacheTemplate{Size: resource.MustParse("100Gi"), StorageClassName: "fast",
			AccessMode: corev1.ReadWriteMany, WhenDeleted: "Retain"}},
		NCCL: &v1alpha1.NCCLSpec{NetDevices: []string{"mlx5_0", "mlx5_1"}, SocketInterface: "eth0",
			Extra: []v1alpha1.NCCLVar{{Name: "NCCL_BUFFSIZE", Value: "8388608"}}},
		KVCache: &v1alpha1.KVCacheSpec{DType: "FP8", MemoryFraction: "0.9", PageSize: ptr(int32(32)), MaxTokens: ptr(int32(100000))},
		Device:  v1alpha1.DeviceCUDA,
		Resources: &v1alpha1.Resources{Limits: map[corev1.ResourceName]resource.Quantity{
			"nvidia.com/gpu": resource.MustParse("2"), "memory": resource.MustParse("32Gi")}},
		Rollout: &v1alpha1.RolloutSpec{DrainSeconds: ptr(int32(120)), MaxSurge: ptr(int32(1)), MaxUnavailable: ptr(int32(1)),
			WaitForIdleSeconds: ptr(int32(60)), LoadBudgetSeconds: ptr(int32(900))},
		Health: &v1alpha1.HealthSpec{StallTimeoutSeconds: ptr(int32(90)), CrashBudget: ptr(int32(3)),
			DeepProbe: &v1alpha1.DeepProbeSpec{IntervalSeconds: ptr(int32(30)), TimeoutSeconds: ptr(int32(10))}},
		Image: "registry.test/engine:2", ImagePullPolicy: corev1.PullNever, ImagePullSecrets: []string{"pull"},
		Scheduling: &v1alpha1.SchedulingSpec{
			NodeSelector: map[string]v1alpha1.LabelValue{"pool": "gpu"},
			NodeAffinity: []v1alpha1.NodeRule{
				{Key: "gpu", Operator: corev1.NodeSelectorOpIn, Values: []string{"h200"}},
				{Key: "fast", Operator: corev1.NodeSelectorOpExists},
				{Key: "zone", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"c"}, Weight: ptr(int32(5))}},
			Tolerations: []v1alpha1.Toleration{
				{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
				{Key: "spot", Operator: corev1.TolerationOpEqual, Value: "yes", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr(int64(60))}},
			TopologySpread: []v1alpha1.TopologySpread{{TopologyKey: corev1.LabelHostname},
				{TopologyKey: corev1.LabelTopologyZone, MaxSkew: ptr(int32(2)), WhenUnsatisfiable: corev1.DoNotSchedule}},
			PriorityClassName: "serving", RuntimeClassName: "nvidia", SchedulerName: "other"},
		PodMetadata: &v1alpha1.PodMetadata{Labels: map[string]v1alpha1.LabelValue{"team": "a"}, Annotations: map[string]v1alpha1.AnnotationValue{"note": "b"}},
		Service: &v1alpha1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Port: ptr(int32(80)),
			Annotations: map[string]v1alpha1.AnnotationValue{"lb": "internal"}, Headless: v1alpha1.Enabled},
		Security: &v1alpha1.SecuritySpec{APIKeySecretRef: key("keys"), TLSSecretName: "cert", RunAsUser: ptr(int64(1000)), RunAsGroup: ptr(int64(1001)),
			FSGroup: ptr(int64(1002)), ServiceAccountName: "runner"},
		NetworkPolicy: &v1alpha1.NetworkPolicySpec{
			Clients:  []v1alpha1.Peer{{NamespaceLabels: map[string]v1alpha1.LabelValue{"team": "a"}}},
			Scrapers: []v1alpha1.Peer{{NamespaceLabels: map[string]v1alpha1.LabelValue{"kubernetes.io/metadata.name": "monitoring"}, PodLabels: map[string]v1alpha1.LabelValue{"app": "prometheus"}}}},
		Monitoring: &v1alpha1.MonitoringSpec{IntervalSeconds: ptr(int32(5)), Labels: map[string]v1alpha1.LabelValue{"release": "prom"}},
		Routing: &v1alpha1.RoutingSpec{
			InferencePool: &v1alpha1.InferencePoolSpec{EndpointPicker: v1alpha1.EndpointPicker{Name: "picker", Port: ptr(int32(9003)), FailureMode: "FailOpen"}},
			HTTPRoute: &v1alpha1.HTTPRouteSpec{Hostnames: []string{"llm.example.test"},
				Gateways: []v1alpha1.GatewayRef{{Name: "edge", Namespace: "gateways", SectionName: "https"}}}},
		Autoscaling: &v1alpha1.AutoscalingSpec{MinReplicas: ptr(int32(2)), MaxReplicas: 6, ScaleDownDelaySeconds: ptr(int32(600)),
			Metrics: []v1alpha1.AutoscalingMetric{
				{Name: "outrider_requests_running", AverageValue: resource.MustParse("24")},
				{Name: "queue", Source: "External", AverageValue: resource.MustParse("500m")},
				{Name: "sessions", Source: "External", AverageValue: resource.MustParse("8"), MatchLabels: map[string]v1alpha1.LabelValue{"model": "llama"}}}},
		Disruption: &v1alpha1.DisruptionSpec{MaxUnavailable: ptr(int32(2))},
		ExtraEnv:   []v1alpha1.EnvVar{{Name: "PLAIN", Value: "$(HOME)"}, {Name: "SECRET", SecretKeyRef: key("s")}},
		ExtraArgs:  []string{"--max-running-requests=64", "--log-level=$(LEVEL)"},
		ExtraVolumes: []v1alpha1.Volume{
			{Name: "scratch", MountPath: "/scratch", EmptyDir: &v1alpha1.EmptyDir{SizeLimit: ptr(resource.MustParse("2Gi"))}},
			{Name: "config", MountPath: "/config", ConfigMap: "c"},
			{Name: "secret", MountPath: "/secret", Secret: "s"},
			{Name: "claim", MountPath: "/claim", PVC: claim("x"), Access: "ReadOnly"},
			{Name: "host", MountPath: "/host", HostPath: &v1alpha1.HostPath{Path: "/var/x"}}},
	})
}

func TestEverythingGolden(t *testing.T) {
	s := everything()
	pod, err := Pod(s, 3, options)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{EngineImage: "e:1", OperatorNamespace: "outrider-system"}
	for name, object := range map[string]any{
		"all-pod": pod, "all-service": Service(s), "all-headless": Headless(s), "all-budget": Budget(s),
		"all-network": Network(s, o), "all-autoscaler": Autoscaler(s), "all-fetch-network": FetchNetwork(s, o), "all-monitor": Monitor(s).Object, "all-pool": Pool(s).Object, "all-route": Route(s).Object, "all-fetch": Fetch(s, o), "all-claim": CacheClaim(s),
	} {
		t.Run(name, func(t *testing.T) { golden(t, name+".yaml", object) })
	}
}

// TestNothingAround: what is not asked for is not made.
func TestNothingAround(t *testing.T) {
	s := server("s", v1alpha1.SpeculativeServerSpec{Model: builtin()})
	if Headless(s) != nil || Budget(s) != nil || Autoscaler(s) != nil || Network(s, options) != nil || FetchNetwork(s, options) != nil || Monitor(s) != nil || Pool(s) != nil || Route(s) != nil || CacheClaim(s) != nil {
		t.Error("an object that the spec does not ask for")
	}
	s.Spec.NetworkPolicy, s.Spec.Disruption, s.Spec.Monitoring = &v1alpha1.NetworkPolicySpec{}, &v1alpha1.DisruptionSpec{}, &v1alpha1.MonitoringSpec{}
	if FetchNetwork(s, options) != nil {
		t.Error("a policy for a download that there is not")
	}
	network := Network(s, options)
	if rules := network.Spec.Ingress; len(rules) != 3 || rules[0].From != nil || len(rules[1].From) != 1 || rules[1].From[0].NamespaceSelector != nil {
		t.Errorf("an empty policy lets everyone use the API, and the operator and the own pods the rest: %+v", rules)
	}
	s.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	a := Autoscaler(s).Spec
	if *a.MinReplicas != 1 || *a.MaxReplicas != 3 || len(a.Metrics) != 2 || *a.Metrics[1].Pods.Metric.Name != "outrider_requests_waiting" ||
		a.Metrics[1].Pods.Target.AverageValue.Value() != 1 || *a.Behavior.ScaleDown.StabilizationWindowSeconds != 900 {
		t.Errorf("the defaults of autoscaling: %+v", a)
	}
	running := func(device v1alpha1.Device, limits corev1.ResourceList) int64 {
		s := s.DeepCopy()
		s.Spec.Device, s.Spec.Resources = device, &v1alpha1.Resources{Limits: limits}
		return Autoscaler(s).Spec.Metrics[0].Pods.Target.AverageValue.Value()
	}
	gpu := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	for _, tt := range []struct {
		name      string
		got, want int64
	}{
		{"a CPU", running("", corev1.ResourceList{"memory": resource.MustParse("1Gi")}), 16},
		{"a GPU", running("", gpu), 64},
		{"a GPU that is not to be used", running(v1alpha1.DeviceCPU, gpu), 16},
	} {
		if tt.got != tt.want {
			t.Errorf("on %s the default is %d running requests, want %d", tt.name, tt.got, tt.want)
		}
	}
	if Budget(s).Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%+v", Budget(s).Spec)
	}
}

func TestClaims(t *testing.T) {
	s := everything()
	if got := Claims(s); !slices.Equal(got, []string{"all-models", "models", "all-models", "models"}) {
		t.Errorf("claims %v: that of the cache comes first", got)
	}
	s.Spec.ModelCache = &v1alpha1.ModelCacheSpec{ClaimName: "shared"}
	if got := Claims(s); got[0] != "shared" {
		t.Errorf("claims %v", got)
	}
	s.Spec.Speculation = v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmNone,
		Draft: &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{PVC: &v1alpha1.ClaimSource{ClaimName: "unused"}}}}
	if got := Claims(s); len(got) != 2 {
		t.Errorf("claims %v: a draft that is not loaded is not mounted", got)
	}
}
