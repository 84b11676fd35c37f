package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

// Options say where downloads go and how they are let in. Zero values mean the
// default.
type Options struct {
	Dir      string // cache folder; DefaultDir
	Endpoint string // of hf://; DefaultEndpoint
	Token    string // of hf://; empty: none
	Log      *slog.Logger

	// Expect is told what a model has to download, once for each model, and
	// Advance of bytes that are there, also of those from an earlier try. Bytes
	// that come again are 0: a sign of life.
	Expect  func(bytes int64, files int)
	Advance func(bytes int64)
	Done    func() // of a file

	stall   time.Duration // without a byte, after which a connection is given up
	backoff time.Duration // before the second try; then twice as long each time
}

const (
	parallel    = 8 // files at once
	maxTries    = 6 // without a byte of progress
	maxBackoff  = 30 * time.Second
	lockedCheck = 100 * time.Millisecond
)

// DefaultDir is the cache folder unless another is given.
func DefaultDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "outrider", "models")
}

func (o Options) withDefaults() Options {
	if o.Dir == "" {
		o.Dir = DefaultDir()
	}
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Expect == nil {
		o.Expect = func(int64, int) {}
	}
	if o.Advance == nil {
		o.Advance = func(int64) {}
	}
	if o.Done == nil {
		o.Done = func() {}
	}
	if o.stall == 0 {
		o.stall = time.Minute
	}
	if o.backoff == 0 {
		o.backoff = 500 * time.Millisecond
	}
	return o
}

// remote is a folder at a source. Its errors are fault.Error where trying again
// is of no use, and any other where it may be.
type remote interface {
	// key is where its versions lie in the cache: a path of plain names.
	key() string
	// pinned is the version that the reference itself names, or empty.
	pinned() string
	// ref names the reference's version in the cache: a plain name.
	ref() string
	list(ctx context.Context) (listing, error)
	// open reads a file from an offset on; start is where the body begins, since
	// a source may not know ranges.
	open(ctx context.Context, f file, offset int64) (body io.ReadCloser, start int64, err error)
}

// download brings a remote folder into the cache, and is its path.
func download(ctx context.Context, ref string, opts Options) (string, error) {
	opts = opts.withDefaults()
	var r remote
	var err error
	if strings.HasPrefix(ref, hubScheme) {
		r, err = newHub(ref, opts)
	} else {
		r, err = newS3(ref, os.Getenv)
	}
	if err != nil {
		return "", err
	}
	d := &downloader{Options: opts, remote: r, account: account{opts: opts}}
	dir, err := d.folder(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s: %w", ref, ctx.Err())
		}
		reason := fault.FetchFailed
		var f *fault.Error
		if errors.As(err, &f) {
			reason = f.Reason
		}
		return "", fault.Errorf(reason, "%s: %w", ref, err)
	}
	return dir, nil
}

// A downloader brings one remote folder into the cache.
type downloader struct {
	Options
	remote  remote
	account account
}

// folder is the folder that holds all files.
func (d *downloader) folder(ctx context.Context) (string, error) {
	base := filepath.Join(d.Dir, filepath.FromSlash(d.remote.key()))
	if v := d.remote.pinned(); v != "" && complete(filepath.Join(base, v)) {
		d.Log.Info("model is in the cache", "folder", filepath.Join(base, v))
		return filepath.Join(base, v), nil
	}
	known := readRef(base, d.remote.ref())
	l, err := d.listed(ctx, known != "")
	var final *fault.Error
	switch {
	case err != nil && ctx.Err() == nil && known != "" && !errors.As(err, &final):
		d.Log.Warn("the source cannot be reached: the version that it had last is served", "folder", filepath.Join(base, known), "error", err)
		return filepath.Join(base, known), nil
	case err != nil:
		return "", err
	}
	dir := filepath.Join(base, l.version)
	if !complete(dir) {
		if err := d.fill(ctx, dir, l); err != nil {
			return "", err
		}
	} else {
		d.Log.Info("model is in the cache", "folder", dir)
	}
	if err := writeRef(base, d.remote.ref(), l.version); err != nil {
		d.Log.Debug("the version is not noted", "error", err) // a cache that is mounted read-only
	}
	return dir, nil
}

// listed asks the source what there is. With something to fall back on it does
// not try long.
func (d *downloader) listed(ctx context.Context, fallback bool) (l listing, err error) {
	tries := maxTries
	if fallback {
		tries = 3
	}
	for try := 1; ; try++ {
		one, cancel := context.WithTimeout(ctx, d.stall)
		l, err = d.remote.list(one)
		cancel()
		if err == nil {
			break
		}
		if e := d.pause(ctx, err, try, tries); e != nil {
			return l, e
		}
	}
	if err := l.check(); err != nil {
		return l, fault.Errorf(fault.FetchFailed, "the source's list of files is refused: %w", err)
	}
	if _, ok := l.find("config.json"); !ok {
		return l, fault.Errorf(fault.ModelNotFound, "there is no config.json: give the folder of a model in Hugging Face layout")
	}
	return l, nil
}

// fill brings the files of a listing into dir, alone among all processes.
func (d *downloader) fill(ctx context.Context, dir string, l listing) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return diskError(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return diskError(err)
	}
	defer func() { _ = root.Close() }()
	unlock, err := d.lock(ctx, dir, func() { d.account.observe(root, l) })
	if err != nil {
		return err
	}
	defer unlock()
	if complete(dir) { // by who had the lock before
		d.account.observe(root, l)
		return nil
	}
	start := time.Now()
	small := l.small()
	early := func(int64) { d.Advance(0) } // how much there is in all, the small files tell
	if err := d.all(ctx, root, small, early, func() {}); err != nil {
		return err
	}
	weights, err := l.weights(func(name string) ([]byte, error) { return fs.ReadFile(root.FS(), name) })
	if err != nil {
		return err
	}
	files := append(small, weights...)
	total := sum(files)
	there, _ := present(root, files)
	if err := space(dir, total-there); err != nil {
		return err
	}
	d.account.expect(files)
	d.Log.Info("downloading", "files", len(files), "bytes", total, "folder", dir)
	d.account.advance(sum(small))
	for range small {
		d.account.finish()
	}
	if err := d.all(ctx, root, weights, d.account.advance, d.account.finish); err != nil {
		return err
	}
	d.Log.Info("downloaded", "bytes", total, "seconds", time.Since(start).Seconds())
	return writeMarker(root, files)
}

func sum(files []file) (n int64) {
	for _, f := range files {
		n += f.size
	}
	return n
}

// present are the bytes that are there of files, and how many of them are whole.
func present(root *os.Root, files []file) (n int64, whole int) {
	for _, f := range files {
		for i, name := range []string{f.name, f.name + partSuffix} {
			if info, err := root.Stat(filepath.FromSlash(name)); err == nil && info.Mode().IsRegular() {
				n += min(info.Size(), f.size)
				if i == 0 {
					whole++
				}
				break
			}
		}
	}
	return n, whole
}

// plain makes one file name of any text: what is no letter, digit, "-", "_" or
// "." becomes %XX.
func plain(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
