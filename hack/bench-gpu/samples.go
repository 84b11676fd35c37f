//go:build linux

package main

import (
	"fmt"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// samples measures plain decoding with the settings that clients have, drawn on
// the device and, from the logits, by the host.
func (b *bench) samples() error {
	prompt := make([]int32, contextLength)
	for i := range prompt {
		prompt[i] = int32(i*31) % 5000
	}
	for _, n := range []int{1, 64} {
		for _, s := range []struct {
			name string
			p    sampling.Params
			tops int
		}{
			{"temperature 1", sampling.Params{Temperature: 1, TopP: 1}, -1},
			{"top-p 0.95", sampling.Params{Temperature: 0.7, TopP: 0.95}, -1},
			{"top-k 40, min-p 0.05", sampling.Params{Temperature: 1, TopP: 1, TopK: 40, MinP: 0.05}, -1},
			{"penalties, top-p 0.95", sampling.Params{Temperature: 0.7, TopP: 0.95, Repetition: 1.1, Presence: 0.5}, -1},
			{"5 log probabilities", sampling.Params{Temperature: 1, TopP: 1}, 5},
		} {
			if err := b.sample(fmt.Sprintf("%s, batch %d", s.name, n), n, &s.p, s.tops, sampling.Text{Prompt: prompt}); err != nil {
				return err
			}
		}
	}
	return b.device.Err()
}

// sample measures one of them, and compares the tokens.
func (b *bench) sample(what string, n int, p *sampling.Params, tops int, text sampling.Text) error {
	r, want := pass(n, 1)
	var s sampling.Sampler
	draws, drawn := make([]compute.Draw, n), make([]int32, n)
	o := model.Overlap{Rest: func() {}, Draws: func() []compute.Draw {
		for i := range draws {
			draws[i].Row, draws[i].Tops = i, tops
			s.Plan(&draws[i], p, contextLength+i, text, b.shape.vocab)
		}
		return draws
	}}
	device, err := median(30, func() error {
		if err := b.ranks.ForwardWith(r, want, &o); err != nil {
			return err
		}
		for i := range want {
			d, ok := b.ranks.Drawn(i)
			if !ok {
				return fmt.Errorf("%s: row %d was not drawn", what, i)
			}
			drawn[i] = d.Token
		}
		return nil
	})
	if err != nil {
		return err
	}
	host, err := median(3, func() error {
		if err := b.ranks.Forward(r, want); err != nil {
			return err
		}
		for i := range want {
			logits := b.ranks.Logits(i)
			id, err := s.Sample(logits, p, contextLength+i, text)
			if err != nil {
				return err
			}
			if tops >= 0 {
				sampling.Logprob(logits, id, tops)
			}
			if id != drawn[i] {
				return fmt.Errorf("%s: row %d is token %d, the device drew %d", what, i, id, drawn[i])
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{Shape: b.shape.name, Format: b.format, What: what, Ms: device}, row{Shape: b.shape.name, Format: b.format, What: what + ", by the host", Ms: host})
	fmt.Printf("%-13s %-5s %-32s %8.3f ms; by the host %8.3f ms\n", b.shape.name, b.format, what, device, host)
	return nil
}

// readHead is a head whose logits the host reads.
type readHead struct{ speculation.Head }

// trees measures cycles of trees of 4 levels of 4, 15 nodes of which are kept: with
// the best tokens found on the device and by the host.
func (b *bench) trees() error {
	shape := speculation.Shape{TopK: treeTopK, Nodes: 15}
	device, err := b.cycles(shape, 4, b.ranks)
	if err != nil {
		return err
	}
	host, err := b.cycles(shape, 4, readHead{b.ranks})
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{Shape: b.shape.name, Format: b.format, What: "cycle of a tree of 15", Ms: device}, row{Shape: b.shape.name, Format: b.format, What: "cycle of a tree of 15, by the host", Ms: host})
	fmt.Printf("%-13s %-5s %-32s %8.3f ms; by the host %8.3f ms\n", b.shape.name, b.format, "cycle of a tree of 15", device, host)
	return b.device.Err()
}
