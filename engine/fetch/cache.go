package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/engine/fault"
)

const (
	markerFile = ".complete" // in a version's folder: its files are all there
	lockSuffix = ".lock"     // beside a version's folder
	refPrefix  = ".ref-"     // beside the folders: the version that a reference had last
	partSuffix = ".partial"  // of a file that is not complete
	maxMarker  = 64 << 20
	maxRefFile = 256
)

// marker is the content of markerFile: sizes by file.
type marker map[string]int64

// complete tells whether a folder's files are all there, each of its size. The
// marker is written last and at once.
func complete(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, markerFile))
	if err != nil || info.Size() > maxMarker {
		return false
	}
	b, err := os.ReadFile(filepath.Join(dir, markerFile))
	var m marker
	if err != nil || json.Unmarshal(b, &m) != nil || len(m) == 0 {
		return false
	}
	files := dirFS(dir)
	for name, size := range m {
		if info, err := fs.Stat(files, name); err != nil || info.Size() != size {
			return false
		}
	}
	return true
}

func writeMarker(root *os.Root, files []file) error {
	m := marker{}
	for _, f := range files {
		m[f.name] = f.size
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := root.OpenFile(markerFile+partSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return diskError(err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = root.Rename(markerFile+partSuffix, markerFile)
	}
	return diskError(err)
}

// readRef is the version that a reference had last, if it is complete.
func readRef(base, ref string) string {
	info, err := os.Stat(filepath.Join(base, refPrefix+ref))
	if err != nil || info.Size() > maxRefFile {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(base, refPrefix+ref))
	version := strings.TrimSpace(string(b))
	if err != nil || strings.Contains(version, "/") || !usable(version) || !complete(filepath.Join(base, version)) {
		return ""
	}
	return version
}

func writeRef(base, ref, version string) error {
	if readRef(base, ref) == version {
		return nil
	}
	f, err := os.CreateTemp(base, refPrefix+"*"+partSuffix)
	if err != nil {
		return err
	}
	_, err = f.WriteString(version + "\n")
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(base, refPrefix+ref))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is of no use, and the error is told
	}
	return err
}

// lock waits until no other process downloads into dir, and looks meanwhile how
// far that one is. The kernel releases the lock of a process that dies.
func (d *downloader) lock(ctx context.Context, dir string, look func()) (unlock func(), err error) {
	f, err := os.OpenFile(dir+lockSuffix, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, diskError(err)
	}
	tick := time.NewTicker(lockedCheck)
	defer tick.Stop()
	for waited := false; ; waited = true {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fault.Errorf(fault.FetchFailed, "%s: cannot be locked: %w: the cache folder must be on a file system with locks", f.Name(), err)
		}
		if !waited {
			d.Log.Info("another process downloads the model: waiting for it", "folder", dir)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-tick.C:
			look()
			if complete(dir) {
				_ = f.Close()
				return func() {}, nil
			}
		}
	}
}

// space refuses a download that does not fit.
func space(dir string, need int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return nil //nolint:nilerr // not every file system tells: the write will
	}
	if free := float64(s.Bavail) * float64(s.Bsize); float64(need) > free {
		return fault.Errorf(fault.NoSpace, "%d MB are to be downloaded, but %s has %d MB free: make room, or give another folder with --download-dir", (need+1e6-1)/1e6, dir, int64(free/1e6))
	}
	return nil
}

// diskError gives an error of the cache folder its reason.
func diskError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.Errorf(fault.NoSpace, "the cache folder is full: %w: make room, or give another folder with --download-dir", err)
	}
	return fault.Errorf(fault.FetchFailed, "the cache folder cannot be written: %w: give a folder that user %d may write with --download-dir", err, os.Getuid())
}
