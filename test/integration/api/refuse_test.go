package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"
)

// plain manifests are accepted; each refusal differs from one of them by one value.
var plain = map[string]string{
	"collaset": `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: nginx}]
      initContainers: [{name: prepare, image: busybox}]
      volumes: [{name: scratch, emptyDir: {}}]
  volumeClaimTemplates:
  - {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
  namingStrategy: {podNamingSuffixPolicy: Random}
  scaleStrategy: {context: pool}
  updateStrategy: {podUpgradePolicy: Recreate, rollingUpdate: {byPartition: {partition: 0}}}`,
	"podtransitionrule": `
apiVersion: apps.kusionstack.io/v1alpha1
kind: PodTransitionRule
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  rules:
  - {name: available, availablePolicy: {maxUnavailableValue: 1}}
  - {name: label, labelCheck: {requires: {matchLabels: {a: b}}}}
  - name: webhook
    webhook:
      clientConfig: {url: "http://checks.example.com/", poll: {url: "http://checks.example.com/poll"}}
      parameters: [{key: a, value: b}]`,
	"resourcecontext": `
apiVersion: apps.kusionstack.io/v1alpha1
kind: ResourceContext
metadata: {name: web}
spec: {contexts: [{id: 0}]}`,
}

// indent moves a manifest one level in, below a key.
func indent(manifest string) string {
	return strings.ReplaceAll(manifest, "\n", "\n  ")
}

// set puts a value, given as YAML, at a path such as "spec.rules.0.name"; "-" removes what is there.
func set(t *testing.T, object map[string]any, path, value string) {
	t.Helper()
	var parent any = object
	steps := strings.Split(path, ".")
	for _, step := range steps[:len(steps)-1] {
		switch p := parent.(type) {
		case map[string]any:
			if _, ok := p[step]; !ok {
				p[step] = map[string]any{}
			}
			parent = p[step]
		case []any:
			require.Len(t, step, 1, "an index of one digit")
			parent = p[step[0]-'0']
		}
	}
	at, ok := parent.(map[string]any)
	require.True(t, ok, "%s leads into a %T", path, parent)
	if value == "-" {
		delete(at, steps[len(steps)-1])
		return
	}
	var parsed any
	require.NoError(t, yaml.Unmarshal([]byte(value), &parsed))
	at[steps[len(steps)-1]] = parsed
}

type change struct{ path, value string }

var refusals = map[string]struct {
	kind    string
	changes []change
	// want are parts of the message: the field, the offending value if it can be named, the remedy.
	want []string
}{
	"a CollaSet without spec": {"collaset", []change{{"spec", "-"}},
		[]string{"spec is missing", "give it a selector and a template"}},
	"a CollaSet without selector": {"collaset", []change{{"spec.selector", "-"}},
		[]string{"spec.selector is required", "set matchLabels"}},
	"negative replicas": {"collaset", []change{{"spec.replicas", "-2"}},
		[]string{"spec.replicas", "-2", "greater than or equal to 0"}},
	"negative history": {
		"collaset", []change{{"spec.historyLimit", "-2"}}, []string{"spec.historyLimit", "-2", "greater than or equal to 0"},
	},
	"negative ready time": {
		"collaset", []change{{"spec.minReadySeconds", "-2"}},
		[]string{"spec.minReadySeconds", "-2", "greater than or equal to 0"},
	},
	"a negative partition": {
		"collaset", []change{{"spec.updateStrategy.rollingUpdate.byPartition.partition", "-2"}},
		[]string{"spec.updateStrategy.rollingUpdate.byPartition.partition", "-2", "greater than or equal to 0"},
	},
	"a negative delay of updates": {
		"collaset", []change{{"spec.updateStrategy.operationDelaySeconds", "-2"}},
		[]string{"spec.updateStrategy.operationDelaySeconds", "-2", "greater than or equal to 0"},
	},
	"a negative delay of scaling": {
		"collaset", []change{{"spec.scaleStrategy.operationDelaySeconds", "-2"}},
		[]string{"spec.scaleStrategy.operationDelaySeconds", "-2", "greater than or equal to 0"},
	},
	"an unknown way to update": {
		"collaset", []change{{"spec.updateStrategy.podUpgradePolicy", "Sometimes"}},
		[]string{"spec.updateStrategy.podUpgradePolicy", `"Sometimes"`, "supported values", `"InPlaceIfPossible"`},
	},
	"an unknown way to name Pods": {
		"collaset", []change{{"spec.namingStrategy.podNamingSuffixPolicy", "Ordinal"}},
		[]string{"spec.namingStrategy.podNamingSuffixPolicy", `"Ordinal"`, "supported values", `"PersistentSequence"`},
	},
	"an unknown fate of claims": {
		"collaset", []change{{"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenScaled", "Keep"}},
		[]string{"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenScaled", `"Keep"`, "supported values",
			`"Retain"`},
	},
	"no Pod may be unavailable": {
		"collaset", []change{{"spec.updateStrategy.rollingUpdate.maxUnavailable", "0"}},
		[]string{"spec.updateStrategy.rollingUpdate.maxUnavailable", "0",
			"must be at least 1, or a percentage from 1% to 100%"},
	},
	"more than all may be unavailable": {
		"collaset", []change{{"spec.updateStrategy.rollingUpdate.maxUnavailable", `"101%"`}},
		[]string{"spec.updateStrategy.rollingUpdate.maxUnavailable", `"101%"`, "a percentage from 1% to 100%"},
	},
	"Pods replaced before an eviction, and not by one": {
		"collaset", []change{{"spec.disruption", `{"beforeEviction": true, "onEviction": "Delete"}`}},
		[]string{"spec.disruption.beforeEviction", "set onEviction to Replace or ReplaceWhenBlocked"},
	},
	"evicted Pods of which none may be replaced": {
		"collaset", []change{{"spec.disruption", `{"onEviction": "Replace", "maxSurge": 0}`}},
		[]string{"spec.disruption.maxSurge", "0", "must be at least 1, or a percentage such as 25%"},
	},
	"another policy of evictions": {
		"collaset", []change{{"spec.disruption", `{"onEviction": "Surge"}`}},
		[]string{"spec.disruption.onEviction", "Surge", `"Delete", "Replace", "ReplaceWhenBlocked"`},
	},
	"a surge of none": {
		"collaset", []change{{"spec.updateStrategy.maxSurge", "0"}},
		[]string{"spec.updateStrategy.maxSurge", "0", "must be at least 1, or a percentage such as 25%"},
	},
	"a negative surge": {
		"collaset", []change{{"spec.updateStrategy.maxSurge", "-1"}},
		[]string{"spec.updateStrategy.maxSurge", "-1", "must be at least 1"},
	},
	"a surge of no percent": {
		"collaset", []change{{"spec.updateStrategy.maxSurge", `"0%"`}},
		[]string{"spec.updateStrategy.maxSurge", `"0%"`, "must be at least 1"},
	},
	"a surge of a negative share": {
		"collaset", []change{{"spec.updateStrategy.maxSurge", `"-5%"`}},
		[]string{"spec.updateStrategy.maxSurge", `"-5%"`, "must be at least 1"},
	},
	"a surge in words": {
		"collaset", []change{{"spec.updateStrategy.maxSurge", "half"}},
		[]string{"spec.updateStrategy.maxSurge", `"half"`, "a percentage such as 25%"},
	},
	"a surge in quotes": {
		"collaset", []change{{"spec.updateStrategy.maxSurge", `"3"`}},
		[]string{"spec.updateStrategy.maxSurge", `"3"`, "a percentage such as 25%"},
	},
	"a partition beyond all": {
		"collaset", []change{{"spec.updateStrategy.rollingUpdate.byPartition.partition", `"101%"`}},
		[]string{"spec.updateStrategy.rollingUpdate.byPartition.partition", `"101%"`, "a percentage from 0% to 100%"},
	},
	"a partition below none": {
		"collaset", []change{{"spec.updateStrategy.rollingUpdate.byPartition.partition", `"-1%"`}},
		[]string{"spec.updateStrategy.rollingUpdate.byPartition.partition", `"-1%"`, "a percentage from 0% to 100%"},
	},
	"a partition in words": {
		"collaset", []change{{"spec.updateStrategy.rollingUpdate.byPartition.partition", "half"}},
		[]string{"spec.updateStrategy.rollingUpdate.byPartition.partition", `"half"`, "a percentage from 0% to 100%"},
	},
	"a partition in parts": {
		"collaset", []change{{"spec.updateStrategy.rollingUpdate.byPartition.partition", "1.5"}},
		[]string{"spec.updateStrategy.rollingUpdate.byPartition.partition", "Invalid value", "number"},
	},
	"an unknown answer to a failed update": {
		"collaset", []change{{"spec.updateStrategy.failurePolicy", "Panic"}},
		[]string{"spec.updateStrategy.failurePolicy", `"Panic"`, "supported values", `"Report", "Pause", "Rollback"`},
	},
	"a deadline of no time": {
		"collaset", []change{{"spec.progressDeadlineSeconds", "0"}},
		[]string{"spec.progressDeadlineSeconds", "0", "greater than or equal to 1"},
	},
	"an unknown fate of claims of a deleted CollaSet": {
		"collaset", []change{{"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenDeleted", "Keep"}},
		[]string{"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenDeleted", `"Keep"`, "supported values",
			`"Delete", "Retain"`},
	},
	"an unknown fate of claims of another template": {
		"collaset", []change{{"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenTemplateChanged", "Expand"}},
		[]string{"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenTemplateChanged", `"Expand"`,
			"supported values", `"Delete", "Retain"`},
	},
	"a template that is no object": {
		"collaset", []change{{"spec.template", "nginx"}},
		[]string{"spec.template", "spec.template", "must be of type object"},
	},
	"a template without labels": {
		"collaset", []change{{"spec.template.metadata.labels", "-"}},
		[]string{"spec.template.metadata.labels is required", "set the labels that spec.selector matches"},
	},
	"a selector whose labels the template lacks": {
		"collaset", []change{{"spec.selector.matchLabels.tier", "front"}},
		[]string{"spec.selector", "does not match spec.template.metadata.labels", "give the template every label"},
	},
	"a selector whose expression the template does not satisfy": {
		"collaset", []change{{"spec.selector.matchExpressions", "[{key: app, operator: NotIn, values: [web]}]"}},
		[]string{"spec.selector.matchExpressions does not match spec.template.metadata.labels",
			"change the labels of the template"},
	},
	"a selector that demands a label the template lacks": {
		"collaset", []change{{"spec.selector.matchExpressions", "[{key: tier, operator: Exists}]"}},
		[]string{"spec.selector.matchExpressions does not match spec.template.metadata.labels",
			"change the labels of the template"},
	},
	"a selector that forbids a label the template has": {
		"collaset", []change{{"spec.selector.matchExpressions", "[{key: app, operator: DoesNotExist}]"}},
		[]string{"spec.selector.matchExpressions does not match spec.template.metadata.labels",
			"change the labels of the template"},
	},
	"a selector with an unknown operator": {
		"collaset", []change{{"spec.selector.matchExpressions", "[{key: app, operator: Is, values: [web]}]"}},
		[]string{"spec.selector.matchExpressions[0].operator", `"Is"`, "supported values", `"In"`, `"DoesNotExist"`},
	},
	"a selector with an empty key": {
		"collaset", []change{{"spec.selector.matchLabels", `{"": web}`}},
		[]string{"spec.selector.matchLabels", "empty key", "give it a label key"},
	},
	"a selector with a value that no label can have": {
		"collaset", []change{{"spec.selector.matchLabels.app", "a b"}},
		[]string{"spec.selector.matchLabels", `"a b" is not a label value`, "use letters, digits"},
	},
	"a template without containers": {
		"collaset", []change{{"spec.template.spec.containers", "[]"}},
		[]string{"spec.template.spec.containers is empty", "at least one container"},
	},
	"a template without a Pod": {
		"collaset", []change{{"spec.template.spec", "-"}},
		[]string{"spec.template.spec.containers is empty", "at least one container"},
	},
	"a container without name": {
		"collaset", []change{{"spec.template.spec.containers.0.name", "-"}},
		[]string{"spec.template.spec.containers[0].name", "Required value"},
	},
	"a container without image": {
		"collaset", []change{{"spec.template.spec.containers.0.image", "-"}},
		[]string{"spec.template.spec.containers[0]", `image of container "web" is required`, "set it"},
	},
	"an init container with an empty image": {
		"collaset", []change{{"spec.template.spec.initContainers.0.image", `""`}},
		[]string{"spec.template.spec.initContainers[0]", `image of container "prepare" is required`, "set it"},
	},
	"two containers of one name": {
		"collaset", []change{{"spec.template.spec.containers", "[{name: web, image: a}, {name: web, image: b}]"}},
		[]string{"spec.template.spec.containers[1]", "Duplicate value", "web"},
	},
	"a claim without name": {
		"collaset", []change{{"spec.volumeClaimTemplates.0.metadata.name", "-"}},
		[]string{"spec.volumeClaimTemplates", "needs metadata.name", "set it"},
	},
	"a quantity that is an object": {
		"collaset", []change{{"spec.template.spec.containers.0.resources", "{requests: {cpu: {}}}"}},
		[]string{"spec.template.spec.containers[0].resources.requests.cpu"},
	},
	"a quantity that is a list": {
		"collaset", []change{{"spec.template.spec.containers.0.resources", "{limits: {cpu: []}}"}},
		[]string{"spec.template.spec.containers[0].resources.limits.cpu"},
	},
	"a quantity with something in it": {
		"collaset", []change{{"spec.template.spec.containers.0.resources", "{limits: {cpu: [{a: 1}]}}"}},
		[]string{"spec.template.spec.containers[0].resources.limits.cpu"},
	},
	"a quantity that is neither more nor less": {
		"collaset", []change{{"spec.template.spec.containers.0.resources", "{requests: {cpu: false}}"}},
		[]string{"spec.template.spec.containers[0].resources.requests.cpu"},
	},
	"a quantity that is no number": {
		"collaset", []change{{"spec.template.spec.containers.0.resources", "{requests: {cpu: half}}"}},
		[]string{"spec.template.spec.containers[0].resources.requests.cpu", "half"},
	},
	"a quantity below zero": {
		"collaset", []change{{"spec.template.spec.containers.0.resources", "{requests: {cpu: -0.5}}"}},
		[]string{"spec.template.spec.containers[0].resources.requests.cpu", "greater than or equal to 0"},
	},
	"two claims of one name": {
		"collaset", []change{{"spec.volumeClaimTemplates", "[{metadata: {name: data}}, {metadata: {name: data}}]"}},
		[]string{"spec.volumeClaimTemplates", "more than once", "rename or remove one"},
	},
	"a Pod both excluded and included": {
		"collaset", []change{{"spec.scaleStrategy.podToExclude", "[a, b]"}, {"spec.scaleStrategy.podToInclude", "[b]"}},
		[]string{"spec.scaleStrategy.podToExclude [a, b] and podToInclude [b]", "keep it in one of them"},
	},
	"a Pod both deleted and included": {
		"collaset", []change{{"spec.scaleStrategy.podToDelete", "[a, b]"}, {"spec.scaleStrategy.podToInclude", "[b]"}},
		[]string{"spec.scaleStrategy.podToDelete [a, b] and podToInclude [b]", "keep it in one of them"},
	},
	"a Pod both deleted and excluded": {
		"collaset", []change{{"spec.scaleStrategy.podToDelete", "[a, b]"}, {"spec.scaleStrategy.podToExclude", "[b]"}},
		[]string{"spec.scaleStrategy.podToDelete [a, b] and podToExclude [b]", "keep it in one of them"},
	},
	"an excluded Pod with names in sequence": {
		"collaset", []change{{"spec.namingStrategy.podNamingSuffixPolicy", "PersistentSequence"},
			{"spec.scaleStrategy.podToExclude", "[a]"}},
		[]string{"spec.scaleStrategy.podToExclude [a] is not allowed when podNamingSuffixPolicy is PersistentSequence",
			"empty the list"},
	},
	"an included Pod with names in sequence": {
		"collaset", []change{{"spec.namingStrategy.podNamingSuffixPolicy", "PersistentSequence"},
			{"spec.scaleStrategy.podToInclude", "[a]"}},
		[]string{"spec.scaleStrategy.podToInclude [a] is not allowed when podNamingSuffixPolicy is PersistentSequence",
			"empty the list"},
	},
	"a rule object without spec": {"podtransitionrule", []change{{"spec", "-"}},
		[]string{"spec is missing", "give it a selector and rules"}},
	"a rule object without selector": {"podtransitionrule", []change{{"spec.selector", "-"}},
		[]string{"spec.selector is required", "set matchLabels"}},
	"a rule object whose selector has an unknown operator": {
		"podtransitionrule", []change{{"spec.selector.matchExpressions", "[{key: app, operator: Is, values: [web]}]"}},
		[]string{"spec.selector.matchExpressions[0].operator", `"Is"`, "supported values", `"NotIn"`},
	},
	"a rule object whose selector has no values for In": {
		"podtransitionrule", []change{{"spec.selector.matchExpressions", "[{key: app, operator: In}]"}},
		[]string{"spec.selector.matchExpressions[0].values", "operator In", "list values"},
	},
	"a rule object whose selector has values for Exists": {
		"podtransitionrule", []change{{"spec.selector.matchExpressions", "[{key: app, operator: Exists, values: [a, b]}]"}},
		[]string{"spec.selector.matchExpressions[0].values", "[a, b] must be empty for operator Exists", "remove them"},
	},
	"a filter with an empty key": {
		"podtransitionrule", []change{{"spec.rules.0.filter.labelSelector.matchExpressions",
			`[{key: "", operator: Exists}]`}},
		[]string{"spec.rules[0].filter.labelSelector.matchExpressions[0].key", `key "" is not a label key`,
			"use one such as"},
	},
	"a filter with a key that no label can have": {
		"podtransitionrule", []change{{"spec.rules.0.filter.labelSelector.matchExpressions",
			`[{key: "a b", operator: Exists}]`}},
		[]string{"spec.rules[0].filter.labelSelector.matchExpressions[0].key", `key "a b" is not a label key`,
			"use one such as"},
	},
	"a rule without name": {
		"podtransitionrule", []change{{"spec.rules.0.name", "-"}}, []string{"spec.rules[0].name", "Required value"},
	},
	"a rule with an empty name": {
		"podtransitionrule", []change{{"spec.rules.0.name", `""`}}, []string{"spec.rules[0]", "name is required", "set one"},
	},
	"two rules of one name": {
		"podtransitionrule", []change{{"spec.rules.1.name", "available"}},
		[]string{"spec.rules[1]", "Duplicate value", "available"},
	},
	"an unknown stage": {
		"podtransitionrule", []change{{"spec.rules.0.stage", "PreTrafficOff"}},
		[]string{"spec.rules[0].stage", `"PreTrafficOff"`, "supported values", `"PreCheck", "PostCheck"`},
	},
	"an availability rule without value": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy", "{}"}},
		[]string{"spec.rules[0].availablePolicy", "needs maxUnavailableValue or minAvailableValue", "set at least one"},
	},
	"groups without a key": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy", "{groups: {setKey: set}}"}},
		[]string{"spec.rules[0].availablePolicy.groups.groupKey", "Required value"},
	},
	"groups with an empty key": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy", `{groups: {groupKey: ""}}`}},
		[]string{"spec.rules[0].availablePolicy.groups.groupKey", "should be at least 1 chars long"},
	},
	"groups by a key that no label can have": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy", "{groups: {groupKey: group of Pod}}"}},
		[]string{"spec.rules[0].availablePolicy.groups.groupKey", "group of Pod"},
	},
	"groups of sets by a key that no label can have": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy", "{groups: {groupKey: group, setKey: a/b/c}}"}},
		[]string{"spec.rules[0].availablePolicy.groups.setKey", "a/b/c"},
	},
	"no group at all": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy", "{groups: {groupKey: group, maxDisruptedGroups: 0}}"}},
		[]string{"spec.rules[0].availablePolicy.groups.maxDisruptedGroups", "greater than or equal to 1"},
	},
	"an availability rule below zero": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy.maxUnavailableValue", "-1"}},
		[]string{"spec.rules[0].availablePolicy.maxUnavailableValue", "-1 is no number of Pods", "not negative"},
	},
	"an availability rule beyond all": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy.minAvailableValue", "101%"}},
		[]string{"spec.rules[0].availablePolicy.minAvailableValue", `"101%" is no number of Pods`, `from "0%" to "100%"`},
	},
	"an availability rule that is no percentage": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy.maxUnavailableValue", "half"}},
		[]string{"spec.rules[0].availablePolicy.maxUnavailableValue", `"half" is no number of Pods`, `from "0%" to "100%"`},
	},
	"an availability rule with a number in quotes": {
		"podtransitionrule", []change{{"spec.rules.0.availablePolicy.maxUnavailableValue", `"1"`}},
		[]string{"spec.rules[0].availablePolicy.maxUnavailableValue", `"1" is no number of Pods`, `from "0%" to "100%"`},
	},
	"a label check without selector": {
		"podtransitionrule", []change{{"spec.rules.1.labelCheck.requires", "-"}},
		[]string{"spec.rules[1].labelCheck.requires", "Required value"},
	},
	"a webhook without client configuration": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig", "-"}},
		[]string{"spec.rules[2].webhook", "clientConfig is required", "set its url"},
	},
	"a webhook without URL": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.url", "-"}},
		[]string{"spec.rules[2].webhook.clientConfig.url", "Required value"},
	},
	"a webhook whose URL has no host": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.url", "http:///check"}},
		[]string{"spec.rules[2].webhook.clientConfig.url", `"http:///check"`, "must be http://host or https://host"},
	},
	"a webhook whose URL is of another protocol": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.url", "ftp://host/check"}},
		[]string{"spec.rules[2].webhook.clientConfig.url", `"ftp://host/check"`, "must be http://host or https://host"},
	},
	"a webhook whose URL cannot be parsed": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.url", "checks"}},
		[]string{"spec.rules[2].webhook.clientConfig.url", `"checks"`, "must be http://host or https://host"},
	},
	"a poll whose URL has no host": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.poll.url", "https://"}},
		[]string{"spec.rules[2].webhook.clientConfig.poll.url", `"https://"`, "must be http://host or https://host"},
	},
	"a CA bundle that is not base64": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.caBundle", "-----BEGIN"}},
		[]string{"spec.rules[2].webhook.clientConfig.caBundle", "is not base64", "set it to the base64 of PEM"},
	},
	"a CA bundle of the poll that is not base64": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.poll.caBundle", `"!"`}},
		[]string{"spec.rules[2].webhook.clientConfig.poll.caBundle", "is not base64", "set it to the base64 of PEM"},
	},
	"a poll without interval": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.poll.intervalSeconds", "0"}},
		[]string{"spec.rules[2].webhook.clientConfig.poll.intervalSeconds", "0", "greater than or equal to 1"},
	},
	"a poll that has no time": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.clientConfig.poll.timeoutSeconds", "-1"}},
		[]string{"spec.rules[2].webhook.clientConfig.poll.timeoutSeconds", "-1", "greater than or equal to 1"},
	},
	"an unknown failure policy": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.failurePolicy", "Retry"}},
		[]string{"spec.rules[2].webhook.failurePolicy", `"Retry"`, "supported values", `"Ignore", "Fail"`},
	},
	"a parameter without key": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.parameters.0.key", "-"}},
		[]string{"spec.rules[2].webhook.parameters[0]", "key is required", "set the name"},
	},
	"a parameter from a field without path": {
		"podtransitionrule", []change{{"spec.rules.2.webhook.parameters.0.valueFrom", "{fieldRef: {}}"}},
		[]string{"spec.rules[2].webhook.parameters[0].valueFrom.fieldRef.fieldPath", "Required value"},
	},
	"an instance ID below zero": {
		"resourcecontext", []change{{"spec.contexts.0.id", "-1"}},
		[]string{"spec.contexts[0].id", "-1", "greater than or equal to 0"},
	},
	"an entry without instance ID": {
		"resourcecontext", []change{{"spec.contexts.0.id", "-"}}, []string{"spec.contexts[0].id", "Required value"},
	},
}

func TestMalformedObjectsAreRefused(t *testing.T) {
	namespace, old := newNamespace(t), before(t, 33)
	for name, tc := range refusals {
		t.Run(name, func(t *testing.T) {
			object, _ := parse(t, plain[tc.kind])
			object.SetNamespace(namespace)
			for _, c := range tc.changes {
				set(t, object.Object, c.path, c.value)
			}
			err := cluster.Create(t.Context(), object)
			require.Error(t, err)
			require.True(t, apierrors.IsInvalid(err), "refused by validation: %v", err)
			for i, part := range tc.want {
				if i == 1 && old && strings.Contains(err.Error(), `Invalid value: ""`) {
					continue // it does not name the value of a field that may be a number or a text
				}
				require.ErrorContains(t, err, part)
			}
		})
	}
}

func TestPlainObjectsAreAccepted(t *testing.T) {
	namespace := newNamespace(t)
	for kind, manifest := range plain {
		t.Run(kind, func(t *testing.T) {
			object, _ := parse(t, manifest)
			object.SetNamespace(namespace)
			require.NoError(t, cluster.Create(t.Context(), object))
		})
	}
}

func TestContextCannotBeChanged(t *testing.T) {
	tests := map[string]struct{ before, after, want string }{
		"another pool":       {"pool", "other", `cannot be changed to "other": set it back to "pool"`},
		"a pool is added":    {"-", "pool", `cannot be changed to "pool": set it back to ""`},
		"a pool is removed":  {"pool", "-", `cannot be changed to "": set it back to "pool"`},
		"no pool stays none": {"-", `""`, ""},
		"the pool stays":     {"pool", "pool", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, _ := parse(t, plain["collaset"])
			object.SetNamespace(newNamespace(t))
			set(t, object.Object, "spec.scaleStrategy.context", tc.before)
			require.NoError(t, cluster.Create(t.Context(), object))
			set(t, object.Object, "spec.scaleStrategy.context", tc.after)
			err := cluster.Update(t.Context(), object)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "spec.scaleStrategy")
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// Kuperator takes another selector and then releases every Pod.
func TestSelectorCannotChange(t *testing.T) {
	object, _ := parse(t, plain["collaset"])
	object.SetNamespace(newNamespace(t))
	require.NoError(t, cluster.Create(t.Context(), object))
	set(t, object.Object, "spec.selector", "{matchLabels: {tier: front}}")
	set(t, object.Object, "spec.template.metadata.labels", "{tier: front}")
	require.ErrorContains(t, cluster.Update(t.Context(), object), "spec.selector cannot be changed")
}
