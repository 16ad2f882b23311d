package podcache

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Target is what a Pod is patched by: the answer is metadata only, for the rest comes with the watch.
func Target(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}
