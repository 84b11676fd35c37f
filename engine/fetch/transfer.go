package fetch

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrider-dev/outrider/engine/fault"
)

// errStalled is the cause of a connection's end that gave no byte for long.
var errStalled = errors.New("no byte came for too long")

// errChecksum is a file that is not what the source says that it has.
var errChecksum = errors.New("checksum")

// A laterError is one after which the source wants to be left alone for a while.
type laterError struct {
	error
	after time.Duration
}

func (e laterError) Unwrap() error { return e.error }

// all brings files to their places, some at once. advance gets each byte of a
// file once, however often it comes.
func (d *downloader) all(ctx context.Context, root *os.Root, files []file, advance func(int64), done func()) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, f := range files {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			t := &transfer{downloader: d, file: f, root: root, count: advance}
			if err := t.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			done()
			return nil
		})
	}
	return g.Wait()
}

// A transfer brings one file.
type transfer struct {
	*downloader
	file  file
	root  *os.Root
	count func(int64)
	top   int64 // bytes that were counted
}

// run tries until the file is there. A try that got further, begins the count
// of tries anew.
func (t *transfer) run(ctx context.Context) error {
	if info, err := t.root.Stat(t.file.name); err == nil && info.Mode().IsRegular() && info.Size() == t.file.size {
		t.reached(t.file.size)
		return nil // checked before it got its name
	}
	if dir := path.Dir(t.file.name); dir != "." {
		if err := t.root.MkdirAll(dir, 0o755); err != nil {
			return diskError(err)
		}
	}
	for try := 1; ; try++ {
		top := t.top
		err := t.once(ctx)
		if err == nil {
			return nil
		}
		if t.top > top && !errors.Is(err, errChecksum) {
			try = 1
		}
		if err := t.pause(ctx, err, try, maxTries); err != nil {
			return err
		}
		t.Log.Warn("download goes on after a break", "file", t.file.name, "bytes_done", t.top, "error", err)
	}
}

// pause waits before the next try, or says why there is none.
func (d *downloader) pause(ctx context.Context, err error, try, tries int) error {
	var final *fault.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &final):
		return err
	case try >= tries:
		return fmt.Errorf("%w (tried %d times)", err, try)
	}
	wait := min(d.backoff<<(try-1), maxBackoff)
	wait = wait/2 + rand.N(wait/2+1) // pods that began together do not come back together
	var later laterError
	if errors.As(err, &later) {
		wait = max(wait, min(later.after, 2*maxBackoff))
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
		return nil
	}
}

// reached counts the bytes up to n of the file.
func (t *transfer) reached(n int64) {
	t.count(max(n-t.top, 0))
	t.top = max(t.top, n)
}

// once brings what is missing of the file, checks it and gives it its name.
func (t *transfer) once(ctx context.Context) (err error) {
	name := t.file.name + partSuffix
	part, err := t.root.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return diskError(err)
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	sum := t.newHash()
	offset, err := t.kept(ctx, part, sum)
	if err != nil {
		return err
	}
	if offset < t.file.size {
		if err := t.receive(ctx, part, sum, offset); err != nil {
			return err
		}
	}
	if want := t.want(); want != "" && hex.EncodeToString(sum.Sum(nil)) != want {
		if err := part.Truncate(0); err != nil {
			return diskError(err)
		}
		return fmt.Errorf("%w %x is not %s, which the source names", errChecksum, sum.Sum(nil), want)
	}
	if err := part.Sync(); err != nil {
		return diskError(err)
	}
	return diskError(t.root.Rename(name, t.file.name))
}

func (t *transfer) want() string {
	if t.file.sha256 != "" {
		return t.file.sha256
	}
	return t.file.blob
}

// newHash is the hash of want, of no byte yet.
func (t *transfer) newHash() hash.Hash {
	if t.file.sha256 != "" || t.file.blob == "" {
		return sha256.New()
	}
	h := sha1.New() // git's
	t.reset(h)
	return h
}

// reset takes a hash back to no byte: git's counts the length first.
func (t *transfer) reset(h hash.Hash) {
	h.Reset()
	if t.file.sha256 == "" && t.file.blob != "" {
		fmt.Fprintf(h, "blob %d\x00", t.file.size)
	}
}

// kept hashes what an earlier try has left, and is its length. More than the
// file has is of another one.
func (t *transfer) kept(ctx context.Context, part *os.File, sum hash.Hash) (int64, error) {
	n, err := io.Copy(sum, &cancelled{ctx, io.LimitReader(part, t.file.size+1)})
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, diskError(err)
	}
	if n > t.file.size {
		return 0, t.restart(part, sum)
	}
	t.reached(n)
	return n, nil
}

// cancelled is a reader that ends with its context.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

// restart empties the file.
func (t *transfer) restart(part *os.File, sum hash.Hash) error {
	if err := part.Truncate(0); err != nil {
		return diskError(err)
	}
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return diskError(err)
	}
	t.reset(sum)
	return nil
}

// receive appends what the source sends from offset on.
func (t *transfer) receive(ctx context.Context, part *os.File, sum hash.Hash, offset int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(t.stall, func() { cancel(errStalled) })
	defer watch.Stop()
	body, start, err := t.remote.open(ctx, t.file, offset)
	if errors.Is(err, errRange) { // what is there cannot be gone on from
		return errors.Join(err, part.Truncate(0))
	}
	if err != nil {
		return cause(ctx, err)
	}
	defer func() { _ = body.Close() }()
	if start != offset {
		if start != 0 {
			return fmt.Errorf("the source sends from byte %d on: asked for was %d", start, offset)
		}
		if err := t.restart(part, sum); err != nil {
			return err
		}
		offset = 0
	}
	buf := make([]byte, 1<<18)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			watch.Reset(t.stall)
			if offset += int64(n); offset > t.file.size {
				return errors.Join(fmt.Errorf("the source sends more than the %d bytes that it lists", t.file.size), part.Truncate(0))
			}
			if _, err := part.Write(buf[:n]); err != nil {
				return diskError(err)
			}
			sum.Write(buf[:n])
			t.reached(offset)
		}
		switch {
		case errors.Is(err, io.EOF) && offset < t.file.size:
			return fmt.Errorf("the connection ended after %d of %d bytes", offset, t.file.size)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return cause(ctx, quiet(err))
		}
	}
}

// cause prefers a context's own reason, which a client's error hides.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); errors.Is(c, errStalled) {
		return c
	}
	return err
}
