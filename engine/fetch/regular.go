package fetch

import (
	"errors"
	"io/fs"
	"os"
)

// regular is a folder of the machine. What is neither a file nor a folder in it
// is not opened: opening a pipe would wait for somebody to write.
type regular struct{ fs.FS }

func (r regular) Open(name string) (fs.File, error) {
	info, err := r.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("a pipe, a socket or a device: it must be a regular file")}
	}
	return r.FS.Open(name)
}

// Stat implements fs.StatFS.
func (r regular) Stat(name string) (fs.FileInfo, error) { return fs.Stat(r.FS, name) }

// dirFS is os.DirFS without what is no regular file.
func dirFS(dir string) fs.FS { return regular{os.DirFS(dir)} }
