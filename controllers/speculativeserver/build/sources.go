package build

import (
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Where engines and fetches find what they download with, and put it.
const (
	downloadDir = "/models/cache"
	hubTokenDir = "/var/run/outrider/hub"
	hubToken    = "token"
	s3Dir       = "/var/run/outrider/s3"
	s3File      = "credentials"
)

// downloads are the sources of a server that are elsewhere; nil is none.
type downloads struct {
	modelHub, draftHub *v1alpha1.HubSource
	modelS3, draftS3   *v1alpha1.S3Source
}

func downloadsOf(s *v1alpha1.SpeculativeServer) downloads {
	d := downloads{modelHub: s.Spec.Model.Source.HuggingFace, modelS3: s.Spec.Model.Source.S3}
	if draft := s.Spec.Speculation.Draft; draft != nil && s.Spec.Speculation.Algorithm != v1alpha1.AlgorithmNone {
		d.draftHub, d.draftS3 = draft.Source.HuggingFace, draft.Source.S3
	}
	return d
}

func (d downloads) model() string { return reference(d.modelHub, d.modelS3) }
func (d downloads) draft() string { return reference(d.draftHub, d.draftS3) }
func (d downloads) any() bool     { return d.model() != "" || d.draft() != "" }

// reference is what the engine's --model takes; "" for a source that is not
// downloaded.
func reference(hub *v1alpha1.HubSource, s3 *v1alpha1.S3Source) string {
	switch {
	case hub != nil && hub.Revision != "":
		return "hf://" + hub.Repo + "@" + hub.Revision
	case hub != nil:
		return "hf://" + hub.Repo
	case s3 != nil:
		return s3.URI
	}
	return ""
}

// hubs are the sources of a model hub, which have one endpoint and one token.
func (d downloads) hubs() []*v1alpha1.HubSource {
	var list []*v1alpha1.HubSource
	for _, h := range []*v1alpha1.HubSource{d.modelHub, d.draftHub} {
		if h != nil {
			list = append(list, h)
		}
	}
	return list
}

// stores are the sources of an object store, likewise.
func (d downloads) stores() []*v1alpha1.S3Source {
	var list []*v1alpha1.S3Source
	for _, s := range []*v1alpha1.S3Source{d.modelS3, d.draftS3} {
		if s != nil {
			list = append(list, s)
		}
	}
	return list
}

func (d downloads) token() *v1alpha1.SecretKeyRef {
	for _, h := range d.hubs() {
		if h.TokenSecretRef != nil {
			return h.TokenSecretRef
		}
	}
	return nil
}

func (d downloads) credentials() *v1alpha1.SecretKeyRef {
	for _, s := range d.stores() {
		if s.CredentialsSecretRef != nil {
			return s.CredentialsSecretRef
		}
	}
	return nil
}

// args are the flags with which serve and fetch download.
func (d downloads) args() []string {
	a := []string{"--download-dir=" + downloadDir}
	if d.token() != nil {
		a = append(a, "--hf-token-file="+hubTokenDir+"/"+hubToken)
	}
	return a
}

// env are the variables with which they do: addresses, and where a file is.
func (d downloads) env() []*corev1ac.EnvVarApplyConfiguration {
	var vars []*corev1ac.EnvVarApplyConfiguration
	set := func(name, value string) {
		if value != "" {
			vars = append(vars, corev1ac.EnvVar().WithName(name).WithValue(escape(value)))
		}
	}
	if hubs := d.hubs(); len(hubs) > 0 {
		set("HF_ENDPOINT", hubs[0].Endpoint)
	}
	if stores := d.stores(); len(stores) > 0 {
		set("AWS_ENDPOINT_URL", stores[0].Endpoint)
		set("AWS_REGION", stores[0].Region)
	}
	if d.credentials() != nil {
		set("AWS_SHARED_CREDENTIALS_FILE", s3Dir+"/"+s3File)
	}
	return vars
}

// addSecrets mounts what a source asks for, each key as a file.
func (m *mounted) addSecrets(d downloads) {
	if ref := d.token(); ref != nil {
		m.addKey("hub-token", hubTokenDir, hubToken, ref)
	}
	if ref := d.credentials(); ref != nil {
		m.addKey("s3-credentials", s3Dir, s3File, ref)
	}
}

// addKey mounts one key of a Secret as a file, in a folder of its own: a Secret
// that changes is exchanged as a folder.
func (m *mounted) addKey(name, dir, file string, ref *v1alpha1.SecretKeyRef) {
	m.add(name, dir, corev1ac.Volume().WithSecret(corev1ac.SecretVolumeSource().
		WithSecretName(ref.Name).
		WithItems(corev1ac.KeyToPath().WithKey(ref.Key).WithPath(file)))).WithReadOnly(true)
}

// claimFiles are the pod's files of a source that is downloaded into a claim.
func claimFiles(s *v1alpha1.SpeculativeServer) files {
	return files{claim: &v1alpha1.ClaimSource{ClaimName: CacheClaimName(s)}}
}

// Restricted is the container security that every pod of the operator has.
func restricted() *corev1ac.SecurityContextApplyConfiguration {
	return corev1ac.SecurityContext().
		WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
		WithCapabilities(corev1ac.Capabilities().WithDrop(corev1.Capability("ALL")))
}
