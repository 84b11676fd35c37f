// Package build turns a SpeculativeServer into the objects that it owns. It is
// pure: the same spec gives the same bytes, which is what makes a pod's revision
// comparable and golden files possible.
package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Ports and names that the engine, its probes and its clients agree on.
const (
	HTTPPort      = 8000 // OpenAI API
	AdminPort     = 8001 // health, progress and metrics
	ContainerName = "engine"

	targetDir = "/models/target"
	draftDir  = "/models/draft"

	// engineUser is the user of the engine's image; nonroot in most minimal images.
	engineUser = 65532

	// shmPerRank is the /dev/shm of one rank. NCCL's shared-memory transport takes a few MiB for each channel and
	// peer, and the container runtime's 64 MiB is too little from two ranks on.
	shmPerRank = 256 << 20

	// A pod that is deleted goes on taking requests for lingerSeconds, until no node sends it new ones; then it drains
	// for the time that the spec gives, and is killed if it has not ended killSeconds after.
	lingerSeconds = 3
	drainSeconds  = 30
	killSeconds   = 5
)

// ManagedBy is the value of app.kubernetes.io/managed-by on all objects of the operator.
const ManagedBy = "outrider"

// Options are the operator's own settings that go into pods.
type Options struct {
	EngineImage string // image of servers whose spec names none
}

// Tensor is the server's tensor parallel degree.
func Tensor(s *v1alpha1.SpeculativeServer) int32 {
	if t := s.Spec.Parallelism.Tensor; t != nil {
		return *t
	}
	return 1
}

// Replicas is how many pods the server asks for.
func Replicas(s *v1alpha1.SpeculativeServer) int32 {
	if r := s.Spec.Replicas; r != nil {
		return *r
	}
	return 1
}

// ServedName is the name that clients of the server give as "model".
func ServedName(s *v1alpha1.SpeculativeServer) string {
	switch {
	case s.Spec.Model.ServedName != "":
		return s.Spec.Model.ServedName
	case s.Spec.Model.Source.Builtin != nil:
		return s.Spec.Model.Source.Builtin.Name
	}
	return s.Name
}

// PodName is the name of the server's pod with an ordinal.
func PodName(server string, ordinal int32) string { return server + "-" + strconv.Itoa(int(ordinal)) }

// Selector selects the server's pods.
func Selector(server string) map[string]string {
	return map[string]string{v1alpha1.LabelServer: server}
}

func labels(server string) map[string]string {
	return map[string]string{
		v1alpha1.LabelServer:           server,
		"app.kubernetes.io/name":       "outrider-engine",
		"app.kubernetes.io/instance":   server,
		"app.kubernetes.io/managed-by": ManagedBy,
	}
}

func owner(s *v1alpha1.SpeculativeServer) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1alpha1.SchemeGroupVersion.String()).WithKind("SpeculativeServer").
		WithName(s.Name).WithUID(s.UID).WithController(true).WithBlockOwnerDeletion(true)
}

// Service is the Service of the server, of the server's name.
func Service(s *v1alpha1.SpeculativeServer) *corev1ac.ServiceApplyConfiguration {
	return corev1ac.Service(s.Name, s.Namespace).
		WithLabels(labels(s.Name)).
		WithOwnerReferences(owner(s)).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithSelector(Selector(s.Name)).
			WithPorts(corev1ac.ServicePort().
				WithName("http").WithProtocol(corev1.ProtocolTCP).
				WithPort(HTTPPort).WithTargetPort(intstr.FromString("http"))))
}

// Drain is how many seconds running requests get in a pod that stops.
func Drain(s *v1alpha1.SpeculativeServer) int32 {
	if r := s.Spec.Rollout; r != nil && r.DrainSeconds != nil {
		return *r.DrainSeconds
	}
	return drainSeconds
}

// Pod is the server's pod with an ordinal, of the revision that Revision gives.
// It prefers other nodes than those to avoid.
func Pod(s *v1alpha1.SpeculativeServer, ordinal int32, o Options, avoid ...string) (*corev1ac.PodApplyConfiguration, error) {
	revision, err := Revision(s, o)
	if err != nil {
		return nil, err
	}
	l := labels(s.Name)
	l[v1alpha1.LabelOrdinal] = strconv.Itoa(int(ordinal))
	l[v1alpha1.LabelRevision] = revision
	spec := podSpec(s, o)
	if len(avoid) > 0 {
		avoidNodes(spec, avoid)
	}
	return corev1ac.Pod(PodName(s.Name, ordinal), s.Namespace).
		WithLabels(l).
		WithOwnerReferences(owner(s)).
		WithSpec(spec), nil
}

// avoidNodes makes a pod prefer every other node. It does not rule them out: the
// only node there is may be one of them.
func avoidNodes(spec *corev1ac.PodSpecApplyConfiguration, nodes []string) {
	if spec.Affinity == nil {
		spec.WithAffinity(corev1ac.Affinity())
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.WithNodeAffinity(corev1ac.NodeAffinity())
	}
	for _, node := range nodes { // a match of a field takes one value
		spec.Affinity.NodeAffinity.WithPreferredDuringSchedulingIgnoredDuringExecution(corev1ac.PreferredSchedulingTerm().
			WithWeight(100).WithPreference(corev1ac.NodeSelectorTerm().WithMatchFields(corev1ac.NodeSelectorRequirement().
			WithKey("metadata.name").WithOperator(corev1.NodeSelectorOpNotIn).WithValues(node))))
	}
}

// Revision is a hash of what the server's pods are made of: two specs with the
// same revision give pods that differ in their ordinal only.
func Revision(s *v1alpha1.SpeculativeServer, o Options) (string, error) {
	b, err := json.Marshal(podSpec(s, o))
	if err != nil {
		return "", fmt.Errorf("encoding the pod template of %s/%s: %w", s.Namespace, s.Name, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6]), nil
}

func podSpec(s *v1alpha1.SpeculativeServer, o Options) *corev1ac.PodSpecApplyConfiguration {
	spec := corev1ac.PodSpec().
		// The operator starts a crashed engine again, in a new pod: its back-off is the server's, not the node's, and
		// the old pod stays for its log.
		WithRestartPolicy(corev1.RestartPolicyNever).
		WithReadinessGates(corev1ac.PodReadinessGate().WithConditionType(v1alpha1.ModelVerified)).
		WithTerminationGracePeriodSeconds(int64(lingerSeconds + Drain(s) + killSeconds)).
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithRunAsNonRoot(true).WithRunAsUser(engineUser).WithRunAsGroup(engineUser).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithContainers(container(s, o))
	return spec.WithVolumes(volumes(s)...)
}

func container(s *v1alpha1.SpeculativeServer, o Options) *corev1ac.ContainerApplyConfiguration {
	image, pull := s.Spec.Image, s.Spec.ImagePullPolicy
	if image == "" {
		image = o.EngineImage
	}
	if pull == "" {
		pull = corev1.PullIfNotPresent
	}
	return corev1ac.Container().
		WithName(ContainerName).
		WithImage(image).WithImagePullPolicy(pull).
		WithArgs(args(s)...).
		WithEnv(env(s)...).
		WithResources(resources(s)).
		WithPorts(
			corev1ac.ContainerPort().WithName("http").WithContainerPort(HTTPPort).WithProtocol(corev1.ProtocolTCP),
			corev1ac.ContainerPort().WithName("admin").WithContainerPort(AdminPort).WithProtocol(corev1.ProtocolTCP)).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		// /livez answers while the model loads, so no probe has to guess how long a load takes: the start-up probe
		// waits for the process only, and /livez turns bad when nothing moves.
		WithStartupProbe(probe("/livez", 2, 3, 150)).
		WithLivenessProbe(probe("/livez", 5, 3, 5)).
		WithReadinessProbe(probe("/readyz", 2, 3, 2)).
		WithLifecycle(corev1ac.Lifecycle().WithPreStop(corev1ac.LifecycleHandler().
			WithSleep(corev1ac.SleepAction().WithSeconds(lingerSeconds)))).
		WithTerminationMessagePath(corev1.TerminationMessagePathDefault).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithVolumeMounts(mounts(s)...)
}

func probe(path string, period, timeout, failures int32) *corev1ac.ProbeApplyConfiguration {
	return corev1ac.Probe().
		WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString("admin"))).
		WithPeriodSeconds(period).WithTimeoutSeconds(timeout).WithFailureThreshold(failures)
}

// algorithms are the engine's names. An object that was stored without one, by
// a client that the API server's defaults did not reach, has EAGLE3.
var algorithms = map[v1alpha1.SpeculationAlgorithm]string{
	"":                           "eagle3",
	v1alpha1.AlgorithmEAGLE3:     "eagle3",
	v1alpha1.AlgorithmNGram:      "ngram",
	v1alpha1.AlgorithmDraftModel: "draft",
	v1alpha1.AlgorithmNone:       "none",
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
	model := targetDir
	if b := s.Spec.Model.Source.Builtin; b != nil {
		model = "builtin:" + b.Name
	}
	set("model", model)
	set("served-model-name", ServedName(s))
	number("context-length", s.Spec.Model.MaxContextLength)
	set("tp-size", strconv.Itoa(int(Tensor(s))))

	sp := s.Spec.Speculation
	set("speculative-algorithm", algorithms[sp.Algorithm])
	if sp.Algorithm != v1alpha1.AlgorithmNone {
		if d := sp.Draft; d != nil && d.Source.Builtin != nil {
			set("draft-model", "builtin:"+d.Source.Builtin.Name)
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
	set("host", "0.0.0.0")
	set("port", strconv.Itoa(HTTPPort))
	set("admin-port", strconv.Itoa(AdminPort))
	set("drain-timeout", strconv.Itoa(int(Drain(s)))+"s")
	if h := s.Spec.Health; h != nil && h.StallTimeoutSeconds != nil {
		set("stall-timeout", strconv.Itoa(int(*h.StallTimeoutSeconds))+"s")
	}
	set("termination-log", corev1.TerminationMessagePathDefault)
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
		set("NCCL_DEBUG", n.Debug)
	}
	for _, e := range s.Spec.ExtraEnv {
		vars = append(vars, corev1ac.EnvVar().WithName(e.Name).WithValue(escape(e.Value)))
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

// shm is the size of /dev/shm in bytes; 0 leaves the container runtime's.
func shm(s *v1alpha1.SpeculativeServer) int64 {
	if t := Tensor(s); t > 1 {
		return int64(t) * shmPerRank
	}
	return 0
}

func hostPaths(s *v1alpha1.SpeculativeServer) (target, draft *v1alpha1.HostPath) {
	if d := s.Spec.Speculation.Draft; d != nil && s.Spec.Speculation.Algorithm != v1alpha1.AlgorithmNone {
		draft = d.Source.HostPath
	}
	return s.Spec.Model.Source.HostPath, draft
}

func volumes(s *v1alpha1.SpeculativeServer) []*corev1ac.VolumeApplyConfiguration {
	vs := []*corev1ac.VolumeApplyConfiguration{
		corev1ac.Volume().WithName("tmp").WithEmptyDir(corev1ac.EmptyDirVolumeSource().
			WithSizeLimit(resource.MustParse("1Gi"))),
	}
	if n := shm(s); n > 0 {
		vs = append(vs, corev1ac.Volume().WithName("shm").WithEmptyDir(corev1ac.EmptyDirVolumeSource().
			WithMedium(corev1.StorageMediumMemory).
			WithSizeLimit(*resource.NewQuantity(n, resource.BinarySI))))
	}
	target, draft := hostPaths(s)
	add := func(name string, h *v1alpha1.HostPath) {
		if h != nil {
			// Type Directory: a folder that is not there is an error of the kubelet, not an empty folder made by it.
			vs = append(vs, corev1ac.Volume().WithName(name).WithHostPath(corev1ac.HostPathVolumeSource().
				WithPath(h.Path).WithType(corev1.HostPathDirectory)))
		}
	}
	add("model", target)
	add("draft", draft)
	return vs
}

func mounts(s *v1alpha1.SpeculativeServer) []*corev1ac.VolumeMountApplyConfiguration {
	ms := []*corev1ac.VolumeMountApplyConfiguration{corev1ac.VolumeMount().WithName("tmp").WithMountPath("/tmp")}
	if shm(s) > 0 {
		ms = append(ms, corev1ac.VolumeMount().WithName("shm").WithMountPath("/dev/shm"))
	}
	target, draft := hostPaths(s)
	if target != nil {
		ms = append(ms, corev1ac.VolumeMount().WithName("model").WithMountPath(targetDir).WithReadOnly(true))
	}
	if draft != nil {
		ms = append(ms, corev1ac.VolumeMount().WithName("draft").WithMountPath(draftDir).WithReadOnly(true))
	}
	return ms
}
