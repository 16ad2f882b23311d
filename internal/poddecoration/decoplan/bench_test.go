package decoplan_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// BenchmarkDecide decides on a namespace of 10,000 Pods, each under one of 20 decorations, at rest and after one of
// them has changed.
func BenchmarkDecide(b *testing.B) {
	w := newWorld()
	for i := range 20 {
		w.decorate(fmt.Sprintf("sidecar-%02d", i), func(d *decoplan.Decoration) {
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}}
			d.Protected, d.Status.CurrentRevision = true, d.Updated
		})
	}
	for i := range 10_000 {
		w.create(fmt.Sprintf("ReplicaSet/web-%d", i%20))
		p := &w.Pods[len(w.Pods)-1]
		p.Labels["app"] = fmt.Sprint(i % 20)
		p.Has, _ = decoplan.New(w.Decorations, p.Labels)
		w.observe(p)
	}
	settle := func() {
		plan := decoplan.Decide(&w.Snapshot)
		for i := range w.Decorations {
			if status := plan.Statuses[w.Decorations[i].Name]; status != nil {
				w.Decorations[i].Status = *status
			}
		}
	}
	settle()
	for name, change := range map[string]func(){
		"at rest": func() {}, "after a change": func() { w.template("sidecar-07", "sidecar-07-2") },
	} {
		b.Run(name, func(b *testing.B) {
			change()
			for b.Loop() {
				plan := decoplan.Decide(&w.Snapshot)
				if name == "at rest" && !plan.IsZero() {
					b.Fatalf("%d Pods are written, %d statuses", len(plan.Writes), len(plan.Statuses))
				}
			}
		})
	}
}
