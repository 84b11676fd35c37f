// Package builtin holds the models that come with the binary, so that a first
// run and the tests need nothing else.
package builtin

import (
	"embed"
	"io/fs"
)

//go:embed gocode-7m gocode-7m-eagle3
var files embed.FS

// Names are the models to serve, in order; draft heads are not among them.
func Names() []string { return []string{"gocode-7m"} }

// drafts are the heads that were trained for a model.
var drafts = map[string]string{"gocode-7m": "gocode-7m-eagle3"}

// Open is the folder of a model or a draft head, in Hugging Face layout; the
// error is fs.ErrNotExist's for an unknown name.
func Open(name string) (fs.FS, error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if _, err := fs.Stat(files, name+"/config.json"); err != nil {
		return nil, err
	}
	return fs.Sub(files, name)
}

// Draft is the name of the model's draft head, if it has one.
func Draft(name string) (string, bool) {
	d, ok := drafts[name]
	return d, ok
}
