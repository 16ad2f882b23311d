package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatKuperatorRefusesIsRefused names, for each row of the validations of Kuperator v0.7, the refusals of ours
// that stand for it. Those of the Pod template are webhook-server's alone. A claim template with the name of a
// volume, which is refused there, is accepted as in a StatefulSet.
func TestWhatKuperatorRefusesIsRefused(t *testing.T) {
	for row, ours := range map[string][]string{
		"replicas should not be smaller than 0":   {"negative replicas"},
		"fail to convert to core PodTemplateSpec": {"a template that is no object"},
		"core template validation": {"a template without containers",
			"a container without name", "a container without image", "two containers of one name"},
		"selector is required": {"a CollaSet without selector"},
		"label-selector errors": {"a selector with an unknown operator",
			"a selector with an empty key", "a selector with a value that no label can have"},
		"labels is required":                                                     {"a template without labels"},
		"selector does not match labels in pod template":                         {"a selector whose labels the template lacks", "a selector whose expression the template does not satisfy"},
		"scaleStrategy: operationDelaySeconds should not be smaller than 0":      {"a negative delay of scaling"},
		"podNamingSuffixPolicy is not supported":                                 {"an unknown way to name Pods"},
		"podToExclude is not allowed when podNamingPolicy is PersistentSequence": {"an excluded Pod with names in sequence"},
		"podToInclude is not allowed when podNamingPolicy is PersistentSequence": {"an included Pod with names in sequence"},
		"podToExclude and podToInclude should not have intersection":             {"a Pod both excluded and included"},
		"podToDelete and podToInclude should not have intersection":              {"a Pod both deleted and included"},
		"podToDelete and podToExclude should not have intersection":              {"a Pod both deleted and excluded"},
		"podUpdatePolicy is not supported":                                       {"an unknown way to update"},
		"partition should not be smaller than 0":                                 {"a negative partition"},
		"updateStrategy: operationDelaySeconds should not be smaller than 0":     {"a negative delay of updates"},
		"not validated there: historyLimit":                                      {"negative history"},
		"not validated there: retention values":                                  {"an unknown fate of claims"},
		"not validated there: claim template names": {"a claim without name",
			"two claims of one name"},
		"scaleStrategy.context is not allowed to be changed (see the test of that)": nil,
	} {
		for _, name := range ours {
			require.Contains(t, refusals, name, row)
		}
	}
}

// TestWhatKuperatorAcceptsIsAccepted has what is unusual and legal there, and so has to stay legal.
func TestWhatKuperatorAcceptsIsAccepted(t *testing.T) {
	namespace := newNamespace(t)
	for name, changes := range map[string][]change{
		"no replicas":                   {{"spec.replicas", "0"}},
		"more held back than there are": {{"spec.updateStrategy.rollingUpdate.byPartition.partition", "99"}},
		"both ways to choose Pods": {{"spec.updateStrategy.rollingUpdate",
			"{byLabel: {}, byPartition: {partition: 1}}"}},
		"no way to choose Pods": {{"spec.updateStrategy.rollingUpdate", "{}"}},
		"no history":            {{"spec.historyLimit", "0"}},
		"empty words for the defaults": {{"spec.updateStrategy.podUpgradePolicy", `""`},
			{"spec.namingStrategy.podNamingSuffixPolicy", `""`}},
		"empty fates of claims": {{"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy",
			`{whenDeleted: "", whenScaled: ""}`}},
		"a selector of expressions alone": {{"spec.selector",
			"{matchExpressions: [{key: app, operator: In, values: [web, db]}]}"}},
		"a Pod to delete with names in sequence": {{"spec.namingStrategy.podNamingSuffixPolicy", "PersistentSequence"},
			{"spec.scaleStrategy.podToDelete", "[web-0]"}},
		"a share of the Pods held back": {{"spec.updateStrategy.rollingUpdate.byPartition.partition", `"50%"`}},
		"all of the Pods held back":     {{"spec.updateStrategy.rollingUpdate.byPartition.partition", `"100%"`}},
		"a surge of more than all":      {{"spec.updateStrategy.maxSurge", `"200%"`}},
		"a variable, an address and a secret twice": {
			{"spec.template.spec.containers.0.env", "[{name: A, value: a}, {name: A, value: b}]"},
			{"spec.template.spec.hostAliases", "[{ip: 10.1.2.3, hostnames: [a]}, {ip: 10.1.2.3, hostnames: [b]}]"},
			{"spec.template.spec.imagePullSecrets", "[{name: a}, {name: a}]"},
			{"spec.template.spec.containers.0.ports", "[{name: a, containerPort: 80}, {name: b, containerPort: 80}]"},
		},
		"quantities with a fraction": {
			{"spec.template.spec.containers.0.resources",
				"{requests: {cpu: 0.5, memory: 1.5e9}, limits: {cpu: 1, memory: 2Gi}}"},
			{"spec.template.spec.resources", "{requests: {cpu: 1.5}}"},
			{"spec.template.spec.overhead", "{cpu: 0.1}"},
			{"spec.template.spec.volumes", "[{name: scratch, emptyDir: {sizeLimit: 1.5e9}}]"},
			{"spec.volumeClaimTemplates.0.spec.resources.requests.storage", "1.5e9"},
		},
		"a claim with the name of a volume": {{"spec.volumeClaimTemplates.0.metadata.name", "scratch"}},
		"a rollout that is rolled back when it fails": {{"spec.updateStrategy.failurePolicy", "Rollback"},
			{"spec.progressDeadlineSeconds", "600"}},
	} {
		t.Run(name, func(t *testing.T) {
			object, _ := parse(t, plain["collaset"])
			object.SetNamespace(namespace)
			object.SetName("")
			object.SetGenerateName("web-")
			for _, c := range changes {
				set(t, object.Object, c.path, c.value)
			}
			require.NoError(t, cluster.Create(t.Context(), object))
		})
	}
}
