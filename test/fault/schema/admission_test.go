package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/crdgen"
)

const (
	everyOperation = 20_000
	someOperations = 1_000
	askers         = 8
	maxShown       = 20
)

// onlyByWebhook are the fields for which webhook-server refuses values that the schema admits, and why the schema
// cannot. Whatever is admitted without webhook-server is acted on or reported by the controllers: see
// TestReconciliation.
var onlyByWebhook = map[string]string{
	"CollaSet spec.template.metadata.annotations":                          keysOfMaps,
	"CollaSet spec.template.metadata.labels":                               keysOfMaps,
	"CollaSet spec.template.spec.nodeSelector":                             keysOfMaps,
	"CollaSet spec.selector.matchLabels":                                   keysOfMaps,
	"PodTransitionRule spec.selector.matchLabels":                          keysOfMaps,
	"PodTransitionRule spec.rules[].filter.labelSelector.matchLabels":      keysOfMaps,
	"PodTransitionRule spec.rules[].labelCheck.requires.matchLabels":       keysOfMaps,
	"PodDecoration spec.selector.matchLabels":                              keysOfMaps,
	"PodDecoration spec.updateStrategy.rollingUpdate.selector.matchLabels": keysOfMaps,
	"CollaSet spec.template.spec.containers[].volumeMounts[].name":         references,
	"CollaSet spec.template.spec.initContainers[].volumeMounts[].name":     references,
	"CollaSet spec.template.spec.containers[].volumeMounts[].mountPath":    references,
	"CollaSet spec.template.spec.readinessGates[].conditionType":           references,
	"CollaSet spec.template.spec.containers[].name":                        references,
	"CollaSet spec.template.spec.containers[].ports[].name":                references,
	"CollaSet spec.template.spec.initContainers[].ports[].name":            references,
	"CollaSet spec.template.spec.containers[].env[]":                       references,
	"CollaSet spec.template.spec.initContainers[].env[]":                   references,
	"CollaSet spec.template.spec.containers[].resources.requests[]":        quantities,
	"CollaSet spec.template.spec.initContainers[].resources.requests[]":    quantities,
	"CollaSet spec.volumeClaimTemplates[].spec.resources.requests[]":       quantities,
	"PodTransitionRule spec.rules[].webhook.clientConfig.caBundle":         "certificates are parsed",
	"PodTransitionRule spec.rules[].webhook.clientConfig.poll.caBundle":    "certificates are parsed",
	"PodTransitionRule spec.rules[].webhook.clientConfig.url":              "URLs are parsed by Go, which is stricter than CEL about escapes",
	"PodTransitionRule spec.rules[].webhook.clientConfig.poll.url":         "URLs are parsed by Go, which is stricter than CEL about escapes",
	"ResourceContext spec.contexts[].id":                                   "a pool has thousands of IDs: to compare each with each is beyond the budget of CEL, and a list with keys grows its managedFields with the pool",
}

const (
	keysOfMaps = "a schema has no patterns for keys of maps, and CEL takes a key to be as long as a request: beyond its budget"
	references = "lists are compared with each other, or each item with each, which is beyond the budget of CEL where Pods bound neither"
	quantities = "quantities are compared, which CEL takes to be as long as a request: beyond its budget"
)

// TestAdmission shows that whatever is wrong is refused with the field, with webhook-server and without.
func TestAdmission(t *testing.T) {
	w := shared.Get(t)
	n := someOperations
	if all() {
		n = everyOperation
	}
	n = number(t, "OPERATIONS", n)
	hooked, bare := w.namespace(t, true), w.namespace(t, false)
	w.plant(t, hooked)
	w.plant(t, bare)
	operations := w.generate(t, n)

	begin := time.Now()
	result := outcome{admitted: map[string]int{}, sample: map[string]string{}}
	inParallel(operations, askers, func(o crdgen.Operation) {
		admitted, err := w.try(t.Context(), bare, o)
		without, failure := judge(o, err)
		if failure == nil && without == nil {
			failure = readable(o.Kind, admitted)
		}
		_, err = w.try(t.Context(), hooked, o)
		with, second := judge(o, err)
		result.add(o, without, with, cmp.Or(failure, second))
	})
	t.Logf("%d operations in %s: %d refused by the schema, %d by webhook-server alone, %d accepted", len(operations),
		time.Since(begin).Round(time.Second),
		result.bySchema, result.byWebhook, result.accepted)
	for _, field := range slices.Sorted(maps.Keys(result.admitted)) {
		t.Logf("only webhook-server refuses %d × %s: %s", result.admitted[field], field, result.sample[field])
		if onlyByWebhook[field] == "" {
			t.Errorf(
				"only webhook-server refuses values of %s: let the schema refuse them, or say in onlyByWebhook why it cannot",
				field)
		}
	}
	for i, failure := range result.failures {
		if i == maxShown {
			t.Errorf("and %d more", len(result.failures)-i)
			break
		}
		t.Error(failure)
	}
	took := time.Since(begin)
	outcomes := map[string]int{"refused by the schema": result.bySchema,
		"refused by webhook-server alone": result.byWebhook, "accepted": result.accepted}
	checks := map[string]int{"refused with the field, or accepted": 2 * len(operations),
		"accepted can be read by every controller": result.accepted + result.byWebhook}
	require.NoError(t, addRow("operations from the schemas, with and without webhook-server", len(operations),
		len(result.failures), outcomes, checks, result.failures, took))
	if os.Getenv("OPERATION") != "" {
		return
	}
	require.Positive(t, result.accepted)
	require.Positive(t, result.bySchema)
}

// readable is an error if a controller cannot read an object that was admitted. It would lose every object of the
// kind, in all namespaces: lists and watches are decoded as a whole.
func readable(kind string, admitted *unstructured.Unstructured) error {
	content, err := admitted.MarshalJSON()
	if err != nil {
		return err
	}
	object, ok := map[string]any{
		appsv1alpha1.CollaSetKind:          &appsv1alpha1.CollaSet{},
		appsv1alpha1.OperationJobKind:      &appsv1alpha1.OperationJob{},
		appsv1alpha1.PodDecorationKind:     &appsv1alpha1.PodDecoration{},
		appsv1alpha1.PodTransitionRuleKind: &appsv1alpha1.PodTransitionRule{},
		appsv1alpha1.ResourceContextKind:   &appsv1alpha1.ResourceContext{},
	}[kind]
	if !ok {
		return fmt.Errorf("nobody reads kind %s", kind)
	}
	if err := json.Unmarshal(content, object); err != nil {
		return fmt.Errorf("it is admitted, and no controller can read it: %w", err)
	}
	return nil
}

// outcome is what became of all operations. Its methods may be called concurrently.
type outcome struct {
	mu                            sync.Mutex
	bySchema, byWebhook, accepted int
	// admitted counts what only webhook-server refuses, by field; sample is one of each.
	admitted map[string]int
	sample   map[string]string
	failures []string
}

func (r *outcome) add(o crdgen.Operation, without, with *refusal, failure error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case failure != nil:
		r.failures = append(r.failures, fmt.Sprintf("%v\nagain: OPERATION='%s'", failure, o))
	case without != nil && with == nil:
		r.failures = append(r.failures,
			fmt.Sprintf("webhook-server makes it acceptable, alone it is refused: %s\nagain: OPERATION='%s'",
				without.message, o))
	case without != nil:
		r.bySchema++
	case with != nil:
		r.byWebhook++
		field := o.Kind + " " + pattern(with.fields)
		r.admitted[field]++
		r.sample[field] = fmt.Sprintf("%.300s\n\tOPERATION='%s'", with.message, o)
	default:
		r.accepted++
	}
}

var indices = regexp.MustCompile(`\[[^\]]*\]`)

// pattern is the first field that a refusal names, without indices and keys.
func pattern(fields []string) string {
	if len(fields) == 0 {
		return ""
	}
	return indices.ReplaceAllString(fields[0], "[]")
}
