package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-analyze/charts"
)

// The library is go-analyze/charts: it writes SVG and PNG and brings four
// modules along, where gonum's plot brings a dozen (fonts, LaTeX, PDF) and
// wcharczuk's go-chart is no longer kept up.

// writePlots writes ratios and throughput, as far as there are figures.
func (r *report) writePlots(dir string) error {
	var errs []error
	for name, option := range map[string]*charts.BarChartOption{"ratios": r.ratios(), "throughput": r.throughput()} {
		if option == nil {
			continue
		}
		for _, format := range []string{charts.ChartOutputSVG, charts.ChartOutputPNG} {
			if err := writePlot(filepath.Join(dir, name+"."+format), format, *option); err != nil {
				errs = append(errs, fmt.Errorf("plot %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func writePlot(file, format string, o charts.BarChartOption) error {
	const width, bar = 1000, 44
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: format, Width: width, Height: 150 + bar*len(o.CategoryAxis.Labels)})
	if err := p.BarChart(o); err != nil {
		return err
	}
	b, err := p.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o644)
}

// horizontal are bars from the top down, in the order of the labels.
func horizontal(title string, labels, series []string, values [][]float64, format func(float64) string) *charts.BarChartOption {
	labels = slices.Clone(labels)
	slices.Reverse(labels) // the chart begins at the bottom
	for i := range values {
		slices.Reverse(values[i])
	}
	o := charts.NewBarChartOptionWithData(values)
	o.Horizontal = true
	o.Title.Text = title
	o.Legend.SeriesNames = series
	o.Legend.Offset = charts.OffsetRight
	o.CategoryAxis = charts.CategoryAxisOption{Labels: labels}
	o.Padding = charts.NewBox(20, 20, 60, 20)
	// Bars that do not begin at 0 lie about ratios.
	for i := range o.ValueAxis {
		o.ValueAxis[i].Min = charts.Ptr(0.0)
		o.ValueAxis[i].LabelCount = 8
	}
	o.ValueFormatter = format
	for i := range o.SeriesList {
		o.SeriesList[i].Label.Show = charts.Ptr(true)
		o.SeriesList[i].Label.ValueFormatter = format
	}
	return &o
}

// ratios shows each row as a part of what it must be: 1 is met, also where less
// is better.
func (r *report) ratios() *charts.BarChartOption {
	var labels []string
	var measured, aims []float64
	for _, w := range r.Rows {
		if w.Spread == nil || w.Spread.Median <= 0 {
			continue
		}
		labels = append(labels, strings.ReplaceAll(w.Name, "`", ""))
		value, aim := w.Spread.Median/w.Must, w.Aim/w.Must
		if w.Lower {
			value, aim = 1/value, 1/aim
		}
		measured, aims = append(measured, value), append(aims, aim)
	}
	if len(labels) == 0 {
		return nil
	}
	return horizontal("Times what must be reached (1 = must met)", labels, []string{"measured", "aim"}, [][]float64{measured, aims},
		func(v float64) string { return fmt.Sprintf("%.2f", v) })
}

// throughput shows the runs under wrk.
func (r *report) throughput() *charts.BarChartOption {
	var labels []string
	var values []float64
	for _, sp := range specs {
		var all []float64
		for _, m := range r.Runs {
			if m.Run == sp.id && m.Load.Requests > 0 {
				all = append(all, m.Load.PerSecond)
			}
		}
		if len(all) > 0 {
			labels, values = append(labels, sp.id), append(values, spreadOf(all).Median)
		}
	}
	if len(labels) == 0 {
		return nil
	}
	return horizontal("Requests a second, medians", labels, []string{"a second"}, [][]float64{values}, commas)
}
