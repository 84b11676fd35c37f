package main

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"testing"
)

// TestEncode: a drawing of few colours comes back as it was; of many, each point
// has a colour near its own.
func TestEncode(t *testing.T) {
	for name, rare := range map[string]bool{"few": false, "many": true} {
		m := image.NewRGBA(image.Rect(0, 0, 64, 32))
		for i := range 64 * 32 {
			c := color.RGBA{uint8(i / 2 % 64 * 4), 0, 0, 255}
			if rare && i%2 == 1 { // 512 more, near the frequent ones
				c = color.RGBA{uint8(i), uint8(i / 256 % 4), 0, 255}
			}
			m.Set(i%64, i/64, c)
		}
		b, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := png.Decode(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := got.(*image.Paletted); !ok || len(p.Palette) > 256 {
			t.Errorf("%s: a %T, want at most 256 colours", name, got)
		}
		far := 0
		for i := range 64 * 32 {
			r, g, _, _ := got.At(i%64, i/64).RGBA()
			want := m.RGBAAt(i%64, i/64)
			far = max(far, abs(int(r>>8)-int(want.R)), abs(int(g>>8)-int(want.G)))
		}
		if limit := map[string]int{"few": 0, "many": 8}[name]; far > limit {
			t.Errorf("%s: a point is %d off its colour, want at most %d", name, far, limit)
		}
	}
}

func abs(i int) int { return max(i, -i) }
