package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Pod is the server's pod with an ordinal, of the revision that Revision gives.
// It prefers other nodes than those to avoid.
func Pod(s *v1alpha1.SpeculativeServer, ordinal int32, o Options, avoid ...string) (*corev1ac.PodApplyConfiguration, error) {
	revision, err := Revision(s, o)
	if err != nil {
		return nil, err
	}
	l := Labels(s.Name)
	l[v1alpha1.LabelOrdinal] = strconv.Itoa(int(ordinal))
	l[v1alpha1.LabelRevision] = revision
	spec := podSpec(s, o)
	if len(avoid) > 0 {
		avoidNodes(spec, avoid)
	}
	pod := corev1ac.Pod(PodName(s.Name, ordinal), s.Namespace).
		WithOwnerReferences(Owner(s)).
		WithSpec(spec)
	if m := s.Spec.PodMetadata; m != nil {
		pod.WithLabels(texts(m.Labels)).WithAnnotations(texts(m.Annotations))
	}
	return pod.WithLabels(l), nil
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

// WithoutDraft is the server with plain decoding, for pods whose draft failed.
func WithoutDraft(s *v1alpha1.SpeculativeServer) *v1alpha1.SpeculativeServer {
	plain := s.DeepCopy()
	plain.Spec.Speculation = v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmNone}
	return plain
}

// Revision is a hash of what the server's pods are made of: two specs with the
// same revision give pods that differ in their ordinal only.
func Revision(s *v1alpha1.SpeculativeServer, o Options) (string, error) {
	var template any = podSpec(s, o)
	if n := Nodes(s); n > 1 {
		template = []any{template, n}
	}
	if m := s.Spec.PodMetadata; m != nil && len(m.Labels)+len(m.Annotations) > 0 {
		template = []any{template, m}
	}
	b, err := json.Marshal(template)
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
		WithSecurityContext(securityContext(s)).
		WithContainers(container(s, o))
	for _, name := range s.Spec.ImagePullSecrets {
		spec.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(name))
	}
	if sec := s.Spec.Security; sec != nil && sec.ServiceAccountName != "" {
		spec.WithServiceAccountName(sec.ServiceAccountName)
	}
	schedule(spec, s)
	return spec.WithVolumes(volumes(s)...)
}

func securityContext(s *v1alpha1.SpeculativeServer) *corev1ac.PodSecurityContextApplyConfiguration {
	user, group := int64(engineUser), int64(engineUser)
	c := corev1ac.PodSecurityContext().WithRunAsNonRoot(true)
	if sec := s.Spec.Security; sec != nil {
		if sec.RunAsUser != nil {
			user = *sec.RunAsUser
		}
		if sec.RunAsGroup != nil {
			group = *sec.RunAsGroup
		}
		if sec.FSGroup != nil {
			// Files that have the group already are not walked through: a model has many.
			c.WithFSGroup(*sec.FSGroup).WithFSGroupChangePolicy(corev1.FSGroupChangeOnRootMismatch)
		}
	}
	return c.WithRunAsUser(user).WithRunAsGroup(group).
		WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))
}

// usesGPUs says whether the server's pods get NVIDIA GPUs that the engine may compute on.
func usesGPUs(s *v1alpha1.SpeculativeServer) bool {
	if s.Spec.Device == v1alpha1.DeviceCPU || s.Spec.Resources == nil {
		return false
	}
	for name := range s.Spec.Resources.Limits {
		if strings.HasPrefix(string(name), "nvidia.com/") {
			return true
		}
	}
	return s.Spec.Device == v1alpha1.DeviceCUDA
}

// imageOf is the engine's image and when it is pulled. What only downloads is no user of GPUs: the image with CUDA is
// large.
func imageOf(s *v1alpha1.SpeculativeServer, o Options, gpus bool) (image string, pull corev1.PullPolicy) {
	image, pull = s.Spec.Image, s.Spec.ImagePullPolicy
	if image == "" && gpus {
		image = o.CUDAEngineImage
	}
	if image == "" {
		image = o.EngineImage
	}
	if pull == "" {
		pull = corev1.PullIfNotPresent
	}
	return image, pull
}

func container(s *v1alpha1.SpeculativeServer, o Options) *corev1ac.ContainerApplyConfiguration {
	image, pull := imageOf(s, o, usesGPUs(s))
	return corev1ac.Container().
		WithName(ContainerName).
		WithImage(image).WithImagePullPolicy(pull).
		WithArgs(args(s)...).
		WithEnv(env(s)...).
		WithResources(resources(s)).
		WithPorts(
			corev1ac.ContainerPort().WithName("http").WithContainerPort(HTTPPort).WithProtocol(corev1.ProtocolTCP),
			corev1ac.ContainerPort().WithName("admin").WithContainerPort(AdminPort).WithProtocol(corev1.ProtocolTCP)).
		WithSecurityContext(restricted()).
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
