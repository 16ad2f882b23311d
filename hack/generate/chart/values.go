package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/monitoring"
)

// settings are what the values say about one component's Deployment, as kustomize rendered it.
type settings struct {
	Replicas                  any `json:"replicas"`
	Resources                 any `json:"resources"`
	RollingUpdate             any `json:"rollingUpdate"`
	PriorityClassName         any `json:"priorityClassName"`
	TopologySpreadConstraints any `json:"topologySpreadConstraints"`
	// ExtraArgs are nil if there are none.
	ExtraArgs []any `json:"extraArgs"`
}

func podSpec(deployment object) map[string]any {
	return deployment["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
}

// settingsOf returns the settings of each component by its name.
func settingsOf(objects []object) (map[string]settings, error) {
	all := map[string]settings{}
	for _, o := range objects {
		if o.kind() != "Deployment" {
			continue
		}
		spec, pod := o["spec"].(map[string]any), podSpec(o)
		containers := pod["containers"].([]any)
		if len(containers) != 1 {
			return nil, fmt.Errorf("%s has %d containers: the chart knows one", o.key(), len(containers))
		}
		s := settings{
			Replicas:                  spec["replicas"],
			RollingUpdate:             spec["strategy"].(map[string]any)["rollingUpdate"],
			Resources:                 containers[0].(map[string]any)["resources"],
			PriorityClassName:         "",
			TopologySpreadConstraints: pod["topologySpreadConstraints"],
			ExtraArgs:                 extraArgs(containers[0].(map[string]any)["args"].([]any)),
		}
		if name, ok := pod["priorityClassName"]; ok {
			s.PriorityClassName = name
		}
		all[o.name()] = s
	}
	return all, nil
}

func extraArgs(args []any) []any {
	var extra []any
	for _, arg := range args {
		if isExtra(arg) {
			extra = append(extra, arg)
		}
	}
	return extra
}

// appVersion is the tag that all images have.
func appVersion(objects []object) (string, error) {
	tags := map[string]bool{}
	for _, o := range objects {
		if o.kind() != "Deployment" {
			continue
		}
		image := podSpec(o)["containers"].([]any)[0].(map[string]any)["image"].(string)
		name, tag, ok := strings.Cut(image, ":")
		if !ok || name != "kuperator/"+o.name() {
			return "", fmt.Errorf("%s has image %s: expected kuperator/%s with a tag", o.key(), image, o.name())
		}
		tags[tag] = true
	}
	if len(tags) != 1 {
		return "", fmt.Errorf("the images have different tags: %v", slices.Sorted(maps.Keys(tags)))
	}
	return slices.Collect(maps.Keys(tags))[0], nil
}

func chartYAML(version string) string {
	return header + `apiVersion: v2
name: kuperator
description: Controllers that make every operation on a Pod graceful.
type: application
version: ` + strings.TrimPrefix(version, "v") + `
appVersion: ` + version + `
kubeVersion: ">=1.30.0-0"
keywords: [workload, rollout, graceful, pods]
`
}

func toYAML(value any, indent int) string {
	content, err := yaml.Marshal(value)
	if err != nil {
		panic(err) // values that came from YAML
	}
	pad := strings.Repeat(" ", indent)
	return pad + strings.TrimSuffix(strings.ReplaceAll(string(content), "\n", "\n"+pad), pad)
}

// special are the values that one component has beside those of all, with their comments.
var special = map[string]string{
	"collasetController": `
  # Update and delete Pods through the Pod lifecycle. false: directly, as a Deployment does, without lifecycleController.
  podOpsLifecycle: true
`,
	"podtransitionruleController": `
  # Allow it to read the Secrets that webhook rules name, in all namespaces.
  webhookSecrets: false
`,
	"resourceconsistController": `
  # Enable the adapter alibaba-cloud-slb. The access key is in the Secret alibaba-cloud-slb. Set the region in extraArgs:
  # --alibaba-cloud-slb-region=...
  alibabaCloudSLB: false
`,
	"webhookServer": `
  # Take managed Pods out of service before they are deleted or evicted.
  gracefulDeletion: true
  # Add the expected finalizers of their Services to new Pods. Requires resourceconsistController.
  announceServices: true
  # Use a certificate of cert-manager, which must be installed. false: webhook-server issues and renews its own.
  certManager: false
`,
}

func valuesYAML(defaults map[string]settings) string {
	var b strings.Builder
	b.WriteString(header +
		`# The defaults are those of deploy/overlays/full. The files in variants/ correspond to the other overlays: helm install -f
# variants/ha.yaml.

# Images are <repository>/<component>:<tag>.
image:
  repository: kuperator
  # Empty: the chart's appVersion.
  tag: ""
  # Empty: Kubernetes' default.
  pullPolicy: ""
# Names of Secrets in the release's namespace: [{name: registry}].
imagePullSecrets: []

# The namespaces to watch, which must exist. Empty: all. If set, the components have permissions in these namespaces only, except for
# cluster-scoped objects: nodes, namespaces, webhook configurations and reviews of tokens.
namespaces: []

crds:
  # The CRDs are kept when the release is uninstalled, and when this is set to false.
  install: true

# Roles for users of the suite.
userRoles:
  create: true

# A priority level of API Priority and Fairness for the suite.
flowControl:
  create: true

priorityClass:
  # The PriorityClass kuperator, for the components' priorityClassName.
  create: false

networkPolicy:
  # Restrict ingress to the ports that the Pods serve.
  create: true
  # Restrict egress to DNS and TCP 443 and 6443.
  restrictEgress: false

# Number of shards that namespaces are divided into. Each shard has its own leader in each controller, so that all replicas are active
# (docs/scale-out.md). 1: one leader. Two to four shards per replica are recommended.
shards: 1

# kuperator-v0.7: the defaults and contracts of Kuperator v0.7 where a CollaSet does not set others
# (docs/migrate/from-kuperator.md). Empty: those of this suite.
compatibility: ""

monitoring:
  # A ServiceMonitor and a PrometheusRule. Needs the CRDs of the Prometheus operator.
  prometheusOperator: false
  # Dashboards as ConfigMaps with the label of Grafana's sidecar.
  grafanaDashboards: false
  # The URL below which alerts find their runbooks.
  runbooks: ` + monitoring.RunbookBase + `
`)
	for _, c := range components {
		d := defaults[c.name]
		fmt.Fprintf(&b, "\n# %s\n%s:\n  enabled: true\n", c.name, c.key)
		fmt.Fprintf(&b, "  replicas: %v\n", d.Replicas)
		b.WriteString(strings.TrimPrefix(special[c.key], "\n"))
		b.WriteString(
			"  # Complete image reference, for example with a digest. Empty: from the values above.\n  image: \"\"\n")
		b.WriteString("  # Additional flags; see --help of the program.\n  extraArgs: []\n")
		fmt.Fprintf(&b, "  resources:\n%s", toYAML(d.Resources, 4))
		fmt.Fprintf(&b, "  rollingUpdate:\n%s", toYAML(d.RollingUpdate, 4))
		fmt.Fprintf(&b, "  topologySpreadConstraints:\n%s", toYAML(d.TopologySpreadConstraints, 2))
		fmt.Fprintf(&b, "  priorityClassName: %q\n", d.PriorityClassName)
		b.WriteString("  nodeSelector: {}\n  tolerations: []\n  affinity: {}\n  podLabels: {}\n  podAnnotations: {}\n")
	}
	return b.String()
}

// variantFiles are the values that give each overlay.
func variantFiles(defaults map[string]settings) (map[string]string, error) {
	highly, err := render([]string{"overlays/ha"}, nil)
	if err != nil {
		return nil, err
	}
	ha := map[string]any{"priorityClass": map[string]any{"create": true}}
	haSettings, err := settingsOf(highly)
	if err != nil {
		return nil, err
	}
	for _, c := range components {
		ha[c.key] = difference(defaults[c.name], haSettings[c.name])
	}
	sharded := maps.Clone(ha)
	sharded["shards"] = 8
	variants := map[string]map[string]any{
		"full":             {},
		"ha":               ha,
		"sharded":          sharded,
		"kuperator-v0.7":   {"compatibility": "kuperator-v0.7"},
		"no-webhook":       {"webhookServer": map[string]any{"enabled": false}},
		"namespace-scoped": {"namespaces": []string{"team-a", "team-b"}},
	}
	alone := map[string]map[string]any{
		"collaset-controller":          {"podOpsLifecycle": false},
		"podtransitionrule-controller": {},
		"lifecycle-controller":         {},
		"resourceconsist-controller":   {},
		"operationjob-controller":      {},
		"poddecoration-controller":     {},
		"webhook-server":               {"gracefulDeletion": false, "announceServices": false},
	}
	for name, own := range alone {
		values := map[string]any{"flowControl": map[string]any{"create": false}}
		for _, c := range components {
			if c.name != name {
				values[c.key] = map[string]any{"enabled": false}
			} else if len(own) > 0 {
				values[c.key] = own
			}
		}
		short, _, _ := strings.Cut(name, "-")
		variants[short+"-only"] = values
	}
	files := map[string]string{}
	for name, values := range variants {
		files["variants/"+name+".yaml"] = header + "# The same as deploy/overlays/" + name + ".\n" + toYAML(values, 0)
	}
	return files, nil
}

// difference are the settings of b that are not those of a.
func difference(a, b settings) map[string]any {
	differing := map[string]any{}
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range av.NumField() {
		if !reflect.DeepEqual(av.Field(i).Interface(), bv.Field(i).Interface()) {
			differing[av.Type().Field(i).Tag.Get("json")] = bv.Field(i).Interface()
		}
	}
	return differing
}

// schema is a JSON schema.
type schema map[string]any

func objectOf(properties map[string]schema) schema {
	return schema{"type": "object", "properties": properties, "additionalProperties": false}
}

var (
	boolean = schema{"type": "boolean"}
	text    = schema{"type": "string"}
	anyMap  = schema{"type": "object"}
	objects = schema{"type": "array", "items": anyMap}
	words   = schema{"type": "object", "additionalProperties": text}
)

// valuesSchema refuses what is misspelt or of the wrong type, before anything is installed.
func valuesSchema() string {
	properties := map[string]schema{
		"image": objectOf(map[string]schema{
			"repository": {"type": "string", "minLength": 1}, "tag": text,
			"pullPolicy": {"enum": []string{"", "Always", "IfNotPresent", "Never"}},
		}),
		"imagePullSecrets": {"type": "array", "items": schema{
			"type": "object", "properties": map[string]schema{"name": text}, "required": []string{"name"},
			"additionalProperties": false,
		}},
		"namespaces": {"type": "array", "uniqueItems": true,
			"items": schema{"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}},
		"crds":          objectOf(map[string]schema{"install": boolean}),
		"userRoles":     objectOf(map[string]schema{"create": boolean}),
		"flowControl":   objectOf(map[string]schema{"create": boolean}),
		"compatibility": {"enum": []string{"", "kuperator-v0.7"}},
		"shards":        {"type": "integer", "minimum": 1, "maximum": 64},
		"priorityClass": objectOf(map[string]schema{"create": boolean}),
		"networkPolicy": objectOf(map[string]schema{"create": boolean, "restrictEgress": boolean}),
		"monitoring": objectOf(map[string]schema{"prometheusOperator": boolean, "grafanaDashboards": boolean,
			"runbooks": text}),
		"global": anyMap, // Helm gives it to every chart
	}
	own := map[string]map[string]schema{
		"collasetController":          {"podOpsLifecycle": boolean},
		"podtransitionruleController": {"webhookSecrets": boolean},
		"resourceconsistController":   {"alibabaCloudSLB": boolean},
		"webhookServer":               {"gracefulDeletion": boolean, "announceServices": boolean, "certManager": boolean},
	}
	for _, c := range components {
		component := map[string]schema{
			"enabled": boolean, "replicas": {"type": "integer", "minimum": 0}, "image": text,
			"extraArgs": {"type": "array", "items": schema{"type": "string", "pattern": "^-"}},
			"resources": anyMap, "rollingUpdate": anyMap, "topologySpreadConstraints": objects, "priorityClassName": text,
			"nodeSelector": words, "tolerations": objects, "affinity": anyMap, "podLabels": words, "podAnnotations": words,
		}
		maps.Copy(component, own[c.key])
		properties[c.key] = objectOf(component)
	}
	whole := objectOf(properties)
	whole["$schema"] = "http://json-schema.org/draft-07/schema#"
	content, err := json.MarshalIndent(whole, "", "  ")
	if err != nil {
		panic(err) // maps of strings
	}
	return string(content) + "\n"
}
