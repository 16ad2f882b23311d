package main

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

var errNotMeasured = errors.New("its figures were not measured")

// The colours of Okabe and Ito, which people with any colour vision can tell apart.
var palette = []color.Color{
	color.RGBA{R: 0x00, G: 0x72, B: 0xB2, A: 0xFF},
	color.RGBA{R: 0xE6, G: 0x9F, B: 0x00, A: 0xFF},
	color.RGBA{R: 0x00, G: 0x9E, B: 0x73, A: 0xFF},
	color.RGBA{R: 0xCC, G: 0x79, B: 0xA7, A: 0xFF},
	color.RGBA{R: 0x56, G: 0xB4, B: 0xE9, A: 0xFF},
	color.RGBA{R: 0xD5, G: 0x5E, B: 0x00, A: 0xFF},
	color.RGBA{R: 0x55, G: 0x55, B: 0x55, A: 0xFF},
}

// drawing is one picture, with what a page says of it.
type drawing struct {
	file, text string
	draw       func(results []result, path string) error
}

// ticks are gonum's, labelled as all figures are.
type ticks struct{ plot.DefaultTicks }

func (t ticks) Ticks(from, to float64) []plot.Tick {
	all := t.DefaultTicks.Ticks(from, to)
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = figure(all[i].Value)
		}
	}
	return all
}

const width, height = 17 * vg.Centimeter, 10 * vg.Centimeter

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.BackgroundColor = color.White
	p.Title.TextStyle.Font.Size, p.Title.Padding = vg.Points(12), vg.Points(6)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size = vg.Points(10)
		axis.Tick.Label.Font.Size = vg.Points(9)
		axis.Label.Padding = vg.Points(4)
	}
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label,
		&p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
	}
	p.Y.Tick.Marker = ticks{}
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(2)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color = color.Gray{Y: 0xDD}
	p.Add(grid)
	return p
}

// save writes an SVG whose picture does not depend on the reader's theme.
func save(p *plot.Plot, path string) error {
	if !strings.HasSuffix(path, ".svg") {
		return fmt.Errorf("%s is no SVG", path)
	}
	return p.Save(width, height, path)
}

// bars draws groups of bars side by side, one colour for each series, with its value above each bar. NaN is no bar.
func bars(p *plot.Plot, groups, series []string, values map[string][]float64) error {
	wide := vg.Points(math.Min(28, 330/float64(len(groups)*len(series)+len(groups))))
	for i, name := range series {
		shown := make(plotter.Values, len(groups))
		var labels plotter.XYLabels
		for g, v := range values[name] {
			if math.IsNaN(v) {
				continue
			}
			shown[g] = v
			labels.XYs = append(labels.XYs, plotter.XY{X: float64(g), Y: v})
			labels.Labels = append(labels.Labels, value(v, wide))
		}
		chart, err := plotter.NewBarChart(shown, wide)
		if err != nil {
			return err
		}
		chart.Color, chart.LineStyle.Width = palette[i%len(palette)], 0
		chart.Offset = wide * vg.Length(float64(i)-float64(len(series)-1)/2)
		p.Add(chart)
		if len(labels.XYs) > 0 {
			p.Legend.Add(name, chart)
		} else {
			continue
		}
		above, err := plotter.NewLabels(labels)
		if err != nil {
			return err
		}
		above.Offset = vg.Point{X: chart.Offset, Y: vg.Points(2)}
		for j := range above.TextStyle {
			above.TextStyle[j].XAlign = text.XCenter
			above.TextStyle[j].Font.Size, above.TextStyle[j].Font.Variant = vg.Points(7.5), "Sans"
		}
		p.Add(above)
	}
	p.NominalX(groups...)
	p.X.Min, p.X.Max = -0.55, float64(len(groups))-0.45
	p.Y.Min = 0
	p.Y.Max *= 1.08 + 0.075*float64(len(series)) // room for the legend
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(6)
	return nil
}

// lines draws one line with points for each series, with whiskers from the least to the most.
func lines(p *plot.Plot, results []result, x string, name func(result) string) error {
	bySeries := map[string][]result{}
	for _, r := range results {
		bySeries[name(r)] = append(bySeries[name(r)], r)
	}
	if len(bySeries) == 0 {
		return errNotMeasured
	}
	for i, series := range slices.Sorted(maps.Keys(bySeries)) {
		found := bySeries[series]
		slices.SortFunc(found, func(a, b result) int { return cmp.Compare(a.Params[x], b.Params[x]) })
		var points plotter.XYs
		var spread plotter.YErrors
		for _, r := range found {
			points = append(points, plotter.XY{X: r.Params[x], Y: r.Value})
			spread = append(spread, struct{ Low, High float64 }{r.Value - r.Min, r.Max - r.Value})
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dots.Color = palette[i%len(palette)], palette[i%len(palette)]
		line.Width, dots.Shape, dots.Radius = vg.Points(1.6), draw.CircleGlyph{}, vg.Points(2.5)
		whiskers, err := plotter.NewYErrorBars(struct {
			plotter.XYer
			plotter.YErrorer
		}{points, spread})
		if err != nil {
			return err
		}
		whiskers.Color = line.Color
		p.Add(line, dots, whiskers)
		p.Legend.Add(series, line, dots)
	}
	p.Y.Min = 0
	p.Y.Max *= 1.35 // room for the legend
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(6)
	return nil
}

// level draws a goal as a dashed line, the second of a plot as a dotted one.
func level(p *plot.Plot, y float64, label string, dashes ...vg.Length) {
	line := plotter.NewFunction(func(float64) float64 { return y })
	line.XMin, line.XMax = p.X.Min, p.X.Max
	line.Color, line.Width, line.Dashes = palette[5], vg.Points(1), []vg.Length{vg.Points(5), vg.Points(3)}
	if len(dashes) > 0 {
		line.Dashes = dashes
	}
	p.Add(line)
	p.Legend.Add(label, line)
	p.Y.Max = math.Max(p.Y.Max, y*1.1)
}

// pods labels a logarithmic axis by the numbers that were measured.
func pods(p *plot.Plot, results []result, x string) {
	p.X.Scale = plot.LogScale{}
	p.X.Min, p.X.Max = p.X.Min/1.15, p.X.Max*1.15
	var marks plot.ConstantTicks
	seen := map[float64]bool{}
	for _, r := range results {
		if v := r.Params[x]; v > 0 && !seen[v] {
			seen[v] = true
			marks = append(marks, plot.Tick{Value: v, Label: figure(v)})
		}
	}
	p.X.Tick.Marker = marks
}

// narrow is the width of a bar over which a figure with decimals would run into that of the next.
var narrow = vg.Points(15)

// value is the figure above a bar, shorter where the bar is narrow.
func value(v float64, wide vg.Length) string {
	if wide >= narrow || v >= 1000 {
		return figure(v)
	}
	if v >= 10 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// figure has as many digits as mean something, and thousands apart.
func figure(v float64) string {
	switch {
	case v >= 1000:
		whole := strconv.FormatFloat(v, 'f', 0, 64)
		return whole[:len(whole)-3] + "," + whole[len(whole)-3:]
	case v >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func where(results []result, keep func(result) bool) []result {
	var kept []result
	for _, r := range results {
		if keep(r) {
			kept = append(kept, r)
		}
	}
	return kept
}
