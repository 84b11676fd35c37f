// Command image makes container images from files of this machine, with no
// container engine: the same bytes for the same files.
//
//	image -o outrider.tar -t ghcr.io/outrider-dev/outrider:dev -entrypoint /outrider bin/outrider=/outrider
//	image -push -t registry.example.com/outrider:v1 -entrypoint /outrider bin/outrider=/outrider
//	image -push -t registry.example.com/outrider:v1 -platform linux/amd64,linux/arm64 \
//	  -layer glibc/{arch} -entrypoint /outrider bin/{arch}/outrider=/outrider
//
// Each -layer is a folder that lies below the files as a layer of its own; the
// files are the last layer. Several platforms make an index, where {arch} in the
// name of a file or folder is the architecture. The bill of materials of an image
// (-sbom, and beside the image when it is pushed) has the modules of its programs
// in Go, the Debian packages of /var/lib/dpkg/status.d, the wheels with a METADATA
// file, and the certificate authorities.
//
// The tar file is an OCI image layout with the image's name in containerd's
// annotation, ready for "ctr -n k8s.io images import", "docker load" (25 or
// later) and "podman load". Every image has the certificate authorities of
// golang.org/x/crypto/x509roots, whose version is in go.mod, a user nonroot
// (65532), and a /tmp.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "image:", err)
	os.Exit(1)
}

// settings are what the command line says.
type settings struct {
	options
	output, bill string // files to write
	push, quiet  bool
	ref          name.Tag
	platforms    []*v1.Platform
}

func parse(args []string) (*settings, error) {
	s := &settings{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&s.output, "o", "", "tar `file` to write")
	flags.StringVar(&s.bill, "sbom", "", "`file` to write the bill of materials to, in CycloneDX's JSON; {arch} in its name is the architecture")
	flags.BoolVar(&s.push, "push", false, "push to the registry that the name says, with Docker's stored credentials, and the bill of materials as what refers to it")
	flags.BoolVar(&s.quiet, "q", false, "do not print the image's name and digest")
	tag := flags.String("t", "", "full image `name`, with registry and tag")
	platforms := flags.String("platform", "linux/"+runtime.GOARCH, "`os/architecture` of the files; of several, with commas between them, an index is made")
	flags.StringVar(&s.entrypoint, "entrypoint", "", "`command` to run, split at spaces")
	flags.StringVar(&s.user, "user", "65532:65532", "`user[:group]` to run as, in numbers, which Kubernetes' runAsNonRoot needs")
	flags.Func("env", "`NAME=value` in the environment; may be repeated", listOf("NAME=value", &s.env))
	flags.Func("label", "`name=value` of an image label; may be repeated", listOf("name=value", &s.labels))
	flags.Func("layer", "`folder` that is the root of a layer below that of the files; may be repeated", func(v string) error {
		s.trees = append(s.trees, v)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if s.output == "" && !s.push {
		return nil, errors.New("nothing to do: give -o FILE, -push or both")
	}
	var err error
	if s.ref, err = parseName(*tag); err != nil {
		return nil, err
	}
	for word := range strings.SplitSeq(*platforms, ",") {
		p, err := v1.ParsePlatform(word)
		if err != nil || p.Architecture == "" {
			return nil, fmt.Errorf("-platform %q: want os/architecture, as in linux/amd64", word)
		}
		s.platforms = append(s.platforms, p)
	}
	if len(s.platforms) > 1 && s.bill != "" && !strings.Contains(s.bill, arch) {
		return nil, fmt.Errorf("-sbom %q: the images of %d platforms have a file each: write %s into its name", s.bill, len(s.platforms), arch)
	}
	for _, arg := range flags.Args() {
		source, target, ok := strings.Cut(arg, "=")
		if !ok || source == "" || !strings.HasPrefix(target, "/") {
			return nil, fmt.Errorf("argument %q: want SOURCE=/TARGET", arg)
		}
		s.files = append(s.files, file{source, target})
	}
	return s, nil
}

// built is the image of a platform and its bill of materials.
type built struct {
	image    v1.Image
	platform *v1.Platform
	bill     []byte
}

// result is an image, or the images of several platforms and their index.
type result struct {
	images []built
	index  v1.ImageIndex // nil for one platform
}

func (r *result) digest() (v1.Hash, error) {
	if r.index != nil {
		return r.index.Digest()
	}
	return r.images[0].image.Digest()
}

// buildAll makes the images of all platforms.
func buildAll(s *settings, work string) (*result, error) {
	r := &result{}
	for _, p := range s.platforms {
		image, found, err := build(s.options, p, work)
		if err != nil {
			return nil, err
		}
		digest, err := image.Digest()
		if err != nil {
			return nil, err
		}
		bill, err := found.bill(s.ref, digest)
		if err != nil {
			return nil, err
		}
		r.images = append(r.images, built{image, p, bill})
	}
	if len(r.images) > 1 {
		r.index = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, i := range r.images {
			r.index = mutate.AppendManifests(r.index, mutate.IndexAddendum{Add: i.image, Descriptor: v1.Descriptor{Platform: i.platform}})
		}
	}
	return r, nil
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	s, err := parse(args)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "image-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	r, err := buildAll(s, work)
	if err != nil {
		return err
	}
	if s.output != "" {
		if err := writeLayout(s.output, s.ref.String(), r); err != nil {
			return err
		}
	}
	if s.bill != "" {
		for _, i := range r.images {
			if err := os.WriteFile(strings.ReplaceAll(s.bill, arch, i.platform.Architecture), i.bill, 0o644); err != nil {
				return err
			}
		}
	}
	if s.push {
		if err := push(ctx, s.ref, r); err != nil {
			return err
		}
	}
	if s.quiet {
		return nil
	}
	digest, err := r.digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s@%s\n", s.ref, digest)
	return err
}

// listOf appends each value of a repeated flag to list.
func listOf(form string, list *[]string) func(string) error {
	return func(s string) error {
		if name, _, ok := strings.Cut(s, "="); !ok || name == "" {
			return fmt.Errorf("want %s", form)
		}
		*list = append(*list, s)
		return nil
	}
}

// parseName demands registry and tag, because the defaults that tools fill in
// differ, and a node without the registry at hand finds an image only by its
// exact name.
func parseName(s string) (name.Tag, error) {
	ref, err := name.NewTag(s, name.StrictValidation)
	if err != nil {
		return name.Tag{}, fmt.Errorf("-t %q: want registry/repository:tag, as in ghcr.io/outrider-dev/outrider:dev: %w", s, err)
	}
	return ref, nil
}
