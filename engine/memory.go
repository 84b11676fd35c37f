package engine

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/model"
)

// memoryLimit is how many bytes this process may use: its control group's
// limit, of either version, or the machine's memory; 0 when neither is known.
func memoryLimit() int64 {
	limit := int64(0)
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
			limit = n
		}
	}
	total := totalMemory()
	if limit == 0 || total > 0 && total < limit {
		return total // without a limit the file holds "max" or a number beyond any memory
	}
	return limit
}

func totalMemory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// kvBytes is the size of one position in the caches of all ranks: keys and
// values of element bytes a number, key-value heads copied where ranks outnumber them.
func kvBytes(c *model.Config, layers, ranks int, element int64) int64 {
	return 2 * element * int64(layers) * int64(max(c.KVHeads, ranks)) * int64(c.HeadDim)
}

// workspaces are the bytes that all ranks' workspaces take with so many running
// requests and rows of prompts in a pass.
type workspaces func(running, chunk int) int64

// planPages is the size of the KV pool: room for every running request at full
// length (or for MaxTotalTokens) if that fits, and at least for one. weights is
// the size of the model files and work that of the workspaces;
// --mem-fraction-static is the share of the device's memory, if that is known,
// which these and the cache may take.
func planPages(c, draft *model.Config, cfg Config, contextLength int, weights int64, work workspaces, on backend) (int, error) {
	nodes := int64(max(cfg.Nodes, 1))
	position := kvBytes(c, c.Layers, cfg.TPSize, on.cacheElement())
	if draft != nil {
		position += kvBytes(draft, draft.Layers, cfg.TPSize, on.cacheElement())
	}
	// This node's part: every one has as many ranks.
	part := func(all int64) int64 { return (all + nodes - 1) / nodes }
	p := memoryPlan{
		cfg: cfg, on: on, length: contextLength, one: int64((contextLength + cfg.PageSize - 1) / cfg.PageSize),
		weights: part(weights), page: part(position) * int64(cfg.PageSize),
		work: func(running, chunk int) int64 { return part(work(running, chunk)) },
	}
	most := p.one * int64(cfg.MaxRunningRequests)
	if cfg.MaxTotalTokens > 0 {
		most = int64(cfg.MaxTotalTokens / cfg.PageSize)
		if most < p.one {
			return 0, fault.Errorf(fault.InvalidConfig, "--max-total-tokens is %d: one request of --context-length %d takes %d pages of --page-size %d: allowed is %d or more",
				cfg.MaxTotalTokens, contextLength, p.one, cfg.PageSize, p.one*int64(cfg.PageSize))
		}
	}
	if on.memory == 0 {
		return int(min(most, max(p.one, (1<<30)/p.page))), nil
	}
	if fits := p.fits(); fits >= p.one {
		return int(min(most, fits)), nil
	}
	return 0, p.short()
}

// memoryPlan is what a node's memory must hold, in bytes.
type memoryPlan struct {
	cfg           Config
	on            backend
	length        int   // of the longest request, in positions
	one           int64 // pages of such a request
	weights, page int64
	work          workspaces
}

// share is what --mem-fraction-static gives of the memory.
func (p *memoryPlan) share() int64 { return int64(float64(p.on.memory) * p.cfg.MemFractionStatic) }

// present is what the workspaces take as things are.
func (p *memoryPlan) present() int64 {
	return p.work(p.cfg.MaxRunningRequests, p.cfg.ChunkedPrefillSize)
}

// fits is how many pages have room; below 0 if not even the rest has.
func (p *memoryPlan) fits() int64 { return (p.share() - p.weights - p.present()) / p.page }

// short is the error of a plan without room for one request: what takes how much, and
// what, each by itself, would have it fit.
func (p *memoryPlan) short() error {
	what, work, fits := "the model does", p.present(), p.fits()
	switch {
	case fits >= 1:
		what = "the KV cache does"
	case work > p.weights:
		what = "the workspaces do"
	}
	of, ways := fmt.Sprintf("%d MiB", p.on.memory>>20), []string{fmt.Sprintf("more memory (%d MiB or more)", mib(int64(float64(p.weights+work+p.one*p.page)/p.cfg.MemFractionStatic)))}
	if p.on.where != "" {
		of = fmt.Sprintf("the %d MiB that are free on %s", p.on.memory>>20, p.on.where)
		ways = []string{"GPUs with more memory", "a larger --tp-size"}
	}
	if p.weights > work {
		ways = append(ways, "a model with quantised weights")
	}
	ways = append(ways, p.larger()...)
	ways = append(ways, p.cfg.lessWork(p.work, p.share()-p.weights-p.one*p.page)...)
	if fits >= 1 {
		ways = append(ways, fmt.Sprintf("--context-length %d at most", fits*int64(p.cfg.PageSize)))
	}
	return fault.Errorf(fault.OutOfMemory, "%s not fit: weights take %d MiB, workspaces %d MiB and one request of %d tokens %d MiB, but --mem-fraction-static %v of %s is %d MiB: give it %s",
		what, mib(p.weights), mib(work), p.length, mib(p.one*p.page), p.cfg.MemFractionStatic, of, p.share()>>20, either(ways))
}

// mostOfGPU is the largest --mem-fraction-static that is advised for GPUs, where more
// than a plan knows has its place: the kernels, and passes that are recorded.
const mostOfGPU = 0.95

// larger is the --mem-fraction-static or smaller cache that has one request fit, if any does.
func (p *memoryPlan) larger() (ways []string) {
	most := 1.0
	if p.on.where != "" {
		most = mostOfGPU
	}
	need := p.weights + p.present() + p.one*p.page
	if f := math.Ceil(100*float64(need)/float64(p.on.memory)) / 100; f <= most {
		ways = append(ways, fmt.Sprintf("--mem-fraction-static %v or more", f))
	}
	if !p.on.float8 && need-p.one*p.page*(p.on.element-1)/p.on.element <= p.share() {
		ways = append(ways, "--kv-cache-dtype fp8")
	}
	return ways
}

// lessWork are the flags that, each by itself, have workspaces take room bytes at most.
func (c Config) lessWork(work workspaces, room int64) (ways []string) {
	for _, f := range []struct {
		flag          string
		present, step int
		work          func(n int) int64
	}{
		{"--max-running-requests", c.MaxRunningRequests, 1, func(n int) int64 { return work(n, c.ChunkedPrefillSize) }},
		{"--chunked-prefill-size", c.ChunkedPrefillSize, 16, func(n int) int64 { return work(c.MaxRunningRequests, n) }},
	} {
		n := f.step * sort.Search(f.present/f.step, func(i int) bool { return f.work(f.step*(i+1)) > room })
		if n > 0 && n < f.present {
			ways = append(ways, fmt.Sprintf("%s %d at most", f.flag, n))
		}
	}
	return ways
}

// either are ways in words.
func either(ways []string) string {
	if len(ways) == 1 {
		return ways[0]
	}
	return strings.Join(ways[:len(ways)-1], ", ") + " or " + ways[len(ways)-1]
}

// mib is a size in MiB, rounded up: what is needed is never 0.
func mib(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
