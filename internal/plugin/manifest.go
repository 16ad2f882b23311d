package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// defaultApplier is the field manager of kubectl apply --server-side.
const defaultApplier = "kubectl"

// strict refuses fields that do not exist, as kubectl apply does by default.
const strict = metav1.FieldValidationStrict

// plannable are the resources of which there are plans, by kind.
var plannable = map[string]schema.GroupVersionResource{
	appsv1alpha1.CollaSetKind:      appsv1alpha1.SchemeGroupVersion.WithResource("collasets"),
	appsv1alpha1.PodDecorationKind: appsv1alpha1.SchemeGroupVersion.WithResource("poddecorations"),
}

// manifests reads the CollaSets and PodDecorations of a file, "-" for standard input, or of the files of a folder, as
// kubectl does. Other objects are left out.
func (p *plugin) manifests(path, namespace string) ([]*unstructured.Unstructured, error) {
	files := []string{path}
	if info, err := os.Stat(path); path != "-" && err == nil && info.IsDir() {
		files = nil
		for _, kind := range []string{"*.json", "*.yaml", "*.yml"} {
			more, err := filepath.Glob(filepath.Join(path, kind))
			if err != nil {
				return nil, err
			}
			files = append(files, more...)
		}
	}
	var found []*unstructured.Unstructured
	for _, file := range files {
		more, err := p.manifestsOf(file, namespace)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no CollaSet and no PodDecoration (apiVersion %s)", path,
			appsv1alpha1.SchemeGroupVersion)
	}
	return found, nil
}

func (p *plugin) manifestsOf(path, namespace string) ([]*unstructured.Unstructured, error) {
	in := p.In
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	var found []*unstructured.Unstructured
	documents := yaml.NewYAMLOrJSONDecoder(in, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := documents.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		if _, is := plannable[object.GetKind()]; !is ||
			object.GroupVersionKind().Group != appsv1alpha1.SchemeGroupVersion.Group {
			continue
		}
		if object.GetNamespace() == "" {
			object.SetNamespace(namespace)
		}
		found = append(found, object)
	}
}

// applied is what an object would be after kubectl apply.
type applied struct {
	// live is nil if there is none yet.
	live, next *unstructured.Unstructured
	warnings   []string
	gaps       []insight.Gap
}

// apply says what the manifest would make of its object. The API server is asked in a dry run; without the right to
// patch, the manifest is merged here, and has not been validated.
func (s *session) apply(ctx context.Context, manifest *unstructured.Unstructured) (applied, error) {
	var warnings []string
	ctx = gathering(ctx, &warnings)
	objects := s.dynamic.Resource(plannable[manifest.GetKind()]).Namespace(manifest.GetNamespace())
	live, err := objects.Get(ctx, manifest.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		next, err := objects.Create(ctx, manifest,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: fieldManager, FieldValidation: strict})
		if g := refusal(err, "create", manifest); g != nil {
			return applied{next: manifest, gaps: []insight.Gap{*g}}, nil
		}
		return applied{next: next, warnings: warnings}, err
	}
	if err != nil {
		return applied{}, fmt.Errorf("reading %s in namespace %s: %w", shown(refOf(manifest)), manifest.GetNamespace(),
			err)
	}
	a := applied{live: live}
	original, byClient := live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]
	if applier := serverSideApplier(live); !byClient && applier != "" {
		a.next, err = objects.Apply(ctx, manifest.GetName(), manifest,
			metav1.ApplyOptions{FieldManager: applier, Force: true, DryRun: []string{metav1.DryRunAll}})
		if g := refusal(err, "patch", manifest); g == nil {
			a.warnings = warnings
			return a, err
		}
	}
	patch, err := mergePatch(original, manifest, live)
	if err != nil {
		return a, err
	}
	a.next, err = objects.Patch(ctx, live.GetName(), types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager, DryRun: []string{metav1.DryRunAll}, FieldValidation: strict})
	if g := refusal(err, "patch", manifest); g != nil {
		a.gaps = append(a.gaps, *g)
		a.next, err = merged(live, patch)
	}
	a.warnings = warnings
	return a, err
}

// refusal is the gap where the user may not write: the manifest is not checked then.
func refusal(err error, verb string, manifest *unstructured.Unstructured) *insight.Gap {
	if !apierrors.IsForbidden(err) {
		return nil
	}
	return gap(err, verb, plannable[manifest.GetKind()].GroupResource().String(), manifest.GetNamespace(),
		"what the API server makes of the manifest (defaults, validation, warnings): it was merged without asking it")
}

// serverSideApplier is who applied the object, if one did with server-side apply; "" otherwise.
func serverSideApplier(live *unstructured.Unstructured) string {
	found := ""
	for _, f := range live.GetManagedFields() {
		if f.Operation != metav1.ManagedFieldsOperationApply || f.Subresource != "" {
			continue
		}
		if found != "" {
			return defaultApplier
		}
		found = f.Manager
	}
	return found
}

// mergePatch is what kubectl apply sends: what the manifest sets, and what it does not set any more.
func mergePatch(original string, manifest, live *unstructured.Unstructured) ([]byte, error) {
	wanted, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	now, err := json.Marshal(live)
	if err != nil {
		return nil, err
	}
	var before []byte
	if original != "" {
		before = []byte(original)
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(before, wanted, now)
	if err != nil {
		return nil, fmt.Errorf("comparing the manifest of %s with what is there: %w", shown(refOf(manifest)), err)
	}
	return patch, nil
}

func refOf(object *unstructured.Unstructured) insight.Ref {
	return insight.Ref{Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName()}
}

func merged(live *unstructured.Unstructured, patch []byte) (*unstructured.Unstructured, error) {
	before, err := json.Marshal(live)
	if err != nil {
		return nil, err
	}
	after, err := jsonpatch.MergePatch(before, patch)
	if err != nil {
		return nil, err
	}
	next := &unstructured.Unstructured{}
	return next, json.NewDecoder(bytes.NewReader(after)).Decode(&next.Object)
}
