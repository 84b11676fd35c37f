// Package fetch finds a model's files by the reference that a user gives, and
// downloads them into a cache where they are elsewhere.
package fetch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
)

// Builtin begins the reference of a model that comes with the binary.
const Builtin = "builtin:"

// Source is a model folder.
type Source struct {
	Name  string // the reference, for messages
	Files fs.FS
}

// Open finds the model of a reference: a folder, builtin:NAME, or
// hf://OWNER/NAME[@REVISION] or s3://BUCKET/PREFIX, which it downloads into the
// cache unless they are there. Errors have the reasons ModelNotFound, Unauthorized, FetchFailed,
// NoSpace, InvalidConfig and Unsupported.
func Open(ctx context.Context, ref string, opts Options) (Source, error) {
	if name, ok := strings.CutPrefix(ref, Builtin); ok {
		files, err := builtin.Open(name)
		if err != nil {
			return Source{}, fault.Errorf(fault.ModelNotFound, "%s: no such model in this binary: there is %s%s",
				ref, Builtin, strings.Join(builtin.Names(), ", "+Builtin))
		}
		return Source{ref, files}, nil
	}
	if IsRemote(ref) {
		dir, err := download(ctx, ref, opts)
		if err != nil {
			return Source{}, err
		}
		return Source{ref, dirFS(dir)}, nil
	}
	if scheme, _, ok := strings.Cut(ref, "://"); ok {
		return Source{}, fault.Errorf(fault.Unsupported, "%s: sources of the kind %q are not supported by this version: give a folder, %sOWNER/NAME, %sBUCKET/PREFIX, or %s%s",
			ref, scheme+"://", hubScheme, s3Scheme, Builtin, builtin.Names()[0])
	}
	return folder(ref)
}

// IsRemote tells whether the model of a reference is elsewhere, and is
// downloaded.
func IsRemote(ref string) bool {
	return strings.HasPrefix(ref, hubScheme) || strings.HasPrefix(ref, s3Scheme)
}

// Download brings the model of a reference that IsRemote into the cache, unless
// it is there, and is the path of its folder from the cache folder on. Errors
// are those of Open.
func Download(ctx context.Context, ref string, opts Options) (string, error) {
	opts = opts.withDefaults()
	if !IsRemote(ref) {
		return "", fault.Errorf(fault.InvalidConfig, "%.300q is not downloaded: give %sOWNER/NAME[@REVISION] or %sBUCKET/PREFIX", ref, hubScheme, s3Scheme)
	}
	dir, err := download(ctx, ref, opts)
	if err != nil {
		return "", err
	}
	return filepath.Rel(opts.Dir, dir)
}

func folder(path string) (Source, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Source{}, fault.Errorf(fault.ModelNotFound, "%s: no such folder: give a model folder in Hugging Face layout, or %s%s", path, Builtin, builtin.Names()[0])
	case errors.Is(err, fs.ErrPermission):
		return Source{}, fault.Errorf(fault.Unauthorized, "%s: permission denied: the folder must be readable for user %d", path, os.Getuid())
	case err != nil:
		return Source{}, fault.Errorf(fault.FetchFailed, "%s: %w", path, err)
	case !info.IsDir():
		return Source{}, fault.Errorf(fault.ModelNotFound, "%s is a file: give the model folder that has config.json in it", path)
	}
	files := dirFS(path)
	if _, err := fs.Stat(files, "config.json"); errors.Is(err, fs.ErrPermission) {
		return Source{}, fault.Errorf(fault.Unauthorized, "%s: permission denied: the files must be readable for user %d", filepath.Join(path, "config.json"), os.Getuid())
	}
	return Source{path, files}, nil
}

// DefaultDraft is the reference of the draft head that comes with a builtin model.
func DefaultDraft(ref string) (string, bool) {
	name, ok := strings.CutPrefix(ref, Builtin)
	if !ok {
		return "", false
	}
	draft, ok := builtin.Draft(name)
	return Builtin + draft, ok
}

// ServedName is what clients call the model of a reference unless told otherwise.
func ServedName(ref string) string {
	if name, ok := strings.CutPrefix(ref, Builtin); ok {
		return name
	}
	if strings.HasPrefix(ref, hubScheme) {
		repo, _ := splitHub(ref)
		return path.Base(repo)
	}
	if abs, err := filepath.Abs(ref); err == nil {
		ref = abs
	}
	return filepath.Base(ref)
}
