package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types of a bill of materials, and of the empty configuration of what is
// no image (OCI image specification 1.1).
const (
	cycloneDX   types.MediaType = "application/vnd.cyclonedx+json"
	emptyConfig types.MediaType = "application/vnd.oci.empty.v1+json"
)

// push brings the images to the registry of the name, each with its bill of
// materials beside it.
func push(ctx context.Context, ref name.Tag, r *result) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	var err error
	if r.index != nil {
		err = remote.WriteIndex(ref, r.index, options...)
	} else {
		err = remote.Write(ref, r.images[0].image, options...)
	}
	for _, i := range r.images {
		if err == nil {
			err = attach(ref.Context(), i, options)
		}
	}
	if err != nil {
		return fmt.Errorf("pushing %s: %w (sign in with \"docker login %s\" or write ~/.docker/config.json)", ref, err, ref.RegistryStr())
	}
	return nil
}

// rawManifest is a manifest as it is pushed.
type rawManifest []byte

func (m rawManifest) RawManifest() ([]byte, error)        { return m, nil }
func (m rawManifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// attach pushes an image's bill of materials as an artifact whose subject is the
// image, so that registries list it among the image's referrers.
func attach(repo name.Repository, i built, options []remote.Option) error {
	subject, err := partial.Descriptor(i.image)
	if err != nil {
		return err
	}
	manifest := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: string(cycloneDX),
		Subject: &v1.Descriptor{MediaType: subject.MediaType, Size: subject.Size, Digest: subject.Digest},
	}
	put := func(content []byte, t types.MediaType) (v1.Descriptor, error) {
		l := static.NewLayer(content, t)
		digest, err := l.Digest()
		if err != nil {
			return v1.Descriptor{}, err
		}
		return v1.Descriptor{MediaType: t, Size: int64(len(content)), Digest: digest}, remote.WriteLayer(repo, l, options...)
	}
	if manifest.Config, err = put([]byte("{}"), emptyConfig); err != nil {
		return err
	}
	bill, err := put(i.bill, cycloneDX)
	if err != nil {
		return err
	}
	manifest.Layers = []v1.Descriptor{bill}
	raw, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	digest, err := partial.Digest(rawManifest(raw))
	if err != nil {
		return err
	}
	return remote.Put(repo.Digest(digest.String()), rawManifest(raw), options...)
}
