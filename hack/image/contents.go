package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/textproto"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// roots is the module that the certificate authorities are of.
const roots = "golang.org/x/crypto/x509roots/fallback"

// contents is what an image consists of: programs in Go with their modules,
// Debian's packages, Python's wheels and the certificate authorities.
type contents struct {
	platform   *v1.Platform
	components map[string]cyclonedx.Component // by package URL
	uses       map[string][]string            // package URLs of what a program is linked of
}

// add takes in the entries of a layer.
func (c *contents) add(entries map[string]entry) error {
	if c.components == nil {
		c.components, c.uses = map[string]cyclonedx.Component{}, map[string][]string{}
	}
	id, release := distribution(entries)
	for _, p := range slices.Sorted(maps.Keys(entries)) {
		e := entries[p]
		var err error
		switch {
		case e.link != "":
		case path.Dir(p) == "var/lib/dpkg/status.d":
			err = c.addPackage(e, func(h textproto.MIMEHeader) string {
				return fmt.Sprintf("pkg:deb/%s/%s@%s?arch=%s&distro=%s-%s", id, h.Get("Package"), version(h), h.Get("Architecture"), id, release)
			})
		case path.Base(p) == "METADATA" && strings.HasSuffix(path.Dir(p), ".dist-info"):
			err = c.addPackage(e, func(h textproto.MIMEHeader) string {
				return fmt.Sprintf("pkg:pypi/%s@%s", strings.ToLower(h.Get("Name")), version(h))
			})
		case p == certificates:
			err = c.addRoots()
		case e.source != "" && e.mode&0o111 != 0:
			err = c.addProgram(p, e)
		}
		if err != nil {
			return fmt.Errorf("what /%s of the image is made of: %w", p, err)
		}
	}
	return nil
}

// distribution is the name and the release in the entries' os-release.
func distribution(entries map[string]entry) (id, release string) {
	id, release = "debian", "unknown"
	b, err := entries["usr/lib/os-release"].read()
	if err != nil {
		return id, release
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "VERSION_ID":
			release = value
		}
	}
	return id, release
}

func (e entry) read() ([]byte, error) {
	if e.source == "" {
		return e.content, nil
	}
	return os.ReadFile(e.source)
}

func version(h textproto.MIMEHeader) string { return escape(h.Get("Version")) }

// escape makes s a part of a package URL.
func escape(s string) string { return strings.ReplaceAll(url.PathEscape(s), "+", "%2B") }

// addPackage adds the package that a file of fields ("Name: value") describes.
func (c *contents) addPackage(e entry, purl func(textproto.MIMEHeader) string) error {
	b, err := e.read()
	if err != nil {
		return err
	}
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(b))).ReadMIMEHeader()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	named := h.Get("Package") + h.Get("Name")
	if named == "" || h.Get("Version") == "" {
		return errors.New("it names no package and version")
	}
	component := cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, Name: named, Version: h.Get("Version"), PackageURL: purl(h)}
	for _, field := range []string{"License-Expression", "License"} {
		if l := h.Get(field); l != "" {
			component.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{Name: l}}}
			break
		}
	}
	c.put(component)
	return nil
}

// addProgram adds a program in Go and its modules; other executables are of packages.
func (c *contents) addProgram(p string, e entry) error {
	info, err := buildinfo.ReadFile(e.source)
	if err != nil {
		return nil // no program in Go
	}
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	ref := "file:/" + p
	c.components[ref] = cyclonedx.Component{
		Type: cyclonedx.ComponentTypeApplication, BOMRef: ref, Name: info.Path,
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum.Sum(nil))}},
		Properties: &[]cyclonedx.Property{{Name: "path", Value: "/" + p}, {Name: "toolchain", Value: info.GoVersion}},
	}
	c.uses[ref] = []string{c.putModule("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c.uses[ref] = append(c.uses[ref], c.putModule(m.Path, m.Version))
	}
	return nil
}

// addRoots adds the module of the certificate authorities, as this program is
// linked with it.
func (c *contents) addRoots() error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program was built without modules")
	}
	for _, m := range info.Deps {
		if m.Path == roots || m.Path == path.Dir(roots) {
			c.putModule(m.Path, m.Version)
			return nil
		}
	}
	return fmt.Errorf("this program is not linked with %s", roots)
}

func (c *contents) putModule(module, version string) string {
	return c.put(cyclonedx.Component{
		Type: cyclonedx.ComponentTypeLibrary, Name: module, Version: version, PackageURL: "pkg:golang/" + module + "@" + escape(version),
	})
}

func (c *contents) put(component cyclonedx.Component) string {
	component.BOMRef = component.PackageURL
	c.components[component.BOMRef] = component
	return component.BOMRef
}

// bill is the bill of materials of the image with a name and a digest, in
// CycloneDX's JSON. The same image has the same one: it has no time and no
// serial number.
func (c *contents) bill(ref name.Tag, digest v1.Hash) ([]byte, error) {
	base := path.Base(ref.RepositoryStr())
	image := cyclonedx.Component{
		BOMRef: "image", Type: cyclonedx.ComponentTypeContainer, Name: ref.Context().Name(), Version: ref.TagStr(),
		PackageURL: fmt.Sprintf("pkg:oci/%s@%s?arch=%s&repository_url=%s&tag=%s", base, url.QueryEscape(digest.String()),
			c.platform.Architecture, url.QueryEscape(ref.Context().Name()), url.QueryEscape(ref.TagStr())),
	}
	var components []cyclonedx.Component
	var dependencies []cyclonedx.Dependency
	linked := map[string]bool{}
	for _, ref := range slices.Sorted(maps.Keys(c.components)) {
		components = append(components, c.components[ref])
		if uses := c.uses[ref]; len(uses) > 0 {
			slices.Sort(uses)
			uses = slices.Compact(uses)
			dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &uses})
			for _, u := range uses {
				linked[u] = true
			}
		}
	}
	var direct []string
	for _, component := range components {
		if !linked[component.BOMRef] {
			direct = append(direct, component.BOMRef)
		}
	}
	dependencies = append(dependencies, cyclonedx.Dependency{Ref: image.BOMRef, Dependencies: &direct})
	b := cyclonedx.NewBOM()
	b.Metadata = &cyclonedx.Metadata{Component: &image}
	b.Components, b.Dependencies = &components, &dependencies
	var out bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(b)
	return out.Bytes(), err
}
