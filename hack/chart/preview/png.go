package main

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	stddraw "image/draw"
	"image/png"
	"maps"
	"slices"
)

// encode makes a small PNG of a drawing: of its most frequent 256 colours, which
// are all but some shades at the edges of letters.
func encode(m image.Image) ([]byte, error) {
	times := map[color.RGBA]int{}
	bounds := m.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if c, ok := color.RGBAModel.Convert(m.At(x, y)).(color.RGBA); ok {
				times[c]++
			}
		}
	}
	frequent := slices.SortedFunc(maps.Keys(times), func(a, b color.RGBA) int {
		return cmp.Or(-cmp.Compare(times[a], times[b]), slices.Compare([]uint8{a.R, a.G, a.B, a.A}, []uint8{b.R, b.G, b.B, b.A}))
	})
	colors := color.Palette{}
	for _, c := range frequent[:min(256, len(frequent))] {
		colors = append(colors, c)
	}
	small := image.NewPaletted(bounds, colors)
	stddraw.Draw(small, bounds, m, bounds.Min, stddraw.Src)
	var b bytes.Buffer
	err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small)
	return b.Bytes(), err
}
