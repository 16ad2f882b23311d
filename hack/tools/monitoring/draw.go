package main

import (
	"image/color"
	"math"
	"os"
	"path/filepath"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// dashboard is the data of all panels of a dashboard.
type dashboard struct {
	ID     string  `json:"id"`
	Title  string  `json:"title"`
	Panels []panel `json:"panels"`
}

type panel struct {
	Title  string   `json:"title"`
	Unit   string   `json:"unit"`
	Series []series `json:"series"`
}

type series struct {
	Legend string `json:"legend"`
	// Points are pairs of seconds since 1970 and a value.
	Points [][2]float64 `json:"points"`
}

const (
	columns     = 2
	panelWidth  = 16 * vg.Centimeter
	panelHeight = 7 * vg.Centimeter
	maxLegends  = 8
)

// draw writes the dashboard as one picture, the panels in a grid as Grafana has them.
func (d dashboard) draw(folder string) error {
	rows := (len(d.Panels) + columns - 1) / columns
	canvas := vgsvg.New(columns*panelWidth, vg.Length(rows)*panelHeight)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	for i, p := range d.Panels {
		row, column := i/columns, i%columns
		left, top := vg.Length(column)*panelWidth, vg.Length(rows-row)*panelHeight
		tile := draw.Crop(all, left+4*vg.Millimeter, left+panelWidth-columns*panelWidth-4*vg.Millimeter,
			top-panelHeight+3*vg.Millimeter, top-vg.Length(rows)*panelHeight-3*vg.Millimeter)
		drawn, err := p.plot()
		if err != nil {
			return err
		}
		drawn.Draw(tile)
	}
	file, err := os.Create(filepath.Join(folder, d.ID+".svg"))
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func (p panel) plot() (*plot.Plot, error) {
	out := plot.New()
	out.Title.Text = p.Title + " (" + p.Unit + ")"
	out.X.Tick.Marker = plot.TimeTicks{Format: "15:04:05",
		Time: func(t float64) time.Time { return time.Unix(int64(t), 0).UTC() }}
	out.Y.Min = 0
	out.Legend.Top, out.Legend.Left = true, true
	out.Legend.TextStyle.Font.Size = 7
	drawn := 0
	for _, s := range p.Series {
		points := make(plotter.XYs, 0, len(s.Points))
		for _, v := range s.Points {
			if !math.IsNaN(v[1]) && !math.IsInf(v[1], 0) {
				points = append(points, plotter.XY{X: v[0], Y: v[1]})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		line.Color = plotutil.Color(drawn)
		out.Add(line)
		if drawn < maxLegends {
			out.Legend.Add(s.Legend, line)
		}
		drawn++
	}
	if drawn == 0 {
		out.Title.Text += ": no data"
		out.X.Min, out.X.Max, out.Y.Max = 0, 1, 1
	}
	if out.Y.Max <= out.Y.Min {
		out.Y.Max = out.Y.Min + 1
	}
	out.Y.Max += (out.Y.Max - out.Y.Min) * 0.06 * float64(min(drawn, maxLegends)) // room for the legend
	return out, nil
}
