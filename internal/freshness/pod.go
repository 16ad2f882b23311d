package freshness

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PodTarget is what a Pod is patched or read by. The answer is metadata only, which a Tracker takes as it is: the rest
// comes with the watch.
func PodTarget(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}
