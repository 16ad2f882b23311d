package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/monitoring"
)

// raw is a scalar in the template language.
type raw string

// block is a value that the template language prints as YAML.
type block string

// with is a block that is left out when it is empty.
type with string

// withText is a scalar that is left out when it is empty.
type withText string

// each stands for the entries of a value, in a list or, under the key "", in a map.
type each string

// alternative is what a node is under a condition.
type alternative struct {
	condition string
	value     any
	present   bool
}

// escape makes text mean itself in a template.
func escape(text string) string {
	return strings.ReplaceAll(text, "{{", `{{ "{{" }}`)
}

// inject replaces what is a value of the chart, and what depends on names that the release chooses.
func inject(o object) object {
	c := o.component()
	if o.kind() == "Deployment" && c != nil {
		injectDeployment(o, c)
	}
	return object(replaceNames(map[string]any(o)).(map[string]any))
}

func injectDeployment(o object, c *component) {
	values := "$.Values." + c.key
	spec := o["spec"].(map[string]any)
	spec["replicas"] = raw("{{ " + values + ".replicas }}")
	spec["strategy"].(map[string]any)["rollingUpdate"] = block(values + ".rollingUpdate")
	pod := podSpec(o)
	pod["priorityClassName"] = withText(values + ".priorityClassName")
	pod["topologySpreadConstraints"] = with(values + ".topologySpreadConstraints")
	pod["nodeSelector"] = with(values + ".nodeSelector")
	pod["tolerations"] = with(values + ".tolerations")
	pod["affinity"] = with(values + ".affinity")
	pod["imagePullSecrets"] = with("$.Values.imagePullSecrets")
	meta := spec["template"].(map[string]any)["metadata"].(map[string]any)
	meta["labels"].(map[string]any)[""] = each(values + ".podLabels")
	meta["annotations"].(map[string]any)[""] = each(values + ".podAnnotations")
	container := pod["containers"].([]any)[0].(map[string]any)
	container["image"] = raw(
		fmt.Sprintf(
			`{{ %[1]s.image | default (printf "%%s/%[2]s:%%s" $.Values.image.repository ($.Values.image.tag | default $.Chart.AppVersion)) | quote }}`, values, c.name))
	container["imagePullPolicy"] = withText("$.Values.image.pullPolicy")
	container["resources"] = block(values + ".resources")
	container["args"] = append(slices.DeleteFunc(container["args"].([]any), isExtra), each(values+".extraArgs"))
}

// isExtra reports whether a flag that an overlay gives is one of extraArgs here.
func isExtra(flag any) bool { return strings.HasPrefix(fmt.Sprint(flag), "--leader-elect-") }

// replaceNames returns a copy in which the namespaces of overlay namespace-scoped are those of the values.
func replaceNames(node any) any {
	switch node := node.(type) {
	case map[string]any:
		m := make(map[string]any, len(node))
		for key, value := range node {
			m[key] = replaceNames(value)
		}
		return m
	case []any:
		if reflect.DeepEqual(node, []any{"team-a", "team-b"}) {
			return raw("{{ toJson $.Values.namespaces }}")
		}
		if of, ok := leasesOfShards(node); ok {
			return raw("[{{ range $i := until (int $.Values.shards) }}{{ if $i }}, {{ end }}" + of + "{{ $i }}{{ end }}]")
		}
		list := make([]any, 0, len(node))
		for _, item := range node {
			list = append(list, replaceNames(item))
		}
		return list
	case string:
		if page, ok := strings.CutPrefix(node, monitoring.RunbookBase+"/"); ok {
			return raw(fmt.Sprintf("{{ printf \"%%s/%s\" $.Values.monitoring.runbooks | quote }}", page))
		}
		switch node {
		case "team-a":
			return raw("{{ $namespace | quote }}") // in a loop over the namespaces
		case "--shards=8":
			return raw(`{{ printf "--shards=%v" $.Values.shards | quote }}`)
		case "--namespaces=team-a,team-b":
			return raw(`{{ printf "--namespaces=%s" (join "," $.Values.namespaces) | quote }}`)
		}
		return node
	default:
		return node
	}
}

// leasesOfShards reports whether a list has the names of the Leases of component sharded, which are this and a number.
func leasesOfShards(list []any) (of string, ok bool) {
	for i, item := range list {
		name, number, found := strings.Cut(fmt.Sprint(item), "-shard-")
		if !found || number != strconv.Itoa(i) {
			return "", false
		}
		of = name + "-shard-"
	}
	return of, of != ""
}

// document is one object under all conditions.
type document struct {
	file         string
	guard        string
	base         object // nil if it is in no full overlay
	alternatives []alternative
}

// templatesOf writes the templates from what overlay full has and what the parts change.
func templatesOf(full []object) (map[string]string, error) {
	var order []string
	documents := map[string]*document{}
	at := func(o object) *document {
		key := o.key()
		if documents[key] == nil {
			documents[key] = &document{}
			order = append(order, key)
		}
		return documents[key]
	}
	for _, o := range full {
		d := at(o)
		d.base = inject(o)
		d.file, d.guard = placeOf(o, "")
	}
	for _, p := range parts {
		if err := compare(p, documents, at); err != nil {
			return nil, err
		}
	}
	files := map[string]string{}
	for _, key := range order {
		d := documents[key]
		text, err := d.write()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if text == "" {
			continue
		}
		name := "templates/" + d.file + ".yaml"
		if files[name] == "" {
			files[name] = header
		}
		files[name] += text
	}
	return files, nil
}

// compare adds to the documents what a part makes of them.
func compare(p part, documents map[string]*document, at func(object) *document) error {
	rendered, err := render(p.resources, p.components)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, o := range rendered {
		if p.only != "" && o.key() != "Deployment/"+placeholder+"/"+p.only {
			continue
		}
		d := at(o)
		seen[o.key()] = true
		if d.file == "" {
			d.file, d.guard = placeOf(o, p.fileName())
		}
		d.alternatives = append(d.alternatives, alternative{p.condition, map[string]any(inject(o)), true})
	}
	for key, d := range documents {
		if p.only == "" && !seen[key] && d.base != nil && d.file != "user-roles" {
			d.alternatives = append(d.alternatives, alternative{p.condition, nil, false})
		}
	}
	return nil
}

// fileName is where the objects go that only this part has and that are no component's.
func (p part) fileName() string {
	if len(p.components) > 0 {
		return strings.TrimPrefix(p.components[0], "components/")
	}
	return strings.TrimPrefix(p.resources[0], "overlays/")
}

// placeOf says in which file an object goes and under which condition it is there at all.
func placeOf(o object, fallback string) (file, guard string) {
	if c := o.component(); c != nil {
		guard = "$.Values." + c.key + ".enabled"
		if o.kind() == "NetworkPolicy" {
			guard = "(and " + guard + " $.Values.networkPolicy.create)"
		}
		return c.name, guard
	}
	switch {
	case fallback != "":
		return fallback, ""
	case o.kind() == "FlowSchema" || o.kind() == "PriorityLevelConfiguration":
		return "flow-control", "$.Values.flowControl.create"
	case strings.HasSuffix(o.name(), "-confinement"):
		return "confinement", ""
	case o.kind() == "ClusterRole", strings.HasPrefix(o.kind(), "ValidatingAdmissionPolicy"):
		return "user-roles", "$.Values.userRoles.create"
	default:
		return "", ""
	}
}

// write is the document's template.
func (d *document) write() (string, error) {
	if d.file == "" {
		return "", fmt.Errorf("no file of the chart is for it: extend placeOf in hack/generate/chart/template.go")
	}
	whole := d.base
	conditions := make([]string, 0, 2)
	if d.guard != "" {
		conditions = append(conditions, d.guard)
	}
	loop := false
	var within []alternative
	for _, a := range d.alternatives {
		switch {
		case d.base == nil && whole == nil:
			whole = object(a.value.(map[string]any))
			if whole.namespace() == "team-b" {
				return "", nil // the same as in team-a
			}
			if _, loop = whole["metadata"].(map[string]any)["namespace"].(raw); !loop {
				conditions = append(conditions, a.condition)
			}
		case d.base == nil:
			return "", fmt.Errorf("two parts bring it")
		case !a.present:
			conditions = append(conditions, "(not "+a.condition+")")
		case !reflect.DeepEqual(map[string]any(d.base), a.value):
			within = append(within, a)
		}
	}
	w := &writer{}
	if loop {
		w.line(0, "{{- range $namespace := $.Values.namespaces }}")
	}
	w.open(conditions)
	w.line(0, "---")
	if err := w.entries(0, whole, within); err != nil {
		return "", err
	}
	w.shut(conditions)
	if loop {
		w.line(0, "{{- end }}")
	}
	return w.text.String(), nil
}

// writer writes YAML with conditions in it.
type writer struct {
	text strings.Builder
	// dash is true between the dash of a list item and its first line.
	dash bool
}

func (w *writer) line(indent int, text string) {
	if w.dash {
		indent -= 2
		text = "- " + text
		w.dash = false
	}
	w.text.WriteString(strings.Repeat(" ", indent) + text + "\n")
}

// directive writes a line of the template language only.
func (w *writer) directive(text string) error {
	if w.dash {
		return fmt.Errorf("a list item cannot begin with a condition: %s", text)
	}
	w.line(0, text)
	return nil
}

func (w *writer) open(conditions []string) {
	switch len(conditions) {
	case 0:
	case 1:
		w.line(0, "{{- if "+conditions[0]+" }}")
	default:
		w.line(0, "{{- if and "+strings.Join(conditions, " ")+" }}")
	}
}

func (w *writer) shut(conditions []string) {
	if len(conditions) > 0 {
		w.line(0, "{{- end }}")
	}
}

// entries writes a map: base, changed by the alternatives.
func (w *writer) entries(indent int, base map[string]any, alternatives []alternative) error {
	for _, key := range keysOf(base, alternatives) {
		value, inBase := base[key]
		var differing []alternative
		for _, a := range alternatives {
			other, present := a.value.(map[string]any)[key]
			if present != inBase || !reflect.DeepEqual(value, other) {
				differing = append(differing, alternative{a.condition, other, present})
			}
		}
		if err := w.entry(indent, key, value, inBase, differing); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// keysOf are the keys of all, sorted, but for a name, which comes first.
func keysOf(base map[string]any, alternatives []alternative) []string {
	all := maps.Clone(base)
	for _, a := range alternatives {
		maps.Copy(all, a.value.(map[string]any))
	}
	keys := slices.Sorted(maps.Keys(all))
	if i := slices.Index(keys, "name"); i > 0 {
		keys = slices.Insert(slices.Delete(keys, i, i+1), 0, "name")
	}
	if len(keys) > 0 && keys[0] == "" { // further entries come last
		keys = append(keys[1:], "")
	}
	return keys
}

func (w *writer) entry(indent int, key string, value any, inBase bool, differing []alternative) error {
	if len(differing) == 0 {
		return w.plain(indent, key, value)
	}
	if !inBase {
		return w.added(indent, key, differing)
	}
	if containers(value, differing) {
		w.line(indent, quoted(key)+":")
		return w.children(indent, value, differing)
	}
	for i, a := range differing {
		word := "{{- if "
		if i > 0 {
			word = "{{- else if "
		}
		if err := w.directive(word + a.condition + " }}"); err != nil {
			return err
		}
		if a.present {
			if err := w.plain(indent, key, a.value); err != nil {
				return err
			}
		}
	}
	if err := w.directive("{{- else }}"); err != nil {
		return err
	}
	if err := w.plain(indent, key, value); err != nil {
		return err
	}
	return w.directive("{{- end }}")
}

// added writes an entry that only alternatives have.
func (w *writer) added(indent int, key string, alternatives []alternative) error {
	conditions := make([]string, 0, len(alternatives))
	for _, a := range alternatives {
		conditions = append(conditions, a.condition)
	}
	if len(alternatives) == 1 {
		if err := w.directive("{{- if " + conditions[0] + " }}"); err != nil {
			return err
		}
		if err := w.plain(indent, key, alternatives[0].value); err != nil {
			return err
		}
		return w.directive("{{- end }}")
	}
	var empty any = map[string]any{}
	if _, list := alternatives[0].value.([]any); list {
		empty = []any{}
	}
	if !containers(empty, alternatives) {
		return fmt.Errorf("added by %s: only maps and lists can be added twice", strings.Join(conditions, " and "))
	}
	if err := w.directive("{{- if or " + strings.Join(conditions, " ") + " }}"); err != nil {
		return err
	}
	w.line(indent, quoted(key)+":")
	if err := w.children(indent, empty, alternatives); err != nil {
		return err
	}
	return w.directive("{{- end }}")
}

// containers reports whether all are maps, or all lists, that are not only written differently.
func containers(value any, alternatives []alternative) bool {
	for _, a := range alternatives {
		if !a.present || reflect.TypeOf(a.value) != reflect.TypeOf(value) {
			return false
		}
	}
	switch value := value.(type) {
	case map[string]any:
		return true
	case []any:
		return !slices.ContainsFunc(alternatives, func(a alternative) bool { return !continues(a.value.([]any), value) })
	default:
		return false
	}
}

// same reports whether two list items are one, perhaps changed: things with a name are known by it.
func same(a, b any) bool {
	am, aok := a.(map[string]any)
	bm, bok := b.(map[string]any)
	if aok && bok && am["name"] != nil {
		return reflect.DeepEqual(am["name"], bm["name"])
	}
	return reflect.DeepEqual(a, b)
}

// continues reports whether list has all items of base, in their order, and further ones only after them; the items
// that the values give stay last.
func continues(list, base []any) bool {
	at := 0
	for _, item := range list {
		if at < len(base) && same(base[at], item) {
			at++
			continue
		}
		if at < len(base) {
			if _, last := base[at].(each); !last {
				return false
			}
		}
	}
	return at == len(base)
}

func (w *writer) children(indent int, value any, alternatives []alternative) error {
	if base, ok := value.(map[string]any); ok {
		return w.entries(indent+2, base, alternatives)
	}
	return w.items(indent, value.([]any), alternatives)
}

// items writes a list that alternatives continue.
func (w *writer) items(indent int, base []any, alternatives []alternative) error {
	var last []any
	if n := len(base); n > 0 {
		if _, ok := base[n-1].(each); ok {
			base, last = base[:n-1], base[n-1:]
		}
	}
	for _, item := range base {
		var differing []alternative
		for _, a := range alternatives {
			list := a.value.([]any)
			other := list[slices.IndexFunc(list, func(o any) bool { return same(item, o) })]
			if !reflect.DeepEqual(item, other) {
				differing = append(differing, alternative{a.condition, other, true})
			}
		}
		if err := w.item(indent, item, differing); err != nil {
			return err
		}
	}
	known := append(slices.Clone(base), last...)
	for _, a := range alternatives {
		further := slices.DeleteFunc(slices.Clone(a.value.([]any)), func(item any) bool {
			return slices.ContainsFunc(known, func(o any) bool { return same(o, item) })
		})
		if len(further) == 0 {
			continue
		}
		if err := w.directive("{{- if " + a.condition + " }}"); err != nil {
			return err
		}
		for _, item := range further {
			if err := w.item(indent, item, nil); err != nil {
				return err
			}
		}
		if err := w.directive("{{- end }}"); err != nil {
			return err
		}
	}
	for _, item := range last {
		if err := w.item(indent, item, nil); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) item(indent int, item any, differing []alternative) error {
	switch value := item.(type) {
	case map[string]any:
		w.dash = true
		return w.entries(indent+2, value, differing)
	case each:
		w.line(0, "{{- with "+string(value)+" }}")
		w.line(indent, fmt.Sprintf("{{- toYaml . | nindent %d }}", indent))
		w.line(0, "{{- end }}")
		return nil
	case raw:
		w.line(indent, "- "+string(value))
		return nil
	case []any:
		return fmt.Errorf("a list in a list is not supported")
	default:
		flag, _ := value.(string)
		if condition := flags[flag]; condition != "" {
			w.line(0, "{{- if "+condition+" }}")
			defer w.line(0, "{{- end }}")
		}
		lines := scalar(value)
		w.line(indent, "- "+lines[0])
		for _, line := range lines[1:] {
			w.line(indent, line)
		}
		return nil
	}
}

// plain writes one entry without conditions.
func (w *writer) plain(indent int, key string, value any) error {
	name := quoted(key) + ":"
	switch value := value.(type) {
	case with:
		if err := w.directive("{{- with " + string(value) + " }}"); err != nil {
			return err
		}
		w.line(indent, fmt.Sprintf("%s {{- toYaml . | nindent %d }}", name, indent+2))
		return w.directive("{{- end }}")
	case withText:
		if err := w.directive("{{- with " + string(value) + " }}"); err != nil {
			return err
		}
		w.line(indent, name+" {{ quote . }}")
		return w.directive("{{- end }}")
	case each:
		if err := w.directive("{{- with " + string(value) + " }}"); err != nil {
			return err
		}
		w.line(indent, fmt.Sprintf("{{- toYaml . | nindent %d }}", indent))
		return w.directive("{{- end }}")
	case block:
		w.line(indent, fmt.Sprintf("%s {{- toYaml %s | nindent %d }}", name, value, indent+2))
	case raw:
		w.line(indent, name+" "+string(value))
	case map[string]any:
		if len(value) == 0 {
			w.line(indent, name+" {}")
			return nil
		}
		w.line(indent, name)
		return w.entries(indent+2, value, nil)
	case []any:
		if len(value) == 0 {
			w.line(indent, name+" []")
			return nil
		}
		w.line(indent, name)
		return w.items(indent, value, nil)
	default:
		lines := scalar(value)
		w.line(indent, name+" "+lines[0])
		for _, line := range lines[1:] {
			w.line(indent, line)
		}
	}
	return nil
}

// scalar is a scalar as YAML, in lines; all but the first are to be indented with their parent.
func scalar(value any) []string {
	if value == placeholder {
		return []string{"{{ $.Release.Namespace | quote }}"}
	}
	content, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // a scalar
	}
	text := strings.ReplaceAll(escape(strings.TrimSuffix(string(content), "\n")), placeholder, "{{ $.Release.Namespace }}")
	return strings.Split(text, "\n")
}

func quoted(key string) string { return scalar(key)[0] }
