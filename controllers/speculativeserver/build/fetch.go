package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	batchv1ac "k8s.io/client-go/applyconfigurations/batch/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// FetchContainer is the name of the container of a fetch.
const FetchContainer = "fetch"

// fetchTries is how often the Job starts a fetch that failed, each of which goes
// on where the last one was; the operator makes the Job anew after that.
const fetchTries = 6

// Fetches says that the server's files are downloaded into a claim by a Job.
func Fetches(s *v1alpha1.SpeculativeServer) bool {
	return s.Spec.ModelCache != nil && downloadsOf(s).any()
}

// FetchName is the name of the Job.
func FetchName(server string) string { return server + "-fetch" }

// CacheClaimName is the claim of spec.modelCache.
func CacheClaimName(s *v1alpha1.SpeculativeServer) string {
	if c := s.Spec.ModelCache; c != nil && c.ClaimName != "" {
		return c.ClaimName
	}
	return s.Name + "-models"
}

// Sources is the hash of what a Job downloads and where to: whatever else
// changes in it, files that are there stay as they are.
func Sources(s *v1alpha1.SpeculativeServer) string {
	d := downloadsOf(s)
	what := []string{CacheClaimName(s), d.model(), d.draft(), fmt.Sprint(draftOptional(s))}
	for _, h := range d.hubs() {
		what = append(what, h.Endpoint)
	}
	for _, store := range d.stores() {
		what = append(what, store.Endpoint)
	}
	return short(what)
}

func short(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and apply configurations always encode
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

func draftOptional(s *v1alpha1.SpeculativeServer) bool {
	return s.Spec.Speculation.OnDraftFailure != "Fail" && downloadsOf(s).draft() != ""
}

// Fetched is the server with its files in the claim, in the folders that the
// Job told.
func Fetched(s *v1alpha1.SpeculativeServer, model, draft string) *v1alpha1.SpeculativeServer {
	d, f := downloadsOf(s), s.DeepCopy()
	claim := func(path string) *v1alpha1.ClaimSource {
		return &v1alpha1.ClaimSource{ClaimName: CacheClaimName(s), Path: path}
	}
	if d.model() != "" && model != "" {
		f.Spec.Model.Source = v1alpha1.ModelSource{PVC: claim(model)}
	}
	if d.draft() != "" && draft != "" {
		f.Spec.Speculation.Draft.Source = v1alpha1.DraftSource{PVC: claim(draft)}
	}
	return f
}

// Fetch is the Job that downloads the server's files; call it only of a server
// that Fetches.
func Fetch(s *v1alpha1.SpeculativeServer, o Options) *batchv1ac.JobApplyConfiguration {
	l := map[string]string{
		v1alpha1.LabelFetch:            s.Name,
		"app.kubernetes.io/name":       "outrider-fetch",
		"app.kubernetes.io/instance":   s.Name,
		"app.kubernetes.io/managed-by": ManagedBy,
	}
	spec := batchv1ac.JobSpec().
		WithBackoffLimit(fetchTries).
		// The claim may be one that a single pod can write to.
		WithPodReplacementPolicy(batchv1.Failed).
		WithPodFailurePolicy(batchv1ac.PodFailurePolicy().WithRules(
			batchv1ac.PodFailurePolicyRule().WithAction(batchv1.PodFailurePolicyActionIgnore).
				WithOnPodConditions(batchv1ac.PodFailurePolicyOnPodConditionsPattern().
					WithType(corev1.DisruptionTarget).WithStatus(corev1.ConditionTrue)),
			batchv1ac.PodFailurePolicyRule().WithAction(batchv1.PodFailurePolicyActionFailJob).
				WithOnExitCodes(batchv1ac.PodFailurePolicyOnExitCodesRequirement().WithContainerName(FetchContainer).
					WithOperator(batchv1.PodFailurePolicyOnExitCodesOpIn).WithValues(2)))).
		WithTemplate(corev1ac.PodTemplateSpec().WithLabels(l).WithSpec(fetchPod(s, o)))
	all := map[string]string{v1alpha1.LabelSources: Sources(s), v1alpha1.LabelRevision: short(spec)}
	for k, v := range l {
		all[k] = v
	}
	return batchv1ac.Job(FetchName(s.Name), s.Namespace).WithLabels(all).WithOwnerReferences(Owner(s)).WithSpec(spec)
}

func fetchPod(s *v1alpha1.SpeculativeServer, o Options) *corev1ac.PodSpecApplyConfiguration {
	m := fetchMounts(s)
	security := securityContext(s)
	if security.FSGroup == nil {
		// A new claim's root is root's: the group lets the engine's user write to it.
		security.WithFSGroup(*security.RunAsGroup).WithFSGroupChangePolicy(corev1.FSGroupChangeOnRootMismatch)
	}
	spec := corev1ac.PodSpec().
		WithRestartPolicy(corev1.RestartPolicyNever).
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithSecurityContext(security).
		WithVolumes(m.volumes...)
	for _, name := range s.Spec.ImagePullSecrets {
		spec.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(name))
	}
	if sec := s.Spec.Security; sec != nil && sec.ServiceAccountName != "" {
		spec.WithServiceAccountName(sec.ServiceAccountName)
	}
	schedule(spec, s)
	spec.TopologySpreadConstraints = nil // of the server's pods, which this is none of
	spec.RuntimeClassName = nil          // no device is needed
	if spec.Affinity == nil {
		spec.WithAffinity(corev1ac.Affinity())
	}
	// A claim that one node can mount may be mounted already, by a pod with the model from before.
	spec.Affinity.WithPodAffinity(corev1ac.PodAffinity().WithPreferredDuringSchedulingIgnoredDuringExecution(
		corev1ac.WeightedPodAffinityTerm().WithWeight(100).WithPodAffinityTerm(corev1ac.PodAffinityTerm().
			WithTopologyKey(corev1.LabelHostname).
			WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(s.Name))))))
	return spec.WithContainers(fetchContainer(s, o, m))
}

func fetchMounts(s *v1alpha1.SpeculativeServer) *mounted {
	m := &mounted{}
	m.addTmp()
	m.add("cache", downloadDir, corev1ac.Volume().WithPersistentVolumeClaim(
		corev1ac.PersistentVolumeClaimVolumeSource().WithClaimName(CacheClaimName(s))))
	m.addSecrets(downloadsOf(s))
	for i := range s.Spec.ExtraVolumes { // certificates that the variables of extraEnv name, for example
		m.addExtra(&s.Spec.ExtraVolumes[i])
	}
	return m
}

func fetchContainer(s *v1alpha1.SpeculativeServer, o Options, m *mounted) *corev1ac.ContainerApplyConfiguration {
	d := downloadsOf(s)
	args := []string{"fetch"}
	if ref := d.model(); ref != "" {
		args = append(args, "--model="+escape(ref))
	}
	if ref := d.draft(); ref != "" {
		args = append(args, "--draft-model="+escape(ref))
	}
	if draftOptional(s) {
		args = append(args, "--draft-optional")
	}
	args = append(append(args, d.args()...), "--admin-host=0.0.0.0", "--admin-port="+fmt.Sprint(AdminPort),
		"--termination-log="+corev1.TerminationMessagePathDefault)
	need := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("512Mi")}
	image, pull := imageOf(s, o, false)
	return corev1ac.Container().
		WithName(FetchContainer).
		WithImage(image).WithImagePullPolicy(pull).
		WithArgs(args...).
		WithEnv(d.env()...).WithEnv(extraEnv(s)...).
		WithResources(corev1ac.ResourceRequirements().WithRequests(need).
			WithLimits(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")})).
		WithPorts(corev1ac.ContainerPort().WithName("admin").WithContainerPort(AdminPort).WithProtocol(corev1.ProtocolTCP)).
		WithSecurityContext(restricted()).
		WithLivenessProbe(corev1ac.Probe().
			WithHTTPGet(corev1ac.HTTPGetAction().WithPath("/livez").WithPort(intstr.FromString("admin"))).
			WithInitialDelaySeconds(10).WithPeriodSeconds(10).WithTimeoutSeconds(5).WithFailureThreshold(6)).
		WithTerminationMessagePath(corev1.TerminationMessagePathDefault).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError).
		WithVolumeMounts(m.mounts...)
}

// CacheClaim is the claim that spec.modelCache.template asks for; nil when it
// does not.
func CacheClaim(s *v1alpha1.SpeculativeServer) *corev1ac.PersistentVolumeClaimApplyConfiguration {
	if s.Spec.ModelCache == nil || s.Spec.ModelCache.Template == nil {
		return nil
	}
	t := s.Spec.ModelCache.Template
	spec := corev1ac.PersistentVolumeClaimSpec().
		WithAccessModes(CacheAccess(s)).
		WithResources(corev1ac.VolumeResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceStorage: t.Size}))
	if t.StorageClassName != "" {
		spec.WithStorageClassName(t.StorageClassName)
	}
	claim := corev1ac.PersistentVolumeClaim(CacheClaimName(s), s.Namespace).WithLabels(Labels(s.Name)).WithSpec(spec)
	if t.WhenDeleted != "Retain" {
		claim.WithOwnerReferences(Owner(s))
	}
	return claim
}

// CacheAccess is the access mode of the claim that a template makes.
func CacheAccess(s *v1alpha1.SpeculativeServer) corev1.PersistentVolumeAccessMode {
	if c := s.Spec.ModelCache; c != nil && c.Template != nil && c.Template.AccessMode != "" {
		return c.Template.AccessMode
	}
	return corev1.ReadWriteOnce
}
