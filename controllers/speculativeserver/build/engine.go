package build

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// algorithms are the engine's names. An object that was stored without one, by
// a client that the API server's defaults did not reach, has EAGLE3.
var algorithms = map[v1alpha1.SpeculationAlgorithm]string{
	"":                           "eagle3",
	v1alpha1.AlgorithmEAGLE3:     "eagle3",
	v1alpha1.AlgorithmNGram:      "ngram",
	v1alpha1.AlgorithmDraftModel: "draft",
	v1alpha1.AlgorithmNone:       "none",
}

// formats are the engine's names of number formats and quantizations; Auto has
// none, and needs no flag.
var formats = map[string]string{
	"BFloat16": "bfloat16", "Float32": "float32",
	"None": "none", "CompressedTensors": "compressed-tensors", "FP8": "fp8",
}

// args are the engine's flags, as its contract names them.
func args(s *v1alpha1.SpeculativeServer) []string {
	a := []string{"serve"}
	set := func(flag, value string) { a = append(a, "--"+flag+"="+value) }
	number := func(flag string, v *int32) {
		if v != nil {
			set(flag, strconv.Itoa(int(*v)))
		}
	}
	remote := downloadsOf(s)
	if Fetches(s) {
		remote = downloads{} // the files are in the claim
	}
	model := targetDir
	if b := s.Spec.Model.Source.Builtin; b != nil {
		model = "builtin:" + b.Name
	} else if ref := remote.model(); ref != "" {
		model = escape(ref)
	}
	set("model", model)
	set("served-model-name", ServedName(s))
	number("context-length", s.Spec.Model.MaxContextLength)
	format := func(flag, value string) {
		if word := formats[value]; word != "" {
			set(flag, word)
		}
	}
	format("dtype", s.Spec.Model.DType)
	format("quantization", s.Spec.Model.Quantization)
	set("tp-size", strconv.Itoa(int(Tensor(s))))
	if d := s.Spec.Device; d != "" && d != v1alpha1.DeviceAuto {
		set("device", strings.ToLower(string(d)))
	}
	if kv := s.Spec.KVCache; kv != nil {
		number("page-size", kv.PageSize)
		number("max-total-tokens", kv.MaxTokens)
		if kv.MemoryFraction != "" {
			set("mem-fraction-static", kv.MemoryFraction)
		}
		format("kv-cache-dtype", kv.DType)
	}

	sp := s.Spec.Speculation
	set("speculative-algorithm", algorithms[sp.Algorithm])
	if sp.Algorithm != v1alpha1.AlgorithmNone {
		if d := sp.Draft; d != nil && d.Source.Builtin != nil {
			set("draft-model", "builtin:"+d.Source.Builtin.Name)
		} else if ref := remote.draft(); ref != "" {
			set("draft-model", escape(ref))
		} else if d != nil {
			set("draft-model", draftDir)
		}
		number("speculative-num-steps", sp.NumSteps)
		number("speculative-eagle-topk", sp.TopK)
		number("speculative-num-draft-tokens", sp.NumDraftTokens)
	}
	if g := sp.NGram; g != nil {
		number("speculative-ngram-min-match-window-size", g.MinMatchWindow)
		number("speculative-ngram-max-match-window-size", g.MaxMatchWindow)
	}
	if remote.any() {
		a = append(a, remote.args()...)
	}
	set("host", "0.0.0.0")
	set("port", strconv.Itoa(HTTPPort))
	set("admin-port", strconv.Itoa(AdminPort))
	set("admin-token-file", adminDir+"/"+AdminTokenKey)
	if Nodes(s) > 1 {
		set("dist-secret-file", nodesDir+"/"+NodeSecretKey)
	}
	set("drain-timeout", seconds(Drain(s)))
	if h := s.Spec.Health; h != nil && h.StallTimeoutSeconds != nil {
		set("stall-timeout", seconds(*h.StallTimeoutSeconds))
	}
	set("termination-log", corev1.TerminationMessagePathDefault)
	a = append(a, access(s)...)
	for _, extra := range s.Spec.ExtraArgs {
		a = append(a, escape(extra))
	}
	return a
}

// access are the flags of who may use the API port, and how.
func access(s *v1alpha1.SpeculativeServer) []string {
	var a []string
	if sec := s.Spec.Security; sec != nil && sec.APIKeySecretRef != nil {
		a = append(a, "--api-key-file="+apiKeyDir+"/"+apiKeyFile)
	}
	if pooled(s) {
		a = append(a, "--metrics-compat=vllm")
	}
	if TLS(s) {
		a = append(a, "--tls-cert-file="+tlsDir+"/"+corev1.TLSCertKey,
			"--tls-key-file="+tlsDir+"/"+corev1.TLSPrivateKeyKey)
	}
	return a
}

// env is the typed NCCL settings and then the user's variables.
func env(s *v1alpha1.SpeculativeServer) []*corev1ac.EnvVarApplyConfiguration {
	var vars []*corev1ac.EnvVarApplyConfiguration
	set := func(name, value string) {
		if value != "" {
			vars = append(vars, corev1ac.EnvVar().WithName(name).WithValue(value))
		}
	}
	number := func(name string, v *int32) {
		if v != nil {
			set(name, strconv.Itoa(int(*v)))
		}
	}
	if n := s.Spec.NCCL; n != nil {
		set("NCCL_ALGO", n.Algorithm)
		set("NCCL_PROTO", n.Protocol)
		set("NCCL_P2P_LEVEL", n.P2PLevel)
		number("NCCL_MIN_NCHANNELS", n.MinChannels)
		number("NCCL_MAX_NCHANNELS", n.MaxChannels)
		set("NCCL_IB_HCA", strings.Join(n.NetDevices, ","))
		set("NCCL_SOCKET_IFNAME", n.SocketInterface)
		set("NCCL_DEBUG", n.Debug)
		for _, v := range n.Extra {
			vars = append(vars, corev1ac.EnvVar().WithName(v.Name).WithValue(escape(v.Value)))
		}
	}
	if !Fetches(s) {
		vars = append(vars, downloadsOf(s).env()...)
	}
	return append(vars, extraEnv(s)...)
}

func extraEnv(s *v1alpha1.SpeculativeServer) []*corev1ac.EnvVarApplyConfiguration {
	var vars []*corev1ac.EnvVarApplyConfiguration
	for _, e := range s.Spec.ExtraEnv {
		v := corev1ac.EnvVar().WithName(e.Name)
		if ref := e.SecretKeyRef; ref != nil {
			v.WithValueFrom(corev1ac.EnvVarSource().WithSecretKeyRef(corev1ac.SecretKeySelector().WithName(ref.Name).WithKey(ref.Key)))
		} else {
			v.WithValue(escape(e.Value))
		}
		vars = append(vars, v)
	}
	return vars
}

// escape doubles each "$": Kubernetes would otherwise expand $(NAME) in values.
func escape(v string) string {
	var b []byte
	for i := 0; i < len(v); i++ {
		if v[i] == '$' {
			b = append(b, '$')
		}
		b = append(b, v[i])
	}
	return string(b)
}

// resources are the user's, plus the ranks' shared memory, which the kernel
// counts as the container's.
func resources(s *v1alpha1.SpeculativeServer) *corev1ac.ResourceRequirementsApplyConfiguration {
	r := corev1ac.ResourceRequirements()
	if s.Spec.Resources == nil {
		return r
	}
	extra := shm(s)
	list := func(from map[corev1.ResourceName]resource.Quantity) corev1.ResourceList {
		to := corev1.ResourceList{}
		for name, q := range from {
			q = q.DeepCopy()
			if name == corev1.ResourceMemory {
				q.Add(*resource.NewQuantity(extra, resource.BinarySI))
			}
			to[name] = q
		}
		return to
	}
	if len(s.Spec.Resources.Requests) > 0 {
		r.WithRequests(list(s.Spec.Resources.Requests))
	}
	if len(s.Spec.Resources.Limits) > 0 {
		r.WithLimits(list(s.Spec.Resources.Limits))
	}
	return r
}
