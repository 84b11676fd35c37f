package engine

import (
	"bufio"
	"fmt"
	"os"
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

// planPages is the size of the KV pool: room for every running request at full
// length (or for MaxTotalTokens) if that fits, and at least for one. weights is
// the size of the model files and work that of the workspaces;
// --mem-fraction-static is the share of the device's memory, if that is known,
// which these and the cache may take.
func planPages(c, draft *model.Config, cfg Config, contextLength int, weights, work int64, on backend) (int, error) {
	limit, nodes := on.memory, int64(max(cfg.Nodes, 1))
	position := kvBytes(c, c.Layers, cfg.TPSize, on.cacheElement())
	if draft != nil {
		position += kvBytes(draft, draft.Layers, cfg.TPSize, on.cacheElement())
	}
	// This node's part: every one has as many ranks.
	position, weights, work = (position+nodes-1)/nodes, (weights+nodes-1)/nodes, (work+nodes-1)/nodes
	page := position * int64(cfg.PageSize)
	one := int64((contextLength + cfg.PageSize - 1) / cfg.PageSize)
	most := one * int64(cfg.MaxRunningRequests)
	if cfg.MaxTotalTokens > 0 {
		most = int64(cfg.MaxTotalTokens / cfg.PageSize)
		if most < one {
			return 0, fault.Errorf(fault.InvalidConfig, "--max-total-tokens is %d: one request of --context-length %d takes %d pages of --page-size %d: allowed is %d or more",
				cfg.MaxTotalTokens, contextLength, one, cfg.PageSize, one*int64(cfg.PageSize))
		}
	}
	if limit == 0 {
		return int(min(most, max(one, (1<<30)/page))), nil
	}
	budget := int64(float64(limit)*cfg.MemFractionStatic) - weights - work
	fits := budget / page
	if fits >= one {
		return int(min(most, fits)), nil
	}
	said := fmt.Sprintf("weights take %d MiB, workspaces %d MiB and one request of %d tokens %d MiB, but --mem-fraction-static %v of %d MiB is %d MiB",
		weights>>20, work>>20, contextLength, one*page>>20, cfg.MemFractionStatic, limit>>20, int64(float64(limit)*cfg.MemFractionStatic)>>20)
	less := fmt.Sprintf("a smaller --max-running-requests than %d or --chunked-prefill-size than %d", cfg.MaxRunningRequests, cfg.ChunkedPrefillSize)
	switch {
	case fits >= 1:
		return 0, fault.Errorf(fault.OutOfMemory, "the KV cache does not fit: %s: give it more memory, %s, or --context-length %d at most", said, less, fits*int64(cfg.PageSize))
	case work > weights:
		return 0, fault.Errorf(fault.OutOfMemory, "the workspaces do not fit: %s: give it more memory, or %s", said, less)
	}
	return 0, fault.Errorf(fault.OutOfMemory, "the model does not fit: %s: give it more memory", said)
}
