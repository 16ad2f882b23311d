package revision

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/imagename"
	"kusionstack.io/kuperator/internal/shorten"
)

// hashLength is the length of a content's hash, in hexadecimal digits.
const hashLength = 10

// Configuration names a ConfigMap or Secret of a template's namespace.
type Configuration struct {
	Kind appsv1alpha1.ConfigurationKind
	Name string
}

// String is kind/name.
func (c Configuration) String() string { return string(c.Kind) + "/" + c.Name }

func compareConfigurations(a, b Configuration) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// configurationUse is how the containers of a template use a ConfigMap or Secret.
type configurationUse struct {
	// files are the containers, sidecars among them, that mount it.
	files []string
	// renewing are the fields of which only another Pod takes over new content: environments, and all of init containers.
	renewing []string
}

// usesOf are the ConfigMaps and Secrets that a Pod's spec refers to. Credentials for pulling images do not count.
func usesOf(spec *corev1.PodSpec) map[Configuration]*configurationUse {
	uses := map[Configuration]*configurationUse{}
	use := func(kind appsv1alpha1.ConfigurationKind, name string) *configurationUse {
		c := Configuration{kind, name}
		if uses[c] == nil {
			uses[c] = &configurationUse{}
		}
		return uses[c]
	}
	const configMap, secret = appsv1alpha1.ConfigurationConfigMap, appsv1alpha1.ConfigurationSecret
	volumes := map[string][]*configurationUse{}
	for _, v := range spec.Volumes {
		if v.ConfigMap != nil {
			volumes[v.Name] = append(volumes[v.Name], use(configMap, v.ConfigMap.Name))
		}
		if v.Secret != nil {
			volumes[v.Name] = append(volumes[v.Name], use(secret, v.Secret.SecretName))
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.ConfigMap != nil {
				volumes[v.Name] = append(volumes[v.Name], use(configMap, source.ConfigMap.Name))
			}
			if source.Secret != nil {
				volumes[v.Name] = append(volumes[v.Name], use(secret, source.Secret.Name))
			}
		}
	}
	add := func(list string, c *corev1.Container) {
		path := fmt.Sprintf("template.spec.%s[%s]", list, c.Name)
		renews := func(u *configurationUse, field string) { u.renewing = append(u.renewing, path+"."+field) }
		for _, mount := range c.VolumeMounts {
			for _, u := range volumes[mount.Name] {
				if list == "containers" || isSidecar(c) {
					u.files = append(u.files, c.Name)
				} else {
					renews(u, "volumeMounts")
				}
			}
		}
		for _, variable := range c.Env {
			if from := variable.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				renews(use(configMap, from.ConfigMapKeyRef.Name), "env")
			}
			if from := variable.ValueFrom; from != nil && from.SecretKeyRef != nil {
				renews(use(secret, from.SecretKeyRef.Name), "env")
			}
		}
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				renews(use(configMap, from.ConfigMapRef.Name), "envFrom")
			}
			if from.SecretRef != nil {
				renews(use(secret, from.SecretRef.Name), "envFrom")
			}
		}
	}
	for i := range spec.Containers {
		add("containers", &spec.Containers[i])
	}
	for i := range spec.InitContainers {
		add("initContainers", &spec.InitContainers[i])
	}
	return uses
}

// Followed are the ConfigMaps and Secrets that the CollaSet follows, sorted; nil if it follows none.
func Followed(set *appsv1alpha1.CollaSet) []Configuration {
	follow := set.Spec.UpdateStrategy.FollowConfiguration
	if follow == nil {
		return nil
	}
	var followed []Configuration
	for c := range usesOf(&set.Spec.Template.Spec) {
		if slices.Contains(follow.Kinds, c.Kind) && (len(follow.Names) == 0 || slices.Contains(follow.Names, c.Name)) {
			followed = append(followed, c)
		}
	}
	slices.SortFunc(followed, compareConfigurations)
	return followed
}

// ConfigurationReading is what an attempt to read a ConfigMap or Secret gave: the hash of its content or, if that is
// empty, the problem.
type ConfigurationReading struct{ Hash, Problem string }

// FollowConfiguration is the CollaSet's status.configuration after what it follows was read. An object that is read for
// the first time is taken as current. One that cannot be read, or is not followed any more, stays as it was for as long
// as the template refers to it: neither updates a Pod.
func FollowConfiguration(
	set *appsv1alpha1.CollaSet, readings map[Configuration]ConfigurationReading,
) []appsv1alpha1.ConfigurationStatus {
	uses, entries := usesOf(&set.Spec.Template.Spec), map[Configuration]appsv1alpha1.ConfigurationStatus{}
	for _, entry := range set.Status.Configuration {
		if c := (Configuration{entry.Kind, entry.Name}); uses[c] != nil && entry.Hash != "" {
			entry.Message = ""
			entries[c] = entry
		}
	}
	for _, c := range Followed(set) {
		entry, reading := entries[c], readings[c]
		entry.Kind, entry.Name, entry.Message = c.Kind, c.Name, shorten.Bytes(reading.Problem, maxRefusal)
		if reading.Hash != "" {
			entry.Hash, entry.InitialHash = reading.Hash, cmp.Or(entry.InitialHash, reading.Hash)
		}
		entries[c] = entry
	}
	var status []appsv1alpha1.ConfigurationStatus
	for _, c := range slices.SortedFunc(maps.Keys(entries), compareConfigurations) {
		status = append(status, entries[c])
	}
	return status
}

// HashOfConfigMap is the hash of a ConfigMap's content. Equal content has equal hashes.
func HashOfConfigMap(c *corev1.ConfigMap) string { return hashOfContent(c.Data, c.BinaryData) }

// HashOfSecret is the hash of a Secret's content. It tells nothing about content that cannot be guessed.
func HashOfSecret(s *corev1.Secret) string { return hashOfContent(nil, s.Data) }

func hashOfContent(data map[string]string, binary map[string][]byte) string {
	sum := sha256.Sum256([]byte(encode([]any{data, binary})))
	return hex.EncodeToString(sum[:])[:hashLength]
}

// configure puts ConfigurationAnnotation into a stored template: what the template refers to and has changed since it
// is followed. What the template itself says there is ignored: it comes from a revision or a Pod.
func configure(template map[string]any, status []appsv1alpha1.ConfigurationStatus) error {
	metadata, _ := template["metadata"].(map[string]any)
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		if delete(annotations, appsv1alpha1.ConfigurationAnnotation); len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	if len(status) == 0 {
		return nil
	}
	var typed corev1.PodTemplateSpec
	raw, err := json.Marshal(template)
	if err == nil {
		err = json.Unmarshal(raw, &typed)
	}
	if err != nil {
		return fmt.Errorf("the template does not fit its type, correct it: %w", err)
	}
	uses := usesOf(&typed.Spec)
	var changed []string
	for _, entry := range status {
		if c := (Configuration{entry.Kind, entry.Name}); uses[c] != nil && entry.Hash != entry.InitialHash {
			changed = append(changed, c.String()+"="+entry.Hash)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	slices.Sort(changed)
	if metadata == nil {
		metadata = map[string]any{}
		template["metadata"] = metadata
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}
	annotations[appsv1alpha1.ConfigurationAnnotation] = strings.Join(changed, ",")
	return nil
}

// configuration takes up a change of what containers are configured with: those that mount it restart, and another Pod
// is needed for all else.
func (c *comparison) configuration(before, after any) {
	old, new := configurationsIn(before), configurationsIn(after)
	var spec corev1.PodSpec
	convert(c.to, &spec)
	uses := usesOf(&spec)
	restart := map[string]bool{}
	for _, changed := range slices.Concat(slices.Collect(maps.Keys(old)), slices.Collect(maps.Keys(new))) {
		use := uses[changed]
		if old[changed] == new[changed] || use == nil {
			continue
		}
		for _, field := range use.renewing {
			c.force(fmt.Sprintf("%s (%s %s has changed)", field, changed.Kind, changed.Name))
		}
		for _, container := range use.files {
			restart[container] = true
		}
	}
	c.change.Restart = slices.Sorted(maps.Keys(restart))
	c.change.Restarts = c.change.Restarts || len(restart) > 0
}

// configurationsIn are the hashes in a ConfigurationAnnotation.
func configurationsIn(annotation any) map[Configuration]string {
	text, _ := annotation.(string)
	hashes := map[Configuration]string{}
	for _, entry := range strings.Split(text, ",") {
		object, hash, _ := strings.Cut(entry, "=")
		if kind, name, ok := strings.Cut(object, "/"); ok {
			hashes[Configuration{appsv1alpha1.ConfigurationKind(kind), name}] = hash
		}
	}
	return hashes
}

// imagesOn are the images to give the containers of a Pod: those that change, and second names for those that restart
// without a new image. unnamed is a container whose image has no second name, "" if there is none. A container that has
// yet to restart for an earlier change needs no other.
func (c Change) imagesOn(pod *corev1.Pod) (images map[string]string, unnamed string) {
	images = maps.Clone(c.Images)
	before, _ := recordOf(pod) // one that cannot be read is replaced
	for _, name := range c.Restart {
		live, status := containerOf(pod, name), statusOf(pod, name)
		if live == nil || status == nil || status.ContainerID == "" { // it will start with the new content
			continue
		}
		earlier, unfinished := before.ContainerStates[name]
		unfinished = unfinished && earlier.LastContainerID != nil && *earlier.LastContainerID == status.ContainerID &&
			earlier.LastImage != live.Image
		image, changes := images[name]
		if unfinished && !changes || changes && image != live.Image {
			continue
		}
		second := imagename.Second(live.Image, status.ImageID)
		if second == "" {
			return c.Images, name
		}
		put(&images, name, second)
	}
	return images, ""
}
