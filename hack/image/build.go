package main

import (
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of everything in an image, so that the time of a build
// leaves no trace in it.
var epoch = time.Unix(0, 0).UTC()

// A file goes from source on this machine, a file or a folder, to target.
type file struct{ source, target string }

type options struct {
	entrypoint  string
	user        string
	env, labels []string
	trees       []string // folders that are layers of their own, the lowest first
	files       []file
}

// arch stands for the architecture in the names of files and folders.
const arch = "{arch}"

// forPlatform are the options with the names of a platform's files.
func (o options) forPlatform(p *v1.Platform) options {
	o.trees, o.files = slices.Clone(o.trees), slices.Clone(o.files)
	for i := range o.trees {
		o.trees[i] = strings.ReplaceAll(o.trees[i], arch, p.Architecture)
	}
	for i := range o.files {
		o.files[i].source = strings.ReplaceAll(o.files[i].source, arch, p.Architecture)
	}
	return o
}

// build makes the image of a platform, and says what it consists of. Layers lie
// in the folder work as long as the image is used.
func build(o options, p *v1.Platform, work string) (v1.Image, *contents, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	found := &contents{platform: p}
	add := func(entries map[string]entry, folders ...string) error {
		if err := found.add(entries); err != nil {
			return err
		}
		l, err := newLayer(work, entries, folders...)
		if err != nil {
			return err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:   l,
			History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "outrider hack/image"},
		})
		return err
	}
	o = o.forPlatform(p)
	for _, tree := range o.trees {
		entries, err := collectTree(tree)
		if err != nil {
			return nil, nil, err
		}
		if err := add(entries); err != nil {
			return nil, nil, err
		}
	}
	entries, err := collect(o.files)
	if err != nil {
		return nil, nil, err
	}
	if err := add(entries, "tmp"); err != nil {
		return nil, nil, err
	}
	image, err = configure(image, o, p)
	return image, found, err
}

// configure sets how containers of the image run.
func configure(image v1.Image, o options, p *v1.Platform) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Created = v1.Time{Time: epoch}
	config.Config = v1.Config{
		Entrypoint: strings.Fields(o.entrypoint),
		Env:        append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/", "SSL_CERT_FILE=/" + certificates}, o.env...),
		User:       o.user,
		WorkingDir: "/",
	}
	for _, l := range o.labels {
		if config.Config.Labels == nil {
			config.Config.Labels = map[string]string{}
		}
		name, value, _ := strings.Cut(l, "=")
		config.Config.Labels[name] = value
	}
	return mutate.ConfigFile(image, config)
}
