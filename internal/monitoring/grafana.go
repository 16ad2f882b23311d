package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// Units of panels, by Grafana's names.
const (
	unitShort   = "short"
	unitSeconds = "s"
	unitBytes   = "bytes"
	unitPerSec  = "ops"
	unitRatio   = "percentunit"
	unitDays    = "d"
)

// Dashboard is one Grafana dashboard.
type Dashboard struct {
	// ID is its file name and Grafana's uid.
	ID                 string
	Title, Description string
	// Object is the label whose values the variable $object offers, in addition to $namespace; "" means neither
	// variable.
	Object string
	// Of is the metric whose namespaces and objects the variables offer.
	Of   string
	Rows []Row
}

// Row is a titled group of panels.
type Row struct {
	Title  string
	Panels []Panel
	// Collapsed is whether only its title is shown, and nothing of it is asked for, until a user opens it.
	Collapsed bool
}

// Panel shows the outcome of queries.
type Panel struct {
	Title, Description, Unit string
	// Stat is whether to show the last value as a number, instead of a graph over time.
	Stat bool
	// Columns are the labels to show as a table, in the whole width, instead of a graph over time.
	Columns []string
	// Alarm is the value from which values are highlighted; 0 means none.
	Alarm   float64
	Queries []Query
	// Needs is what must happen before the queries return a series; "" if they always do.
	Needs string
}

// Query is one PromQL expression; Legend names its series.
type Query struct{ Expr, Legend string }

// graph is a panel that shows queries over time.
func graph(title, description, unit string, q ...Query) Panel {
	return Panel{Title: title, Description: description, Unit: unit, Queries: q}
}

func (p Panel) stat() Panel { p.Stat = true; return p }

func (p Panel) alarm(v float64) Panel { p.Alarm = v; return p }

func (p Panel) needs(s string) Panel { p.Needs = s; return p }

// quantile is the quantile q of a histogram's recent observations, for each value of the labels; "" is no label.
func quantile(q float64, by, bucket string) string {
	if by != "" {
		by += ", "
	}
	return fmt.Sprintf("histogram_quantile(%v, sum by (%sle) (rate(%s[$__rate_interval])))", q, by, bucket)
}

// Width of the grid of Grafana, and the sizes of panels in it.
const (
	gridWidth             = 24
	statWidth, statHeight = 4, 4
	plotWidth, plotHeight = 12, 8
	tableHeight           = 8
)

const selected = `namespace=~"$namespace"`

// grafanaJSON is the dashboard in Grafana's schema.
func (d Dashboard) grafanaJSON() ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(map[string]any{
		"uid": d.ID, "title": d.Title, "description": d.Description, "tags": []string{"kuperator"},
		"schemaVersion": 39, "version": 1, "editable": true, "refresh": "30s", "timezone": "browser",
		"time":       map[string]string{"from": "now-1h", "to": "now"},
		"templating": map[string]any{"list": d.variables()},
		"links": []any{map[string]any{"type": "dashboards", "tags": []string{"kuperator"}, "title": "Kuperator",
			"asDropdown": true, "includeVars": true, "keepTime": true}},
		"panels": d.panels(),
	})
	return b.Bytes(), err
}

var datasource = map[string]string{"type": "prometheus", "uid": "${datasource}"}

func (d Dashboard) variables() []any {
	list := []any{map[string]any{"name": "datasource", "label": "Data source", "type": "datasource",
		"query": "prometheus"}}
	if d.Object == "" {
		return list
	}
	chosen := func(name, label, query string) map[string]any {
		return map[string]any{
			"name": name, "label": label, "type": "query", "datasource": datasource, "query": query, "definition": query,
			"refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
			"current": map[string]any{"text": "All", "value": "$__all"},
		}
	}
	return append(list,
		chosen("namespace", "Namespace", fmt.Sprintf("label_values(%s, namespace)", d.Of)),
		chosen("workload", d.Object, fmt.Sprintf("label_values(%s{%s}, %s)", d.Of, selected, d.Object)))
}

func (d Dashboard) panels() []any {
	var panels []any
	id, y := 0, 0
	for _, row := range d.Rows {
		id++
		title := map[string]any{
			"id": id, "type": "row", "title": row.Title, "collapsed": row.Collapsed, "panels": []any{},
			"gridPos": map[string]int{"h": 1, "w": gridWidth, "x": 0, "y": y},
		}
		panels = append(panels, title)
		y++
		top, x, height, within := y, 0, 0, []any{}
		for _, p := range row.Panels {
			w, h := plotWidth, plotHeight
			switch {
			case p.Stat:
				w, h = statWidth, statHeight
			case len(p.Columns) > 0:
				w, h = gridWidth, tableHeight
			}
			if x+w > gridWidth {
				x, y, height = 0, y+height, 0
			}
			id++
			within = append(within, p.grafana(id, map[string]int{"h": h, "w": w, "x": x, "y": y}))
			x, height = x+w, max(height, h)
		}
		if row.Collapsed {
			title["panels"], y = within, top
			continue
		}
		panels = append(panels, within...)
		y += height
	}
	return panels
}

func (p Panel) grafana(id int, position map[string]int) map[string]any {
	var targets []any
	for i, q := range p.Queries {
		targets = append(targets, map[string]any{
			"refId": string(rune('A' + i)), "datasource": datasource, "expr": q.Expr, "legendFormat": q.Legend, "range": true,
		})
	}
	defaults := map[string]any{"unit": p.Unit, "min": 0}
	if p.Unit == unitDays {
		delete(defaults, "min")
	}
	steps := []any{map[string]any{"color": "green", "value": nil}}
	if p.Alarm > 0 {
		steps = append(steps, map[string]any{"color": "red", "value": p.Alarm})
	}
	defaults["thresholds"] = map[string]any{"mode": "absolute", "steps": steps}
	panel := map[string]any{
		"id": id, "title": p.Title, "description": p.Description, "datasource": datasource, "gridPos": position,
		"targets":     targets,
		"fieldConfig": map[string]any{"defaults": defaults, "overrides": []any{}},
	}
	if len(p.Columns) > 0 {
		for _, target := range targets {
			t := target.(map[string]any)
			t["format"], t["instant"], t["range"] = "table", true, false
		}
		order := map[string]int{}
		for i, label := range p.Columns {
			order[label] = i
		}
		panel["type"] = "table"
		defaults["noValue"] = "none"
		panel["transformations"] = []any{map[string]any{"id": "organize", "options": map[string]any{
			"excludeByName": map[string]bool{"Time": true, "Value": true}, "indexByName": order}}}
		panel["options"] = map[string]any{"sortBy": []any{map[string]any{"displayName": p.Columns[0], "desc": false}}}
		return panel
	}
	if p.Stat {
		panel["type"] = "stat"
		panel["options"] = map[string]any{"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}},
			"colorMode": "value", "graphMode": "area"}
		return panel
	}
	panel["type"] = "timeseries"
	defaults["custom"] = map[string]any{"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
	panel["options"] = map[string]any{
		"legend":  map[string]any{"displayMode": "table", "placement": "bottom", "calcs": []string{"lastNotNull", "max"}},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}
	return panel
}

func (d Dashboard) check() error {
	for _, row := range d.Rows {
		for _, p := range row.Panels {
			if p.Title == "" || p.Description == "" || p.Unit == "" || len(p.Queries) == 0 {
				return fmt.Errorf("dashboard %s, panel %q lacks something", d.ID, p.Title)
			}
		}
	}
	return nil
}

// dashboardFiles are the dashboards as JSON, for people who import them, and as ConfigMaps for Grafana's sidecar.
func dashboardFiles() ([]File, error) {
	const folder = "deploy/monitoring/dashboards/"
	var files []File
	var list strings.Builder
	for _, d := range Dashboards() {
		if err := d.check(); err != nil {
			return nil, err
		}
		content, err := d.grafanaJSON()
		if err != nil {
			return nil, err
		}
		object, err := yaml.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{
				"name": "dashboard-" + d.ID, "namespace": "kuperator-system",
				"labels":      map[string]string{"grafana_dashboard": "1", "app.kubernetes.io/part-of": "kuperator"},
				"annotations": map[string]string{"grafana_folder": "Kuperator"},
			},
			"data": map[string]string{d.ID + ".json": string(content)},
		})
		if err != nil {
			return nil, err
		}
		files = append(files, File{folder + d.ID + ".json", content},
			File{folder + d.ID + ".configmap.yaml", append([]byte("# "+generated+"\n"), object...)})
		fmt.Fprintf(&list, "- %s.configmap.yaml\n", d.ID)
	}
	return append(files, File{folder + "kustomization.yaml",
		[]byte("# " + generated + "\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n" +
			list.String())}), nil
}

// Expand puts values for Grafana's variables into a query: all namespaces and objects, and rates over the given time.
func Expand(expr, interval string) string {
	return strings.NewReplacer("$__rate_interval", interval, "$namespace", ".*", "$workload", ".*").Replace(expr)
}
