package build

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Where the engine finds keys, tokens and certificates: each in a folder of its
// own, since a Secret that changes is exchanged as a folder.
const (
	apiKeyDir  = "/var/run/outrider/api-keys"
	apiKeyFile = "keys"
	adminDir   = "/var/run/outrider/admin"
	tlsDir     = "/var/run/outrider/tls"
	nodesDir   = "/var/run/outrider/nodes"
)

// shm is the size of /dev/shm in bytes; 0 leaves the container runtime's.
func shm(s *v1alpha1.SpeculativeServer) int64 {
	if t := Tensor(s) / Nodes(s); t > 1 { // the ranks of one pod
		return int64(t) * shmPerRank
	}
	return 0
}

// files are where a model's or a draft head's files come from: at most one is set.
type files struct {
	claim *v1alpha1.ClaimSource
	image *v1alpha1.ImageSource
	host  *v1alpha1.HostPath
}

func modelFiles(s *v1alpha1.SpeculativeServer) files {
	src := s.Spec.Model.Source
	if Fetches(s) && (src.HuggingFace != nil || src.S3 != nil) {
		return claimFiles(s)
	}
	return files{src.PVC, src.Image, src.HostPath}
}

func draftFiles(s *v1alpha1.SpeculativeServer) files {
	d := s.Spec.Speculation.Draft
	if d == nil || s.Spec.Speculation.Algorithm == v1alpha1.AlgorithmNone {
		return files{}
	}
	if Fetches(s) && (d.Source.HuggingFace != nil || d.Source.S3 != nil) {
		return claimFiles(s)
	}
	return files{d.Source.PVC, d.Source.Image, d.Source.HostPath}
}

// Claims are the volume claims that the server's pods mount, that of
// spec.modelCache first.
func Claims(s *v1alpha1.SpeculativeServer) []string {
	var names []string
	if Fetches(s) {
		names = append(names, CacheClaimName(s))
	}
	for _, f := range []files{modelFiles(s), draftFiles(s)} {
		if f.claim != nil {
			names = append(names, f.claim.ClaimName)
		}
	}
	for _, v := range s.Spec.ExtraVolumes {
		if v.PVC != nil {
			names = append(names, v.PVC.ClaimName)
		}
	}
	return names
}

// mounted is a volume and its mounts, in the order in which they are made.
type mounted struct {
	volumes []*corev1ac.VolumeApplyConfiguration
	mounts  []*corev1ac.VolumeMountApplyConfiguration
}

func (m *mounted) add(name, path string, v *corev1ac.VolumeApplyConfiguration) *corev1ac.VolumeMountApplyConfiguration {
	mount := corev1ac.VolumeMount().WithName(name).WithMountPath(path)
	m.volumes, m.mounts = append(m.volumes, v.WithName(name)), append(m.mounts, mount)
	return mount
}

func (m *mounted) addTmp() {
	m.add("tmp", "/tmp", corev1ac.Volume().WithEmptyDir(corev1ac.EmptyDirVolumeSource().WithSizeLimit(resource.MustParse("1Gi"))))
}

// addFiles mounts a model's files read-only.
func (m *mounted) addFiles(name, path string, f files) {
	switch v := corev1ac.Volume(); {
	case f.claim != nil:
		// The mount is read-only, the claim is not marked so: a volume that was mounted for writing elsewhere on the
		// node could not be mounted otherwise.
		mount := m.add(name, path, v.WithPersistentVolumeClaim(corev1ac.PersistentVolumeClaimVolumeSource().WithClaimName(f.claim.ClaimName)))
		mount.WithReadOnly(true)
		if f.claim.Path != "" {
			mount.WithSubPath(f.claim.Path)
		}
	case f.image != nil:
		pull := f.image.PullPolicy
		if pull == "" {
			pull = corev1.PullIfNotPresent
		}
		mount := m.add(name, path, v.WithImage(corev1ac.ImageVolumeSource().WithReference(f.image.Name).WithPullPolicy(pull)))
		mount.WithReadOnly(true)
		if f.image.Path != "" {
			mount.WithSubPath(f.image.Path)
		}
	case f.host != nil:
		m.add(name, path, v.WithHostPath(hostFolder(f.host))).WithReadOnly(true)
	}
}

// hostFolder has type Directory: a folder that is not there is an error of the
// kubelet, not an empty folder made by it.
func hostFolder(h *v1alpha1.HostPath) *corev1ac.HostPathVolumeSourceApplyConfiguration {
	return corev1ac.HostPathVolumeSource().WithPath(h.Path).WithType(corev1.HostPathDirectory)
}

func mountAll(s *v1alpha1.SpeculativeServer) *mounted {
	m := &mounted{}
	m.addTmp()
	if n := shm(s); n > 0 {
		m.add("shm", "/dev/shm", corev1ac.Volume().WithEmptyDir(corev1ac.EmptyDirVolumeSource().
			WithMedium(corev1.StorageMediumMemory).WithSizeLimit(*resource.NewQuantity(n, resource.BinarySI))))
	}
	m.addFiles("model", targetDir, modelFiles(s))
	m.addFiles("draft", draftDir, draftFiles(s))
	if d := downloadsOf(s); d.any() && !Fetches(s) {
		m.add("cache", downloadDir, corev1ac.Volume().WithEmptyDir(corev1ac.EmptyDirVolumeSource()))
		m.addSecrets(d)
	}
	m.addKey("admin-token", adminDir, AdminTokenKey, &v1alpha1.SecretKeyRef{Name: AdminSecretName(s.Name), Key: AdminTokenKey})
	if Nodes(s) > 1 {
		ref := s.Spec.Parallelism.NodeSecretRef
		if ref == nil {
			ref = &v1alpha1.SecretKeyRef{Name: NodeSecretName(s), Key: NodeSecretKey}
		}
		m.addKey("node-secret", nodesDir, NodeSecretKey, ref)
	}
	if sec := s.Spec.Security; sec != nil && sec.APIKeySecretRef != nil {
		m.addKey("api-keys", apiKeyDir, apiKeyFile, sec.APIKeySecretRef)
	}
	if TLS(s) {
		m.add("tls", tlsDir, corev1ac.Volume().WithSecret(corev1ac.SecretVolumeSource().
			WithSecretName(s.Spec.Security.TLSSecretName))).WithReadOnly(true)
	}
	for i := range s.Spec.ExtraVolumes {
		m.addExtra(&s.Spec.ExtraVolumes[i])
	}
	return m
}

// addExtra mounts a volume of the user's; its name cannot be one of the
// operator's.
func (m *mounted) addExtra(v *v1alpha1.Volume) {
	volume, readOnly := corev1ac.Volume(), v.Access == "ReadOnly"
	switch {
	case v.EmptyDir != nil:
		dir := corev1ac.EmptyDirVolumeSource()
		if v.EmptyDir.SizeLimit != nil {
			dir.WithSizeLimit(*v.EmptyDir.SizeLimit)
		}
		volume.WithEmptyDir(dir)
	case v.ConfigMap != "":
		volume.WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(v.ConfigMap))
		readOnly = true
	case v.Secret != "":
		volume.WithSecret(corev1ac.SecretVolumeSource().WithSecretName(v.Secret))
		readOnly = true
	case v.PVC != nil:
		volume.WithPersistentVolumeClaim(corev1ac.PersistentVolumeClaimVolumeSource().WithClaimName(v.PVC.ClaimName))
	case v.HostPath != nil:
		volume.WithHostPath(hostFolder(v.HostPath))
	}
	mount := m.add(fmt.Sprintf("x-%s", v.Name), v.MountPath, volume)
	if readOnly {
		mount.WithReadOnly(true)
	}
	if v.PVC != nil && v.PVC.Path != "" {
		mount.WithSubPath(v.PVC.Path)
	}
}

func volumes(s *v1alpha1.SpeculativeServer) []*corev1ac.VolumeApplyConfiguration {
	return mountAll(s).volumes
}

func mounts(s *v1alpha1.SpeculativeServer) []*corev1ac.VolumeMountApplyConfiguration {
	return mountAll(s).mounts
}
