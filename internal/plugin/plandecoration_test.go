package plugin

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/revision"
)

// TestForecastOfADecoration: what strategy and policies make of a change, Pods that change first.
func TestForecastOfADecoration(t *testing.T) {
	const image = `{"initContainers":[{"name":"proxy","image":"proxy:2","restartPolicy":"Always"}]}`
	const mount = `{"initContainers":[{"name":"proxy","image":"proxy:1","restartPolicy":"Always",
		"env":[{"name":"A","value":"b"}]}]}`
	for name, tc := range map[string]struct {
		template string
		change   func(*appsv1alpha1.PodDecoration, *decorating)
		want     string
		fields   []string
	}{
		"an image, in place, the youngest first": {
			template: image, want: "web-3:inPlace web-2:inPlace web-1:inPlace web-0:inPlace",
		},
		"an environment, anew": {
			template: mount, want: "web-3:recreate web-2:recreate web-1:recreate web-0:recreate",
			fields: []string{"spec.initContainers[proxy].env"},
		},
		"a partition keeps the oldest": {
			template: image,
			change: func(d *appsv1alpha1.PodDecoration, _ *decorating) {
				d.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.PodDecorationRollingUpdate{Partition: ptr.To[int32](3)}
			},
			want: "web-3:inPlace web-2:held web-1:held web-0:held",
		},
		"a partition, of what a new Pod would not get": {
			template: mount,
			change: func(d *appsv1alpha1.PodDecoration, _ *decorating) {
				d.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.PodDecorationRollingUpdate{Partition: ptr.To[int32](3)}
			},
			want:   "web-3:keptBack web-2:held web-1:held web-0:held",
			fields: []string{"spec.initContainers[proxy].env"},
		},
		"Pods that lose it": {
			template: `{"initContainers":[{"name":"proxy","image":"proxy:1","restartPolicy":"Always"}]}`,
			change: func(d *appsv1alpha1.PodDecoration, _ *decorating) {
				d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
			},
			want:   "web-3:recreate web-2:recreate web-1:recreate web-0:recreate",
			fields: []string{"initContainers[proxy] of PodDecoration proxy", "spec.initContainers"},
		},
		"a Pod that cannot have it": {
			template: `{"initContainers":[{"name":"proxy","image":"proxy:1","restartPolicy":"Always"}]}`,
			change: func(_ *appsv1alpha1.PodDecoration, m *decorating) {
				m.pods[3].Annotations = map[string]string{
					appsv1alpha1.PodDecorationRevisionsAnnotation: "[]",
					appsv1alpha1.PodDecorationRefusedAnnotation:   `[{"name":"proxy","revision":"proxy-1","why":"a name"}]`,
				}
			},
			want: "web-3:updated web-2:updated web-1:updated web-0:updated",
		},
		"a CollaSet knows what was there before": {
			template: `{}`,
			change: func(_ *appsv1alpha1.PodDecoration, m *decorating) {
				mark := decoration.Mark{Name: "proxy", Revision: "proxy-1"}
				m.put(t, mark, `{"primaryContainers":[{"image":"debug:1"}]}`)
				m.sets = map[string]appsv1alpha1.PodUpdatePolicy{"web": appsv1alpha1.PodUpdateInPlaceOnly}
				m.ofSets = map[string]*revision.Data{"r1": dataFor(t, "web:1")}
				m.own(appsv1alpha1.SchemeGroupVersion.String(), appsv1alpha1.CollaSetKind)
			},
			want: "web-3:inPlace web-2:inPlace web-1:inPlace web-0:inPlace",
		},
		"another revision that is gone stays": {
			template: image,
			change: func(_ *appsv1alpha1.PodDecoration, m *decorating) {
				for i := range m.pods {
					m.pods[i].Annotations[appsv1alpha1.PodDecorationRevisionsAnnotation] =
						`[{"name":"gone","revision":"gone-1"},{"name":"proxy","revision":"proxy-1"}]`
				}
			},
			want: "web-3:inPlace web-2:inPlace web-1:inPlace web-0:inPlace",
		},
		"InPlaceOnly refuses what it cannot do": {
			template: mount,
			change: func(d *appsv1alpha1.PodDecoration, _ *decorating) {
				d.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
			},
			want:   "web-3:refused web-2:refused web-1:refused web-0:refused",
			fields: []string{"spec.initContainers[proxy].env"},
		},
		"a CollaSet has a policy of its own": {
			template: image,
			change: func(d *appsv1alpha1.PodDecoration, m *decorating) {
				d.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
				m.sets = map[string]appsv1alpha1.PodUpdatePolicy{"web": appsv1alpha1.PodUpdateReplace}
				m.own(appsv1alpha1.SchemeGroupVersion.String(), appsv1alpha1.CollaSetKind)
			},
			want: "web-3:replace web-2:replace web-1:replace web-0:replace",
		},
		"a Job creates no Pod anew": {
			template: mount,
			change:   func(_ *appsv1alpha1.PodDecoration, m *decorating) { m.own("batch/v1", "Job") },
			want:     "web-3:stays web-2:stays web-1:stays web-0:stays",
			fields:   []string{"spec.initContainers[proxy].env"},
		},
		"outside the lifecycle": {
			template: image,
			change: func(_ *appsv1alpha1.PodDecoration, m *decorating) {
				delete(m.pods[2].Labels, appsv1alpha1.ControlLabel)
			},
			want: "web-3:inPlace web-1:inPlace web-0:inPlace web-2:unmanaged",
		},
		"others are not selected": {
			template: image,
			change: func(_ *appsv1alpha1.PodDecoration, m *decorating) {
				m.pods[0].Labels["app"], m.pods[0].Annotations = "other", nil
			},
			want: "web-3:inPlace web-2:inPlace web-1:inPlace",
		},
		"nothing changes": {
			template: `{"initContainers":[{"name":"proxy","image":"proxy:1","restartPolicy":"Always"}]}`,
			want:     "web-3:updated web-2:updated web-1:updated web-0:updated",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Name: "proxy"}}
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			d.Status.CurrentRevision = "proxy-1"
			m := fourDecorated(t)
			if tc.change != nil {
				tc.change(d, m)
			}
			m.policy = d.Spec.UpdateStrategy.PodUpdatePolicy
			next := &unstructured.Unstructured{}
			require.NoError(t, next.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion":"apps.kusionstack.io/v1alpha1",
				"kind":"PodDecoration","spec":{"template":%s}}`, tc.template)))
			updated, err := m.take(applied{next: next}, d)
			require.NoError(t, err)
			m.add(d, updated)
			ways, fields, pods := m.foretell(updated)
			got, total := "", 0
			for _, p := range pods {
				got += " " + p.Name + ":" + string(p.Way)
			}
			for _, n := range ways {
				total += n
			}
			require.Equal(t, " "+tc.want, got)
			require.Equal(t, tc.fields, fields)
			require.Len(t, pods, total, "every Pod is in it once")
		})
	}
}

// fourDecorated are fourPods of a ReplicaSet with a native sidecar.
func fourDecorated(t *testing.T) *decorating {
	t.Helper()
	m := &decorating{name: "proxy", pods: fourPods(), contents: map[decoration.Mark]decoration.Decoration{},
		stored: map[decoration.Mark][]byte{}}
	mark := decoration.Mark{Name: "proxy", Revision: "proxy-1"}
	m.put(t, mark, `{"initContainers":[{"name":"proxy","image":"proxy:1","restartPolicy":"Always"}]}`)
	for i := range m.pods {
		pod := &m.pods[i]
		pod.Labels["app"] = "web"
		pod.Annotations = map[string]string{
			appsv1alpha1.PodDecorationRevisionsAnnotation: `[{"name":"proxy","revision":"proxy-1"}]`,
			appsv1alpha1.PodDecorationChangesAnnotation:   `{"labels":{},"initContainers":["proxy"]}`,
		}
		pod.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "proxy:1",
			RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:1"}}
	}
	m.own("apps/v1", "ReplicaSet")
	return m
}

// put has a revision of a PodDecoration mean a template.
func (m *decorating) put(t *testing.T, mark decoration.Mark, template string) {
	t.Helper()
	m.stored[mark] = []byte(`{"spec":{"template":` + template + `}}`)
	parsed, _, err := decoration.Parse(m.stored[mark])
	require.NoError(t, err)
	m.contents[mark] = decoration.Decoration{Name: mark.Name, Revision: mark.Revision, Template: parsed}
}

// own gives the Pods a controller of that kind.
func (m *decorating) own(apiVersion, kind string) {
	for i := range m.pods {
		m.pods[i].OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web",
			Controller: ptr.To(true)}}
	}
}
