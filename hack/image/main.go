// Command image makes container images from files of this machine, with no
// container engine: a single layer, the same bytes for the same files.
//
//	image -o outrider.tar -t ghcr.io/outrider-dev/outrider:dev -entrypoint /outrider bin/outrider=/outrider
//	image -push -t registry.example.com/outrider:v1 -entrypoint /outrider bin/outrider=/outrider
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

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
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

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	output := flags.String("o", "", "tar `file` to write")
	push := flags.Bool("push", false, "push to the registry that the name says, with Docker's stored credentials")
	quiet := flags.Bool("q", false, "do not print the image's name and digest")
	tag := flags.String("t", "", "full image `name`, with registry and tag")
	platform := flags.String("platform", "linux/"+runtime.GOARCH, "`os/architecture` of the files")
	var o options
	flags.StringVar(&o.entrypoint, "entrypoint", "", "`command` to run, split at spaces")
	flags.StringVar(&o.user, "user", "65532:65532", "`user[:group]` to run as, in numbers, which Kubernetes' runAsNonRoot needs")
	flags.Func("env", "`NAME=value` in the environment; may be repeated", listOf("NAME=value", &o.env))
	flags.Func("label", "`name=value` of an image label; may be repeated", listOf("name=value", &o.labels))
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *output == "" && !*push {
		return errors.New("nothing to do: give -o FILE, -push or both")
	}
	ref, err := parseName(*tag)
	if err != nil {
		return err
	}
	if o.platform, err = v1.ParsePlatform(*platform); err != nil || o.platform.Architecture == "" {
		return fmt.Errorf("-platform %q: want os/architecture, as in linux/amd64", *platform)
	}
	for _, arg := range flags.Args() {
		source, target, ok := strings.Cut(arg, "=")
		if !ok || source == "" || !strings.HasPrefix(target, "/") {
			return fmt.Errorf("argument %q: want SOURCE=/TARGET", arg)
		}
		o.files = append(o.files, file{source, target})
	}
	image, err := build(o)
	if err != nil {
		return err
	}
	if *output != "" {
		if err := writeLayout(*output, ref.String(), image); err != nil {
			return err
		}
	}
	if *push {
		if err := remote.Write(ref, image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("pushing %s: %w (sign in with \"docker login %s\" or write ~/.docker/config.json)", ref, err, ref.RegistryStr())
		}
	}
	if *quiet {
		return nil
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s@%s\n", ref, digest)
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
