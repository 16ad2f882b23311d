package revision

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// maxName is the longest name of a ControllerRevision, in bytes: Pods carry it as a label value.
const maxName = 63

// Render returns the data of the revision of a stored spec of a CollaSet that follows no configuration. spec is left as
// it is. A spec without a template is an error.
func Render(spec map[string]any) ([]byte, error) { return RenderWith(spec, nil) }

// RenderWith is Render for a CollaSet with that status.configuration.
func RenderWith(spec map[string]any, configuration []appsv1alpha1.ConfigurationStatus) ([]byte, error) {
	stored, ok := spec["template"].(map[string]any)
	if !ok {
		return nil, errors.New("spec.template is missing: give the CollaSet a template")
	}
	template := runtime.DeepCopyJSON(stored)
	if err := configure(template, configuration); err != nil {
		return nil, err
	}
	template["$patch"] = "replace"
	nullTimestamp(template)
	if podSpec, ok := template["spec"].(map[string]any); ok {
		for _, field := range []string{"containers", "initContainers"} {
			for _, c := range objects(podSpec[field]) {
				setIfAbsent(c, "resources", map[string]any{})
			}
		}
	}
	out := map[string]any{"template": template}
	if claims, ok := spec["volumeClaimTemplates"].([]any); ok && len(claims) > 0 {
		claims, _ = runtime.DeepCopyJSONValue(claims).([]any)
		for _, claim := range objects(claims) {
			nullTimestamp(claim)
			setIfAbsent(claim, "status", map[string]any{})
			if claimSpec, ok := claim["spec"].(map[string]any); ok {
				setIfAbsent(claimSpec, "resources", map[string]any{})
			}
		}
		out["volumeClaimTemplates"] = claims
	}
	data, err := json.Marshal(map[string]any{"spec": out})
	if err != nil {
		return nil, fmt.Errorf("encoding the template: %w", err)
	}
	return data, nil
}

// Unrender removes from a template what Render has added to it, so that it is as its user wrote it.
func Unrender(template map[string]any) {
	dropEmpty(template)
	spec := object(template["spec"])
	for _, field := range []string{"containers", "initContainers"} {
		for _, c := range objects(spec[field]) {
			deleteIfEmpty(c, "resources")
		}
	}
}

// UnrenderClaim is Unrender for a volume claim template.
func UnrenderClaim(claim map[string]any) {
	dropEmpty(claim)
	deleteIfEmpty(claim, "status")
	deleteIfEmpty(object(claim["spec"]), "resources")
}

// dropEmpty takes back what nullTimestamp does.
func dropEmpty(of map[string]any) {
	metadata := object(of["metadata"])
	if at, ok := metadata["creationTimestamp"]; ok && at == nil {
		delete(metadata, "creationTimestamp")
	}
	deleteIfEmpty(of, "metadata")
}

func deleteIfEmpty(from map[string]any, key string) {
	if value, ok := from[key].(map[string]any); ok && len(value) == 0 {
		delete(from, key)
	}
}

// nullTimestamp writes the null that the Go structs of Kubernetes 1.22 write.
func nullTimestamp(object map[string]any) {
	setIfAbsent(object, "metadata", map[string]any{})
	if metadata, ok := object["metadata"].(map[string]any); ok {
		setIfAbsent(metadata, "creationTimestamp", nil)
	}
}

func setIfAbsent(m map[string]any, key string, value any) {
	if _, ok := m[key]; !ok {
		m[key] = value
	}
}

// objects are the JSON objects of a JSON list; nothing if it is no list.
func objects(list any) []map[string]any {
	items, _ := list.([]any)
	out := make([]map[string]any, 0, len(items))
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// Hash is the hash of a revision's data: FNV-1 (32 bits) over the bytes and the decimal collision count, written in
// Kubernetes' safe alphabet.
func Hash(data []byte, collisions int32) string {
	h := fnv.New32()
	_, _ = h.Write(data) // never fails
	_, _ = h.Write([]byte(strconv.Itoa(int(collisions))))
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Name is the name of the revision with this hash: "<collaset>-<hash>", where the CollaSet's name is cut so that the
// whole fits a label value, and whatever is no lower-case letter or digit becomes a dash.
func Name(set, hash string) string {
	if room := maxName - len(hash) - 1; len(set) > room {
		set = set[:room]
	}
	return strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, strings.ToLower(set+"-"+hash))
}
