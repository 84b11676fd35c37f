//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
)

// rotated is the bytes of different weights that a product is measured over: more
// than the card's second-level cache holds.
const rotated = 400 << 20

// measureProducts measures the products of a layer of a shape alone, each over weights
// that no cache holds, by rows of activations.
func measureProducts(s shape, formats []string, rows string) error {
	d, err := cuda.New(collective.NewLocal(1, 0)[0], cuda.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	rates, err := d.Measure()
	if err != nil {
		return err
	}
	kind := 0
	for _, format := range formats {
		for _, p := range []struct {
			name    string
			out, in int
		}{
			{"qkv", (s.heads + 2*s.kv) * s.dim, s.hidden}, {"o", s.hidden, s.heads * s.dim},
			{"gate, up", 2 * s.intermediate, s.hidden}, {"down", s.hidden, s.intermediate},
		} {
			all, bytes, err := weightsOf(d, format, p.out, p.in)
			if err != nil {
				return err
			}
			line := fmt.Sprintf("%-13s %-5s %-9s", s.name, format, p.name)
			for _, text := range strings.Split(rows, ",") {
				n, err := strconv.Atoi(text)
				if err != nil || n < 1 {
					return fmt.Errorf("-rows %q: must be numbers of 1 or more, separated by commas", rows)
				}
				x, y := d.NewTensor(n, p.in), d.NewTensor(n, p.out)
				var r compute.Rows
				for range n {
					r.Add(r.AddSequence([]int32{0}, 0), 0, 0, pageSize)
				}
				kind++
				for range 2 { // the second is recorded
					d.Run(compute.Pass{Kind: 1000 + kind, Rows: &r}, func(*compute.Rows, [2][]int32) {
						for _, w := range all {
							d.Linear(y, x, w, n)
						}
					})
				}
				us := d.Repeat(10).Seconds() * 1e6 / float64(len(all))
				line += fmt.Sprintf("  %d: %7.2f µs %5.1f %%", n, us, 100*bytes/rates.Read*1e6/us)
				if err := d.Err(); err != nil {
					return err
				}
			}
			fmt.Println(line)
		}
	}
	return nil
}

// weightsOf makes weights of a format, and says how many bytes one has.
func weightsOf(d *cuda.Device, format string, out, in int) (all []compute.Weight, bytes float64, err error) {
	fill := func(table []byte) compute.Fill {
		at := 0
		return func(_, _ int, dst []byte) error {
			for n := 0; n < len(dst); {
				k := copy(dst[n:], table[at%len(table):])
				n, at = n+k, at+k
			}
			return nil
		}
	}
	scales := func(_, _ int, dst []float32) error {
		for i := range dst {
			dst[i] = 0.004
		}
		return nil
	}
	q, table := compute.Quant{DType: compute.F8E4M3, Group: 128}, float8Table
	bytes = float64(out * in)
	switch format {
	case "bf16", "fp16":
		bytes *= 2
	case "fp8":
		bytes *= 1 + 4.0/128
	case "int4":
		q.DType, table = compute.I4, codeTable
		bytes *= 0.5 + 4.0/128
	default:
		return nil, 0, unknownFormat(format)
	}
	for total := 0.0; total < rotated; total += bytes {
		var w compute.Weight
		switch format {
		case "bf16":
			w, err = d.NewWeight(compute.BF16, out, in, fill(weightTable))
		case "fp16":
			w, err = d.NewWeight(compute.F16, out, in, fill(halfTable))
		default:
			w, err = d.NewQuantized(q, out, in, fill(table), scales)
		}
		if err != nil {
			return nil, 0, err
		}
		all = append(all, w)
	}
	return all, bytes, nil
}
