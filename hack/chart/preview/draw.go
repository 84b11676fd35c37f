package main

import (
	"context"
	"fmt"
	"image/color"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
)

// Lengths of the layout, in points: a column of the 24, a panel's row, the space between.
const (
	column  vg.Length = 42
	unitRow vg.Length = 24
	gap     vg.Length = 6
	heading vg.Length = 26
)

var (
	background = color.RGBA{17, 18, 23, 255}
	panelColor = color.RGBA{24, 27, 31, 255}
	textColor  = color.RGBA{204, 204, 220, 255}
	gridColor  = color.RGBA{50, 53, 60, 255}
	palette    = []color.RGBA{
		{115, 191, 105, 255}, {242, 204, 12, 255}, {87, 148, 242, 255}, {255, 152, 48, 255}, {242, 73, 92, 255},
		{184, 119, 217, 255}, {110, 208, 224, 255}, {250, 222, 42, 255}, {138, 184, 255, 255}, {255, 166, 176, 255},
	}
)

// named are Grafana's colours that the dashboards name.
var named = map[string]color.RGBA{
	"green": {115, 191, 105, 255}, "super-light-green": {200, 242, 194, 255}, "text": {204, 204, 220, 255},
	"super-light-blue": {192, 216, 255, 255}, "light-blue": {138, 184, 255, 255}, "blue": {87, 148, 242, 255}, "semi-dark-blue": {50, 116, 217, 255}, "dark-blue": {31, 96, 196, 255},
	"purple": {184, 119, 217, 255}, "light-purple": {202, 149, 229, 255}, "yellow": {250, 222, 42, 255},
	"light-orange": {255, 179, 87, 255}, "orange": {255, 152, 48, 255}, "dark-orange": {250, 100, 0, 255},
	"light-red": {255, 115, 131, 255}, "red": {242, 73, 92, 255}, "semi-dark-red": {224, 47, 68, 255}, "dark-red": {196, 22, 42, 255},
}

// shade is a colour, the darker the greater i is.
func shade(c color.RGBA, i int) color.RGBA {
	dim := func(v uint8) uint8 { return uint8(float64(v) * (1 - 0.15*float64(i%5))) }
	return color.RGBA{dim(c.R), dim(c.G), dim(c.B), 255}
}

func colorOf(i int) color.RGBA { return palette[i%len(palette)] }

func rows(kind dashboards.Kind) vg.Length {
	if kind == dashboards.Stat {
		return 4 * unitRow
	}
	return 8 * unitRow
}

// draw lays a dashboard out and returns it as a PNG, with the panels that have no data.
func draw(ctx context.Context, a asker, d dashboards.Dashboard) (png []byte, missing []string, err error) {
	height := heading
	d.Rows = slices.Clone(d.Rows) // the caller's stay as they are
	for i := range d.Rows {
		r := &d.Rows[i]
		lacks, err := a.lacksGPUs(ctx, *r)
		if err != nil {
			return nil, nil, err
		}
		if lacks {
			r.Title, r.Panels = r.Title+" (where engines compute on them)", nil
		}
		height += heading
		width := 0
		for _, p := range r.Panels {
			if width%24 == 0 {
				height += rows(p.Kind)
			}
			width += p.Width
		}
	}
	img := vgimg.NewWith(vgimg.UseWH(24*column, height), vgimg.UseDPI(96), vgimg.UseBackgroundColor(background))
	c := vgdraw.New(img)
	y := height - heading
	write(c, gap, y+gap, 14, textColor, d.Title)
	for _, r := range d.Rows {
		y -= heading
		write(c, gap, y+gap, 11, textColor, r.Title)
		width := 0
		for _, p := range r.Panels {
			if width%24 == 0 {
				y -= rows(p.Kind)
			}
			x := vg.Length(width%24) * column
			width += p.Width
			box := vg.Rectangle{Min: vg.Point{X: x + gap/2, Y: y + gap/2}, Max: vg.Point{X: x + vg.Length(p.Width)*column - gap/2, Y: y + rows(p.Kind) - gap/2}}
			c.FillPolygon(panelColor, []vg.Point{box.Min, {X: box.Max.X, Y: box.Min.Y}, box.Max, {X: box.Min.X, Y: box.Max.Y}})
			has, err := panel(ctx, a, vgdraw.Canvas{Canvas: img, Rectangle: box}, p)
			if err != nil {
				return nil, nil, fmt.Errorf("panel %s: %w", p.Title, err)
			}
			if !has && !p.OnGPU {
				missing = append(missing, p.Title)
			}
		}
	}
	png, err = encode(img.Image())
	return png, missing, err
}

// write puts one line of text.
func write(c vgdraw.Canvas, x, y vg.Length, size float64, col color.Color, text string) {
	c.FillText(style(size, col), vg.Point{X: x, Y: y}, text)
}

func style(size float64, col color.Color) vgdraw.TextStyle {
	return vgdraw.TextStyle{Color: col, Font: font.From(plot.DefaultFont, vg.Points(size)), Handler: plot.DefaultTextHandler}
}

// panel draws one panel and says whether every query had an answer.
func panel(ctx context.Context, a asker, c vgdraw.Canvas, p dashboards.Panel) (bool, error) {
	write(c, c.Min.X+gap, c.Max.Y-14, 9, textColor, p.Title)
	answers := make([][]series, len(p.Queries))
	has := true
	for i, q := range p.Queries {
		var err error
		if answers[i], err = a.query(ctx, q, p.Kind == dashboards.Table); err != nil {
			return false, err
		}
		has = has && len(answers[i]) > 0
	}
	inner := vgdraw.Crop(c, gap, -gap, gap, -18)
	if !has {
		col, words := color.RGBA{242, 73, 92, 255}, "no data"
		if p.OnGPU {
			col, words = gridColor, "on GPUs only"
		}
		write(inner, inner.Min.X, (inner.Min.Y+inner.Max.Y)/2, 10, col, words)
		return false, nil
	}
	switch p.Kind {
	case dashboards.Stat:
		tint, value := textColor, answers[0][0].last()
		if p.Mark != nil {
			tint = named["green"]
			if value >= *p.Mark {
				tint = named["red"]
			}
		}
		write(inner, inner.Min.X+gap, inner.Min.Y+2*gap, 22, tint, short(value, p.Unit))
		return true, nil
	case dashboards.Table:
		table(inner, p, answers)
		return true, nil
	case dashboards.Scatter:
		return true, scatter(inner, p, answers)
	default:
		return true, overTime(inner, p, slices.Concat(answers...))
	}
}

// newPlot is an empty plot in the panel's colours.
func newPlot(p dashboards.Panel) *plot.Plot {
	pl := plot.New()
	pl.BackgroundColor = color.Transparent
	for _, axis := range []*plot.Axis{&pl.X, &pl.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = gridColor, gridColor
		axis.Tick.Label = style(7, textColor)
		axis.Tick.Label.XAlign, axis.Tick.Label.YAlign = vgdraw.XCenter, vgdraw.YTop
		axis.Label.TextStyle = style(7, textColor)
		axis.Label.TextStyle.XAlign = vgdraw.XCenter
	}
	pl.Y.Tick.Label.XAlign, pl.Y.Tick.Label.YAlign = vgdraw.XRight, vgdraw.YCenter
	pl.Y.Tick.Marker = ticks(p.Unit)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = gridColor, color.Transparent
	pl.Add(grid)
	pl.Legend.TextStyle = style(7, textColor)
	pl.Legend.Top, pl.Legend.Left, pl.Legend.Padding = true, true, vg.Points(1)
	pl.Legend.ThumbnailWidth = vg.Points(8)
	return pl
}

// ticks are Grafana's: numbers with the panel's unit.
func ticks(unit string) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) []plot.Tick {
		t := plot.DefaultTicks{}.Ticks(low, high)
		for i := range t {
			if t[i].Label != "" {
				t[i].Label = short(t[i].Value, unit)
			}
		}
		return t
	})
}

// bounds gives the y axis the panel's bounds, and a flat line some room.
func bounds(pl *plot.Plot, p dashboards.Panel) {
	if p.Mark != nil {
		pl.Y.Min, pl.Y.Max = min(pl.Y.Min, *p.Mark), max(pl.Y.Max, *p.Mark)
	}
	if p.Min != nil {
		pl.Y.Min = min(*p.Min, pl.Y.Min)
	}
	if p.Max != nil {
		pl.Y.Max = max(*p.Max, pl.Y.Max)
	}
	if pl.Y.Max-pl.Y.Min < 1e-12 {
		pl.Y.Max = pl.Y.Min + 1
	}
	pl.Y.Max += 0.2 * (pl.Y.Max - pl.Y.Min) // room for the legend
}

// overTime draws lines, one on another where the panel stacks them.
func overTime(c vgdraw.Canvas, p dashboards.Panel, all []series) error {
	pl := newPlot(p)
	pl.X.Tick.Marker = plot.TimeTicks{Format: "15:04:05"}
	below := map[model.Time]float64{}
	for i, s := range all {
		xys := make(plotter.XYs, len(s.points))
		base := make(plotter.XYs, len(s.points))
		for j, at := range s.points {
			x := float64(at.Timestamp) / 1000
			base[j] = plotter.XY{X: x, Y: below[at.Timestamp]}
			xys[j] = plotter.XY{X: x, Y: float64(at.Value)}
			if p.Kind == dashboards.Stacked {
				xys[j].Y += below[at.Timestamp]
				below[at.Timestamp] = xys[j].Y
			}
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return err
		}
		tint := colorOf(i)
		if base, ok := named[p.Shades]; ok {
			tint = shade(base, i)
		}
		if name, ok := p.Colors[s.name]; ok {
			tint = named[name]
		}
		line.Color = tint
		if p.Kind == dashboards.Stacked {
			slices.Reverse(base)
			area, err := plotter.NewPolygon(append(slices.Clone(xys), base...))
			if err != nil {
				return err
			}
			fill := tint
			fill.R, fill.G, fill.B, fill.A = fill.R/2, fill.G/2, fill.B/2, 128
			area.Color, area.LineStyle.Width = fill, 0
			pl.Add(area)
		}
		pl.Add(line)
		if i < 8 && s.name != "" {
			pl.Legend.Add(s.name, line)
		}
	}
	return finish(c, pl, p)
}

// finish draws the mark and the plot.
func finish(c vgdraw.Canvas, pl *plot.Plot, p dashboards.Panel) error {
	bounds(pl, p)
	if p.Mark != nil {
		mark, err := plotter.NewLine(plotter.XYs{{X: pl.X.Min, Y: *p.Mark}, {X: pl.X.Max, Y: *p.Mark}})
		if err != nil {
			return err
		}
		mark.Color, mark.Dashes = color.RGBA{255, 152, 48, 255}, []vg.Length{vg.Points(4), vg.Points(3)}
		pl.Add(mark)
	}
	pl.Draw(c)
	return nil
}

// scatter draws the second query over the first, at the moments that both have.
func scatter(c vgdraw.Canvas, p dashboards.Panel, answers [][]series) error {
	x := map[model.Time]float64{}
	for _, at := range answers[0][0].points {
		x[at.Timestamp] = float64(at.Value)
	}
	var xys plotter.XYs
	for _, at := range answers[1][0].points {
		if v, ok := x[at.Timestamp]; ok {
			xys = append(xys, plotter.XY{X: v, Y: float64(at.Value)})
		}
	}
	pl := newPlot(p)
	pl.X.Label.Text, pl.Y.Label.Text = p.Queries[0].Legend, p.Queries[1].Legend
	dots, err := plotter.NewScatter(xys)
	if err != nil {
		return err
	}
	dots.Color, dots.Shape, dots.Radius = palette[2], vgdraw.CircleGlyph{}, vg.Points(2)
	pl.Add(dots)
	return finish(c, pl, p)
}

// table writes a row for each namespace, server or pod, and a column for each query.
func table(c vgdraw.Canvas, p dashboards.Panel, answers [][]series) {
	rows := map[string][]string{}
	var names []string
	for i, answer := range answers {
		for _, s := range answer {
			m := maps.Clone(s.labels)
			value := short(s.last(), p.Unit)
			if l := model.LabelName(p.Queries[i].Column()); l != "" {
				value = string(m[l])
				delete(m, l)
			}
			var key []string
			for _, l := range slices.Sorted(maps.Keys(m)) {
				key = append(key, string(m[l]))
			}
			k := strings.Join(key, " / ")
			if rows[k] == nil {
				rows[k] = make([]string, len(answers))
				names = append(names, k)
			}
			rows[k][i] = value
		}
	}
	slices.Sort(names)
	width := (c.Max.X - c.Min.X) / vg.Length(len(answers)+2)
	y := c.Max.Y - 12
	for i, q := range p.Queries {
		write(c, c.Min.X+vg.Length(i+2)*width, y, 8, palette[2], q.Heading())
	}
	for _, name := range names {
		if y -= 13; y < c.Min.Y {
			return
		}
		write(c, c.Min.X, y, 8, textColor, name)
		for i, v := range rows[name] {
			write(c, c.Min.X+vg.Length(i+2)*width, y, 8, textColor, v)
		}
	}
}

// short is a number with its unit, as Grafana writes it.
func short(v float64, unit string) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	scaled := func(v, base float64, names ...string) string {
		for i, n := range names {
			if v < base || i == len(names)-1 {
				return number(v) + n
			}
			v /= base
		}
		return number(v)
	}
	switch unit {
	case "s":
		switch {
		case v == 0:
			return "0"
		case v < 1e-3:
			return number(v*1e6) + " µs"
		case v < 1:
			return number(v*1e3) + " ms"
		}
		return number(v) + " s"
	case "bytes":
		return scaled(v, 1024, " B", " KiB", " MiB", " GiB", " TiB")
	case "percentunit":
		return number(100*v) + " %"
	case "percent":
		return number(v) + " %"
	case "watt":
		return number(v) + " W"
	case "celsius":
		return number(v) + " °C"
	case "reqps":
		return number(v) + "/s"
	}
	return scaled(v, 1000, "", " K", " M", " G")
}
