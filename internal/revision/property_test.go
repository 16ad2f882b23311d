package revision_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/internal/revision"
)

// spin draws a template of two containers, an init container and a sidecar; two draws differ often, in ways that are in
// place and in ways that are not.
func spin(t *rapid.T, label string) *revision.Data {
	rare := func(what string) bool { return rapid.IntRange(0, 29).Draw(t, label+" "+what) == 17 }
	draw := func(what string, values ...string) string { return rapid.SampledFrom(values).Draw(t, label+" "+what) }
	resources := func(name string) map[string]any {
		out := map[string]any{}
		for _, list := range []string{"requests", "limits"} {
			of := map[string]any{}
			for _, r := range []string{"cpu", "memory"} {
				if q := draw(name+" "+list+" "+r, "1", "2"); !rare(name + " no " + list + " " + r) {
					of[r] = q
				}
			}
			if len(of) > 0 {
				out[list] = of
			}
		}
		return out
	}
	container := func(name string) map[string]any {
		c := map[string]any{"name": name, "image": draw(name+" image", "i:1", "i:2"), "resources": resources(name)}
		if rare(name + " env") {
			c["env"] = []any{map[string]any{"name": "A", "value": "a"}}
		}
		return c
	}
	mesh := container("mesh")
	mesh["restartPolicy"] = "Always"
	spec := map[string]any{
		"containers": []any{container("app"), container("side")}, "initContainers": []any{container("setup"), mesh},
	}
	var tolerations []any
	for _, key := range []string{"a", "b", "c"} {
		if seconds := rapid.SampledFrom([]int64{10, 20}).Draw(t, label+" toleration "+key); !rare("no toleration " + key) {
			tolerations = append(tolerations, map[string]any{"key": key, "operator": "Exists", "effect": "NoExecute",
				"tolerationSeconds": seconds})
		}
	}
	if len(tolerations) > 0 {
		spec["tolerations"] = tolerations
	}
	if seconds := rapid.SampledFrom([]int64{600, 300}).Draw(t, label+" deadline"); !rare("no deadline") {
		spec["activeDeadlineSeconds"] = seconds
	}
	metadata := map[string]any{
		"labels":      map[string]any{"app": "web", draw("label", "x", "y"): draw("value", "1", "2")},
		"annotations": map[string]any{draw("annotation", "x", "y"): draw("text", "1", "2")},
	}
	raw, err := revision.Render(map[string]any{"template": map[string]any{"metadata": metadata, "spec": spec}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := revision.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// born is the Pod that the API server makes of a revision, and that a kubelet runs.
func born(t *rapid.T, d *revision.Data) *corev1.Pod {
	raw, err := json.Marshal(d.Template())
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{}
	if err := json.Unmarshal(raw, p); err != nil {
		t.Fatal(err)
	}
	p.Name, p.UID, p.ResourceVersion, p.Generation = "p", "u", "7", 1
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for name, q := range r.Limits {
				if _, given := r.Requests[name]; !given {
					if r.Requests == nil {
						r.Requests = corev1.ResourceList{}
					}
					r.Requests[name] = q
				}
			}
		}
	}
	react(p)
	return p
}

// react is what the kubelet does.
func react(p *corev1.Pod) {
	p.Status.ObservedGeneration = p.Generation
	run := func(containers []corev1.Container, before []corev1.ContainerStatus) []corev1.ContainerStatus {
		var out []corev1.ContainerStatus
		for i := range containers {
			c := &containers[i]
			s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Resources: c.Resources.DeepCopy(),
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
			if len(before) > 0 {
				s.RestartCount = before[i].RestartCount
				if before[i].Image != c.Image {
					s.RestartCount++
				}
			}
			s.ContainerID, s.ImageID = fmt.Sprint(c.Name, s.RestartCount), "always the same"
			out = append(out, s)
		}
		return out
	}
	p.Status.ContainerStatuses = run(p.Spec.Containers, p.Status.ContainerStatuses)
	p.Status.InitContainerStatuses = run(p.Spec.InitContainers, p.Status.InitContainerStatuses)
}

// sent is the Pod after a patch.
func sent(t *rapid.T, p *corev1.Pod, patch []byte) *corev1.Pod {
	before, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, &corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(after, out); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(out.Spec, p.Spec) {
		out.Generation++
	}
	return out
}

func TestARevisionDoesNotDifferFromItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := spin(t, "a")
		if diff := same(revision.Change{}, revision.Explain(a, a, everything)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestWhatIsInPlaceLeadsToTheNewPod(t *testing.T) {
	inPlace := 0
	rapid.Check(t, func(t *rapid.T) {
		from, to := spin(t, "from"), spin(t, "to")
		change := revision.Explain(from, to, everything)
		if !change.InPlace() {
			return
		}
		inPlace++
		p := born(t, from)
		p = sent(t, p, change.Patch(p, "r2", nil))
		if progress := revision.Carried(p); progress.ResizeDue != (len(change.Resize) > 0) {
			t.Fatalf("resources %v, due: %v", change.Resize, progress.ResizeDue)
		}
		if data := revision.ResizePatch(p); data != nil {
			p = sent(t, p, data)
		}
		if revision.ResizePatch(p) != nil || revision.Carried(p).ResizeDue {
			t.Fatal("it is not over")
		}
		wanted := born(t, to)
		sortTolerations(p.Spec.Tolerations)
		sortTolerations(wanted.Spec.Tolerations)
		if !equality.Semantic.DeepEqual(wanted.Spec, p.Spec) {
			t.Fatal(cmp.Diff(wanted.Spec, p.Spec))
		}
		delete(p.Labels, "controller-revision-hash")
		delete(p.Annotations, lastPodStatus)
		if !maps.Equal(wanted.Labels, p.Labels) || !maps.Equal(wanted.Annotations, p.Annotations) {
			t.Fatal(p.Labels, p.Annotations)
		}
	})
	t.Logf("%d drawn changes were in place", inPlace)
	if inPlace == 0 {
		t.Fatal("no drawn change was in place")
	}
}

func sortTolerations(list []corev1.Toleration) {
	slices.SortFunc(list, func(a, b corev1.Toleration) int { return int(a.Key[0]) - int(b.Key[0]) })
}

// TestNothingIsCarriedOutBeforeTheKubeletReacts changes a Pod several times, with a kubelet that sometimes reacts in
// between.
func TestNothingIsCarriedOutBeforeTheKubeletReacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := spin(t, "first")
		p := born(t, at)
		silent := rapid.Bool().Draw(t, "a kubelet that reports no generation")
		for i := range rapid.IntRange(1, 5).Draw(t, "changes") {
			to := spin(t, fmt.Sprint("change ", i))
			change := revision.Explain(at, to, everything)
			if !change.InPlace() {
				continue
			}
			at = to
			p = sent(t, p, change.Patch(p, "r", nil))
			if rapid.Bool().Draw(t, "the second write fails") {
				if len(change.Resize) > 0 && revision.Carried(p).Done {
					t.Fatal("done without resources")
				}
				continue
			}
			if data := revision.ResizePatch(p); data != nil {
				p = sent(t, p, data)
			}
			if silent {
				p.Status.ObservedGeneration = 0
			}
			if progress := revision.Carried(p); progress.Done && behind(p, silent) {
				t.Fatalf("done, says %s, before the kubelet did it", p.Annotations[lastPodStatus])
			}
			if rapid.Bool().Draw(t, "the kubelet reacts") {
				react(p)
				if progress := revision.Carried(p); !progress.Done {
					t.Fatalf("all is done, and it says %s", progress.Missing)
				}
			}
		}
	})
}

// behind reports whether the kubelet has something to do: what runs is not what the spec says.
func behind(p *corev1.Pod, silent bool) bool {
	if !silent && p.Status.ObservedGeneration < p.Generation {
		return true
	}
	differ := func(containers []corev1.Container, statuses []corev1.ContainerStatus) bool {
		for i := range containers {
			if containers[i].Name == "setup" {
				continue // runs again only in another Pod
			}
			if containers[i].Image != statuses[i].Image ||
				!equality.Semantic.DeepEqual(containers[i].Resources, *statuses[i].Resources) {
				return true
			}
		}
		return false
	}
	return differ(p.Spec.Containers, p.Status.ContainerStatuses) ||
		differ(p.Spec.InitContainers, p.Status.InitContainerStatuses)
}
