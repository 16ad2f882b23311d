package revision

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	kjson "sigs.k8s.io/json"
)

// ClaimTemplate is one volume claim template of a revision, with what is compared of it, worked out once. It is
// immutable.
type ClaimTemplate struct {
	// Name is the name of the volume that its claims are mounted as.
	Name string
	// Hash is what claims made from it carry as a label: the hash that Kuperator v0.7 gives the same template.
	Hash string
	// Spec is its spec. It must not be changed.
	Spec *corev1.PersistentVolumeClaimSpec
	// Shape is what cannot be changed on a claim: all of the spec but the storage request. Equal shapes have equal texts.
	Shape string
	// Meta is labels and annotations, as a text: they can be changed on a claim.
	Meta string
	// Labels and Annotations belong to the template and must not be changed.
	Labels, Annotations map[string]string

	stored map[string]any
}

// Object is a copy of the template as it was stored, without status, with the fields that this version does not know.
func (t ClaimTemplate) Object() map[string]any {
	out := runtime.DeepCopyJSON(t.stored)
	delete(out, "status")
	return out
}

// ClaimTemplates are the revision's volume claim templates, in their order; nil if there are none.
func (d *Data) ClaimTemplates() []ClaimTemplate { return d.templates }

// claimTemplate reads one template; normal is the same in normal form, unknown what that lacks.
func claimTemplate(stored, normal, unknown map[string]any) (ClaimTemplate, error) {
	typed := &corev1.PersistentVolumeClaim{}
	raw, err := json.Marshal(stored)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(raw, typed)
	}
	if err != nil {
		return ClaimTemplate{}, fmt.Errorf("a claim template does not fit its type, correct it: %w", err)
	}
	hash, err := claimHash(typed)
	if err != nil {
		return ClaimTemplate{}, err
	}
	t := ClaimTemplate{Name: typed.Name, Hash: hash, Spec: &typed.Spec, Labels: typed.Labels,
		Annotations: typed.Annotations, stored: stored}
	spec := runtime.DeepCopyJSON(object(normal["spec"]))
	if requests := object(object(spec["resources"])["requests"]); requests != nil {
		delete(requests, string(corev1.ResourceStorage))
	}
	shape, err := json.Marshal([]map[string]any{spec, unknown})
	if err != nil {
		return t, fmt.Errorf("encoding a claim template: %w", err)
	}
	meta, err := json.Marshal([]map[string]string{typed.Labels, typed.Annotations})
	if err != nil {
		return t, fmt.Errorf("encoding a claim template: %w", err)
	}
	t.Shape, t.Meta = string(shape), string(meta)
	return t, nil
}

// The fields of a claim in the order in which the Go structs of Kubernetes 1.22 have them, with the null and the empty
// objects that those write. What is younger comes last and only if it is set.
type (
	hashedClaim struct {
		metav1.TypeMeta
		Metadata hashedMeta      `json:"metadata"`
		Spec     hashedClaimSpec `json:"spec"`
		Status   struct{}        `json:"status"`
	}
	hashedMeta struct {
		Name                       string                  `json:"name,omitempty"`
		GenerateName               string                  `json:"generateName,omitempty"`
		Namespace                  string                  `json:"namespace,omitempty"`
		UID                        types.UID               `json:"uid,omitempty"`
		ResourceVersion            string                  `json:"resourceVersion,omitempty"`
		Generation                 int64                   `json:"generation,omitempty"`
		CreationTimestamp          *metav1.Time            `json:"creationTimestamp"`
		DeletionTimestamp          *metav1.Time            `json:"deletionTimestamp,omitempty"`
		DeletionGracePeriodSeconds *int64                  `json:"deletionGracePeriodSeconds,omitempty"`
		Labels                     map[string]string       `json:"labels,omitempty"`
		Annotations                map[string]string       `json:"annotations,omitempty"`
		OwnerReferences            []metav1.OwnerReference `json:"ownerReferences,omitempty"`
		Finalizers                 []string                `json:"finalizers,omitempty"`
	}
	hashedClaimSpec struct {
		AccessModes               []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
		Selector                  *metav1.LabelSelector               `json:"selector,omitempty"`
		Resources                 hashedResources                     `json:"resources"`
		VolumeName                string                              `json:"volumeName,omitempty"`
		StorageClassName          *string                             `json:"storageClassName,omitempty"`
		VolumeMode                *corev1.PersistentVolumeMode        `json:"volumeMode,omitempty"`
		DataSource                *corev1.TypedLocalObjectReference   `json:"dataSource,omitempty"`
		DataSourceRef             *corev1.TypedObjectReference        `json:"dataSourceRef,omitempty"`
		VolumeAttributesClassName *string                             `json:"volumeAttributesClassName,omitempty"`
	}
	hashedResources struct {
		Limits   corev1.ResourceList `json:"limits,omitempty"`
		Requests corev1.ResourceList `json:"requests,omitempty"`
	}
)

// claimHash is FNV-1 (32 bits) over the JSON that Kuperator v0.7 writes for the template, in Kubernetes' safe alphabet.
func claimHash(t *corev1.PersistentVolumeClaim) (string, error) {
	m, s := &t.ObjectMeta, &t.Spec
	hashed := hashedClaim{
		TypeMeta: t.TypeMeta,
		Metadata: hashedMeta{
			Name: m.Name, GenerateName: m.GenerateName, Namespace: m.Namespace, UID: m.UID,
			ResourceVersion: m.ResourceVersion, Generation: m.Generation, DeletionTimestamp: m.DeletionTimestamp,
			DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds, Labels: m.Labels, Annotations: m.Annotations,
			OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers,
		},
		Spec: hashedClaimSpec{
			AccessModes: s.AccessModes, Selector: s.Selector,
			Resources:  hashedResources{s.Resources.Limits, s.Resources.Requests},
			VolumeName: s.VolumeName, StorageClassName: s.StorageClassName, VolumeMode: s.VolumeMode, DataSource: s.DataSource,
			DataSourceRef: s.DataSourceRef, VolumeAttributesClassName: s.VolumeAttributesClassName,
		},
	}
	raw, err := json.Marshal(hashed)
	if err != nil {
		return "", fmt.Errorf("encoding a claim template: %w", err)
	}
	h := fnv.New32()
	_, _ = h.Write(raw) // never fails
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10)), nil
}
