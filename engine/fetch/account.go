package fetch

import (
	"io/fs"
	"os"
	"sync"
)

// account tells of a folder's download what is new, whoever brought it: first
// perhaps another process, for which this one waits, and then this one, which
// goes on where the other was stopped.
type account struct {
	opts Options

	mu       sync.Mutex
	expected bool
	files    []file // when expected
	bytes    int64  // that this process brought or found
	done     int    // files, likewise
	told     int64  // bytes
	toldDone int
}

// expect tells once what there is in all.
func (a *account) expect(files []file) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.expected {
		a.expected, a.files = true, files
		a.opts.Expect(sum(files), len(files))
	}
}

// advance counts bytes of this process's; those that were told before are a sign
// of life.
func (a *account) advance(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes += n
	a.opts.Advance(max(a.bytes-a.told, 0))
	a.told = max(a.told, a.bytes)
}

// finish counts a file of this process's.
func (a *account) finish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done++; a.done > a.toldDone {
		a.toldDone = a.done
		a.opts.Done()
	}
}

// observe tells what another process has brought since it was last looked at.
// Without news there is no sign of life.
func (a *account) observe(root *os.Root, l listing) {
	if !a.expected {
		files := l.small()
		weights, err := l.weights(func(name string) ([]byte, error) { return fs.ReadFile(root.FS(), name) })
		if err != nil {
			return // the index that names them is not there yet
		}
		a.expect(append(files, weights...))
	}
	bytes, done := present(root, a.files)
	a.mu.Lock()
	defer a.mu.Unlock()
	if bytes > a.told {
		a.opts.Advance(bytes - a.told)
		a.told = bytes
	}
	for ; a.toldDone < done; a.toldDone++ {
		a.opts.Done()
	}
}
