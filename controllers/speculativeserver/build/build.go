// Package build turns a SpeculativeServer into the objects that it owns. It is
// pure: the same spec gives the same bytes, which is what makes a pod's revision
// comparable and golden files possible.
package build

import (
	"strconv"

	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Ports and names that the engine, its probes and its clients agree on.
const (
	HTTPPort      = 8000 // OpenAI API
	AdminPort     = 8001 // health, progress and metrics
	ContainerName = v1alpha1.EngineContainer

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
	EngineImage       string // image of servers whose spec names none
	CUDAEngineImage   string // the same, of servers with NVIDIA GPUs; EngineImage if empty
	OperatorNamespace string // where the operator runs; empty: not known
}

// Tensor is the server's tensor parallel degree.
func Tensor(s *v1alpha1.SpeculativeServer) int32 {
	if t := s.Spec.Parallelism.Tensor; t != nil {
		return *t
	}
	return 1
}

// Nodes is how many pods share the ranks of a replica.
func Nodes(s *v1alpha1.SpeculativeServer) int32 {
	if n := s.Spec.Parallelism.Nodes; n != nil {
		return *n
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

// Labels are those of all that the operator makes for a server.
func Labels(server string) map[string]string {
	return map[string]string{
		v1alpha1.LabelServer:           server,
		"app.kubernetes.io/name":       "outrider-engine",
		"app.kubernetes.io/instance":   server,
		"app.kubernetes.io/managed-by": ManagedBy,
	}
}

// Owner makes an object go with the server.
func Owner(s *v1alpha1.SpeculativeServer) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1alpha1.SchemeGroupVersion.String()).WithKind("SpeculativeServer").
		WithName(s.Name).WithUID(s.UID).WithController(true).WithBlockOwnerDeletion(true)
}

// Drain is how many seconds running requests get in a pod that stops.
func Drain(s *v1alpha1.SpeculativeServer) int32 {
	if r := s.Spec.Rollout; r != nil && r.DrainSeconds != nil {
		return *r.DrainSeconds
	}
	return drainSeconds
}

// TLS says that the API port speaks TLS.
func TLS(s *v1alpha1.SpeculativeServer) bool {
	return s.Spec.Security != nil && s.Spec.Security.TLSSecretName != ""
}

// AdminTokenKey is the key of the admin tokens in their Secret.
const AdminTokenKey = "token"

// AdminSecretName is the Secret with the tokens that the server's admin ports
// ask for.
func AdminSecretName(server string) string { return server + "-admin" }

// texts are labels or annotations as Kubernetes' own types have them.
func texts[V ~string](values map[string]V) map[string]string {
	all := make(map[string]string, len(values))
	for k, v := range values {
		all[k] = string(v)
	}
	return all
}

// NodeSecretKey is the key of the nodes' secret in the Secret that the operator
// makes.
const NodeSecretKey = "secret"

// NodeSecretName is the Secret that the operator makes for the nodes of the
// server's replicas; "" where there is one node, or the spec names a Secret.
func NodeSecretName(s *v1alpha1.SpeculativeServer) string {
	if Nodes(s) == 1 || s.Spec.Parallelism.NodeSecretRef != nil {
		return ""
	}
	return s.Name + "-nodes"
}

func seconds(n int32) string { return strconv.Itoa(int(n)) + "s" }
