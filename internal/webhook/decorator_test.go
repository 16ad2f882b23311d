package webhook

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// proxyDecoration is a decoration "proxy" of the Pods of web, whose status names revisions proxy-1 and proxy-2.
func proxyDecoration(change func(*appsv1alpha1.PodDecoration)) *appsv1alpha1.PodDecoration {
	d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "proxy"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d.Status.CurrentRevision, d.Status.UpdatedRevision = "proxy-1", "proxy-2"
	if change != nil {
		change(d)
	}
	return d
}

// revisionNamed is a revision of a decoration with a container of that image.
func revisionNamed(name, owner, image string) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Kind: appsv1alpha1.PodDecorationKind, Name: owner,
			Controller: ptr.To(true),
		}}},
		Data: runtime.RawExtension{
			Raw: []byte(`{"spec":{"template":{"containers":[{"name":"proxy","image":"` + image + `"}]}}}`)},
	}
}

// decorating is a mutator in a namespace with these objects.
func decorating(t *testing.T, objects ...client.Object) *podMutator {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	require.NoError(t, appsv1.AddToScheme(scheme))
	var c client.Reader = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		Build()
	m := &podMutator{decorations: decorator{live: c}}
	m.decorations.cached.Store(&c)
	return m
}

func TestNewPodsAreDecorated(t *testing.T) {
	const web = `{metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: app}], fieldOfTomorrow: {a: [1]}}}`
	for name, tc := range map[string]struct {
		pod    string
		change func(*appsv1alpha1.PodDecoration)
		image  string // of the proxy, "" for none
		warns  string
		isSeen bool
	}{
		"it gets the present revision": {pod: web, image: "proxy:2", isSeen: true},
		"while a partition is set it gets what the others have": {pod: web, image: "proxy:1", isSeen: true,
			change: func(d *appsv1alpha1.PodDecoration) {
				d.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.PodDecorationRollingUpdate{Partition: ptr.To[int32](1)}
			}},
		"in a first rollout with a partition it gets none": {pod: web, isSeen: true,
			change: func(d *appsv1alpha1.PodDecoration) {
				d.Status.CurrentRevision = ""
				d.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.PodDecorationRollingUpdate{Partition: ptr.To[int32](1)}
			}},
		"D15: a revision that is missing keeps no Pod from being created": {pod: web,
			warns:  `the Pod is not decorated at once: PodDecoration proxy: reading its revision`,
			change: func(d *appsv1alpha1.PodDecoration) { d.Status.UpdatedRevision = "proxy-3" }},
		"a revision of another is not used": {pod: web, warns: "revision foreign is not its own",
			change: func(d *appsv1alpha1.PodDecoration) { d.Status.UpdatedRevision = "foreign" }},
		"D15: nor does one that cannot be rendered": {isSeen: true,
			pod: `{metadata: {labels: {app: web}}, spec: {initContainers: [{name: proxy}], containers: [{name: main}]}}`,
			warns: `the Pod goes without PodDecoration proxy: container "proxy" has the name of an init container, ` +
				`a container of the workload`},
		"a decoration that is being deleted is given to no Pod": {pod: web,
			change: func(d *appsv1alpha1.PodDecoration) {
				d.DeletionTimestamp, d.Finalizers = ptr.To(metav1.Now()), []string{"example.com/finalizer"}
			}},
		"a Pod that is not selected stays as it is": {pod: `{metadata: {labels: {app: db}}, spec: {containers: []}}`},
		"a Pod that was made with decorations stays as it is": {isSeen: true,
			pod: `{metadata: {labels: {app: web}, annotations: {poddecoration.kusionstack.io/revisions: "[]"}}, spec: {}}`},
	} {
		t.Run(name, func(t *testing.T) {
			m := decorating(t, proxyDecoration(tc.change), revisionNamed("proxy-1", "proxy", "proxy:1"),
				revisionNamed("proxy-2", "proxy", "proxy:2"), revisionNamed("foreign", "other", "evil:1"))
			request := ask(t, "pods", tc.pod, "")
			request.Namespace = "default"
			response := m.mutate(t.Context(), request)
			require.True(t, response.Allowed)
			warnings := strings.Join(response.Warnings, "\n")
			if tc.warns == "" {
				assert.Empty(t, warnings)
			}
			assert.Contains(t, warnings, tc.warns)
			got := patched(t, request, m.mutate)
			assert.Equal(t, strings.Contains(tc.pod, "Tomorrow"), strings.Contains(got, `"fieldOfTomorrow":{"a":[1]}`))
			var pod struct {
				Metadata struct {
					Annotations map[string]string `json:"annotations"`
				} `json:"metadata"`
				Spec struct {
					Containers []struct{ Image string } `json:"containers"`
				} `json:"spec"`
			}
			require.NoError(t, json.Unmarshal([]byte(got), &pod))
			_, isSeen := pod.Metadata.Annotations[appsv1alpha1.PodDecorationRevisionsAnnotation]
			assert.Equal(t, tc.isSeen, isSeen)
			assert.Equal(t, tc.image != "", len(decoration.MarksOf(pod.Metadata.Annotations)) == 1)
			if tc.image != "" {
				assert.Equal(t, tc.image, pod.Spec.Containers[0].Image)
			}
			request.Object.Raw = []byte(got)
			assert.JSONEq(t, got, patched(t, request, m.mutate), "a second time changes nothing")
		})
	}
}

// TestDecoratingNeedsNothing: where no API server serves PodDecorations, or the cache fails, Pods are created.
func TestDecoratingNeedsNothing(t *testing.T) {
	request := ask(t, "pods", `{metadata: {labels: {app: web}}, spec: {}}`, "")
	response := (&podMutator{}).mutate(t.Context(), request)
	assert.True(t, response.Allowed)
	assert.Empty(t, response.Patches)

	var broken client.Reader = fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build() // knows no kind
	m := &podMutator{}
	m.decorations.cached.Store(&broken)
	response = m.mutate(t.Context(), request)
	assert.True(t, response.Allowed)
	assert.Empty(t, response.Patches)
	require.Len(t, response.Warnings, 1)
	assert.Contains(t, response.Warnings[0], "the Pod is not decorated at once: listing PodDecorations")
}

func TestPodDecorationsAreChecked(t *testing.T) {
	const sound = `{metadata: {name: proxy}, status: {matchedPods: 3}, spec: {selector: {matchLabels: {app: web}},
		template: {initContainers: [{name: proxy, image: "proxy:1", restartPolicy: Always}]}}}`
	f := &forecaster{serverCan: newest}
	for name, tc := range map[string]struct{ spec, old, refused, warns string }{
		"a sound one": {spec: sound},
		"D4: a selector that is not valid": {spec: `{metadata: {name: a}, spec: {selector: {matchLabels: {app: "not a label"}}}}`,
			refused: "spec.selector.matchLabels"},
		"a template that cannot be rendered": {
			spec:    `{metadata: {name: a}, spec: {selector: {}, template: {containers: [{image: a}]}}}`,
			refused: "spec.template: Invalid value: containers[0].name is missing"},
		"without a selector": {spec: `{metadata: {name: a}, spec: {}}`, warns: "no Pod is selected"},
		"D11: terms that are added widen": {warns: "may run on more nodes",
			spec: `{metadata: {name: a}, spec: {selector: {}, template: {affinity: {nodeSelectorTerms: [{}]}}}}`},
		"a selector of its own labels": {warns: "asks for labels that spec.template sets (tier)",
			spec: `{metadata: {name: a}, spec: {selector: {matchLabels: {tier: gold}},
				template: {metadata: [{labels: {tier: gold}}]}}}`},
		"labels of workloads": {warns: "overwrites labels (app, env): a workload whose selector asks for one of them loses",
			spec: `{metadata: {name: a}, spec: {selector: {}, template: {metadata: [{patchPolicy: Overwrite,
				labels: {env: a, app: a}}, {labels: {tier: gold}}]}}}`},
		"a name without its policy": {warns: "primaryContainers[0].name is ignored",
			spec: `{metadata: {name: a}, spec: {selector: {}, template: {primaryContainers: [{name: web, image: a}]}}}`},
		"two ways to name Pods": {warns: "the partition is ignored",
			spec: `{metadata: {name: a}, spec: {selector: {}, updateStrategy: {rollingUpdate: {partition: 1, selector: {}}}}}`},
		"a policy without a deadline": {warns: "means no deadline", spec: `{metadata: {name: a}, spec: {selector: {},
			progressDeadlineSeconds: 2147483647, updateStrategy: {failurePolicy: Pause}}}`},
		"another image": {old: sound, spec: strings.Replace(sound, "proxy:1", "proxy:2", 1)},
		"another container": {old: sound, spec: strings.Replace(sound, "name: proxy, image", "name: other, image", 1),
			warns: "3 Pods will be re-created, or stay as they are if nothing re-creates them, because of " +
				"initContainers[proxy] of PodDecoration proxy"},
		"a partition": {old: sound, warns: "1 Pod will be re-created",
			spec: strings.Replace(strings.Replace(sound, "name: proxy, image", "name: other, image", 1), "template:",
				"updateStrategy: {rollingUpdate: {partition: 2}}, template:", 1)},
		"what changes no Pod": {old: sound, spec: strings.Replace(sound, "template:", "historyLimit: 2, template:", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			response := f.validatePodDecoration(context.WithoutCancel(t.Context()), ask(t, "poddecorations", tc.spec, tc.old))
			if assert.Equal(t, tc.refused == "", response.Allowed, "%+v", response.Result); tc.refused != "" {
				assert.Contains(t, response.Result.Message, tc.refused)
			}
			warnings := strings.Join(response.Warnings, "\n")
			assert.Contains(t, warnings, tc.warns)
			if tc.warns == "" {
				assert.Empty(t, warnings)
			}
		})
	}
}
