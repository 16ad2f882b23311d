package revision

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/shorten"
)

const (
	// maxForcing bounds the fields that a Change names, maxField the length of each in bytes.
	maxForcing = 8
	maxField   = 256
	// claimTemplates is the path of the volume claim templates.
	claimTemplates = "volumeClaimTemplates"
)

// Change is what lies between two revisions. It is immutable. The zero Change changes nothing, in place.
type Change struct {
	// Forcing names the fields, as paths below the CollaSet's spec, that a running Pod cannot take over; sorted and
	// bounded. Lists are by name: template.spec.containers[app].env. Empty means that the change can be made in place.
	Forcing []string
	// Expand names the volume claim templates, sorted, that ask for more storage and do not differ otherwise. That forces
	// nothing.
	Expand []string

	// Images are the new images by container name, for those that differ: of containers, init containers and sidecars.
	Images map[string]string
	// Restart are the containers, sidecars among them, that restart for new content of what they mount, whether their
	// image changes or not; sorted.
	Restart []string
	// Labels and Annotations are those of the template to set (value) or remove (nil) on the Pod.
	Labels, Annotations map[string]*string
	// Tolerations are those to add. One that differs from a toleration of the Pod in its seconds alone takes its place.
	Tolerations []corev1.Toleration
	// ActiveDeadlineSeconds is the new deadline; nil: it does not change.
	ActiveDeadlineSeconds *int64
	// Resize is the cpu and memory to set by container name, PodResize that of the Pod as a whole (nil: none).
	Resize    map[string]corev1.ResourceRequirements
	PodResize *corev1.ResourceRequirements
	// Restarts reports whether a container restarts for the change in place: for a new image, for what it mounts, or for
	// resources where its resizePolicy asks for that. Init containers that are no sidecars do not run again.
	Restarts bool

	// claimsForce counts the fields of Forcing that are volume claim templates of one name which differ in more than size,
	// labels and annotations, allForce all. Templates that only one revision has are not meant: they change the Pod's
	// volumes.
	claimsForce, allForce int
}

// InPlace reports whether the change can be made on a running Pod.
func (c Change) InPlace() bool { return len(c.Forcing) == 0 }

// IsZero reports whether nothing is changed.
func (c Change) IsZero() bool {
	return len(c.Forcing)+len(c.Expand)+len(c.Images)+len(c.Restart)+len(c.Labels)+len(c.Annotations)+
		len(c.Tolerations)+len(c.Resize) == 0 && c.ActiveDeadlineSeconds == nil && c.PodResize == nil
}

// OnlyClaimsForce reports whether the Pod itself could take the change over, and only claims of templates that both
// revisions have cannot.
func (c Change) OnlyClaimsForce() bool { return c.claimsForce > 0 && c.claimsForce == c.allForce }

// Explain says how a Pod gets from one revision to another: in place, or by being re-created because of the fields in
// Forcing. What is in place is a table, of which the source is ValidatePodUpdate and ValidatePodResize of Kubernetes
// v1.36:
//
//	metadata.labels, metadata.annotations       always, but for a new value of one that restarts: Capabilities.Restart
//	ConfigMaps and Secrets that are followed    mounted ones; the container restarts
//	spec.containers[].image                     always; the container restarts
//	spec.initContainers[].image                 always; a sidecar restarts, others change when the Pod is created anew
//	spec.tolerations                            additions, and other seconds of one that is there
//	spec.activeDeadlineSeconds                  set or lowered
//	spec.containers[].resources                 cpu and memory, set or changed, not removed,
//	                                            QoS class as before: Capabilities
//	spec.initContainers[].resources, spec.resources
//	                                            likewise: Capabilities
//	volumeClaimTemplates[] storage request      raised
//
// With Capabilities.ImagesOnly the first two, claims, and nothing else.
//
// Everything else forces. What says the same in other words differs in nothing. A nil revision is one that is not known
// any more: nothing can be said to be equal then.
func Explain(from, to *Data, can Capabilities) Change {
	if from == nil || to == nil {
		return Change{Forcing: []string{"(the Pod's revision is not known any more)"}, allForce: 1}
	}
	c := comparison{
		can: can, from: podSpec(from), to: podSpec(to),
		said:    [2]map[string]any{object(from.template["spec"]), object(to.template["spec"])},
		forcing: map[string]bool{},
	}
	table := templateTable
	if can.ImagesOnly {
		table = imagesTable
	}
	c.fields("template", from.normal, to.normal, table)
	c.qosClass()
	c.claims(from.claims, to.claims)
	c.fields("", named(from), named(to), nil)
	c.change.Forcing = bounded(slices.Sorted(maps.Keys(c.forcing)))
	c.change.allForce = len(c.forcing)
	return c.change
}

// bounded are as many fields as a Change names, and how many there are besides.
func bounded(fields []string) []string {
	if len(fields) <= maxForcing {
		return fields
	}
	return append(fields[:maxForcing:maxForcing], fmt.Sprintf("(%d more)", len(fields)-maxForcing))
}

// comparison collects a Change.
type comparison struct {
	can      Capabilities
	from, to map[string]any    // the Pods' specs in normal form
	said     [2]map[string]any // both as they were stored
	change   Change
	forcing  map[string]bool
}

// rule takes up a field that differs. A field without a rule forces.
type rule func(c *comparison, path string, before, after any)

// The table of what a running Pod can take over.
var (
	templateTable = map[string]rule{"metadata": fieldsBy(metadataTable), "spec": fieldsBy(specTable)}
	metadataTable = map[string]rule{"labels": (*comparison).labels, "annotations": (*comparison).annotations}
	specTable     = map[string]rule{
		"containers":            (*comparison).containers,
		"initContainers":        (*comparison).initContainers,
		"tolerations":           (*comparison).tolerations,
		"activeDeadlineSeconds": (*comparison).activeDeadline,
		"resources":             (*comparison).podResources,
	}
	// imagesTable is the one of Capabilities.ImagesOnly.
	imagesTable = map[string]rule{"metadata": fieldsBy(metadataTable),
		"spec": fieldsBy(map[string]rule{"containers": (*comparison).containers})}
)

func fieldsBy(table map[string]rule) rule {
	return func(c *comparison, path string, before, after any) {
		c.fields(path, object(before), object(after), table)
	}
}

// fields applies the table to the fields in which two objects differ.
func (c *comparison) fields(path string, before, after map[string]any, table map[string]rule) {
	look := func(key string) {
		at := key
		if path != "" {
			at = path + "." + key
		}
		switch r, old, new := table[key], before[key], after[key]; {
		case reflect.DeepEqual(old, new):
		case r != nil:
			r(c, at, old, new)
		default:
			c.force(at)
		}
	}
	for key := range before {
		look(key)
	}
	for key := range after {
		if _, both := before[key]; !both {
			look(key)
		}
	}
}

func (c *comparison) force(field string) {
	c.forcing[shorten.Bytes(field, maxField)] = true
}

func (c *comparison) labels(_ string, before, after any) {
	c.change.Labels = diff(object(before), object(after))
}

func (c *comparison) annotations(path string, before, after any) {
	c.change.Annotations = diff(object(before), object(after))
	for key, value := range c.change.Annotations {
		switch {
		case key == appsv1alpha1.ConfigurationAnnotation:
			c.configuration(object(before)[key], object(after)[key])
		case value != nil && c.can.Restart.has(key):
			c.force(path + "[" + key + "]")
		}
	}
}

func (c *comparison) containers(path string, before, after any) {
	c.eachContainer("containers", path, before, after,
		func(map[string]any) bool { return c.can.Resize && !c.can.ImagesOnly })
}

func (c *comparison) initContainers(path string, before, after any) {
	c.eachContainer("initContainers", path, before, after, func(container map[string]any) bool {
		if container["restartPolicy"] == string(corev1.ContainerRestartPolicyAlways) {
			return c.can.Resize
		}
		restarts := slices.ContainsFunc(objects(container["resizePolicy"]), func(p map[string]any) bool {
			return p["restartPolicy"] == string(corev1.RestartContainer)
		})
		return c.can.Resize && c.can.ResizeInit && !restarts
	})
}

// eachContainer compares containers one by one. They must be the same, in the same order.
func (c *comparison) eachContainer(list, path string, before, after any, mayResize func(map[string]any) bool) {
	old, new := objects(before), objects(after)
	if !slices.EqualFunc(old, new, func(a, b map[string]any) bool { return a["name"] == b["name"] }) {
		c.force(path)
		return
	}
	for i := range new {
		name, _ := new[i]["name"].(string)
		c.fields(path+"["+name+"]", old[i], new[i], map[string]rule{
			"image": func(c *comparison, at string, _, after any) {
				image, _ := after.(string)
				if image == "" {
					c.force(at) // the API server wants one on a running Pod
					return
				}
				put(&c.change.Images, name, image)
				c.change.Restarts = c.change.Restarts || runs(list, new[i])
			},
			"imagePullPolicy": func(c *comparison, at string, _, _ any) {
				if c.saysPullPolicy(list, name) {
					c.force(at)
				}
			},
			"resources": func(c *comparison, at string, before, after any) {
				wanted, ok := c.resources(at, before, after, true)
				switch {
				case !ok:
				case !mayResize(new[i]) || !c.resizable():
					c.force(at)
				default:
					put(&c.change.Resize, name, wanted)
					c.change.Restarts = c.change.Restarts || runs(list, new[i]) && restartsFor(resizePolicy(new[i]), wanted)
				}
			},
		})
	}
}

// runs reports whether a container of a list runs for as long as the Pod does.
func runs(list string, container map[string]any) bool {
	return list != "initContainers" || container["restartPolicy"] == string(corev1.ContainerRestartPolicyAlways)
}

func resizePolicy(container map[string]any) (policy []corev1.ContainerResizePolicy) {
	convert(container["resizePolicy"], &policy)
	return policy
}

// restartsFor reports whether the resize policy has a container restart for these resources.
func restartsFor(policy []corev1.ContainerResizePolicy, wanted corev1.ResourceRequirements) bool {
	return slices.ContainsFunc(policy, func(p corev1.ContainerResizePolicy) bool {
		_, requested := wanted.Requests[p.ResourceName]
		_, limited := wanted.Limits[p.ResourceName]
		return p.RestartPolicy == corev1.RestartContainer && (requested || limited)
	})
}

// saysPullPolicy reports whether one of the revisions says when to pull the image of a container. Where none does it
// goes by the tag, and a running Pod keeps what it was given: such images have always been changed in place.
func (c *comparison) saysPullPolicy(list, container string) bool {
	return slices.ContainsFunc(slices.Concat(objects(c.said[0][list]), objects(c.said[1][list])),
		func(said map[string]any) bool {
			policy, _ := said["imagePullPolicy"].(string)
			return nameOf(said) == container && policy != ""
		})
}

// podResources is about the resources of the Pod as a whole. What requests are where only limits are set depends on the
// containers then, so both revisions must say it.
func (c *comparison) podResources(path string, before, after any) {
	wanted, ok := c.resources(path, before, after, false)
	switch {
	case !ok:
	case !c.can.Resize || !c.resizable():
		c.force(path)
	default:
		c.change.PodResize = &wanted
	}
}

// resizable reports whether the two Pods can differ in resources at all.
func (c *comparison) resizable() bool {
	if object(c.to["os"])["name"] == string(corev1.Windows) {
		return false
	}
	old, new := object(c.from["resources"]), object(c.to["resources"])
	if len(old) == 0 && len(new) == 0 {
		return true
	}
	explicit := func(said map[string]any) bool {
		requests := object(object(said["resources"])["requests"])
		return requests[string(corev1.ResourceCPU)] != nil && requests[string(corev1.ResourceMemory)] != nil
	}
	return c.can.ResizePod && explicit(c.said[0]) && explicit(c.said[1])
}

// resources compares resource requirements and returns the cpu and memory to set; not ok if none is to be set, or if
// something forces. With defaults, a request that is not given is the limit, as the API server has it for containers.
func (c *comparison) resources(
	path string, before, after any, defaults bool,
) (wanted corev1.ResourceRequirements, ok bool) {
	rest := map[string]rule{"requests": func(*comparison, string, any, any) {},
		"limits": func(*comparison, string, any, any) {}}
	forced := len(c.forcing)
	c.fields(path, object(before), object(after), rest)
	old, new := requirements(before, defaults), requirements(after, defaults)
	wanted.Requests = c.quantities(path+".requests", old.Requests, new.Requests)
	wanted.Limits = c.quantities(path+".limits", old.Limits, new.Limits)
	return wanted, len(c.forcing) == forced && len(wanted.Requests)+len(wanted.Limits) > 0
}

// quantities are those of cpu and memory that are added or differ.
func (c *comparison) quantities(path string, before, after corev1.ResourceList) corev1.ResourceList {
	var wanted corev1.ResourceList
	for name, old := range before {
		if new, kept := after[name]; !kept || (old.Cmp(new) != 0 && !mutable(name)) {
			c.force(path + "." + string(name))
		}
	}
	for name, new := range after {
		old, both := before[name]
		switch {
		case both && old.Cmp(new) == 0:
		case mutable(name):
			if wanted == nil {
				wanted = corev1.ResourceList{}
			}
			wanted[name] = new
		default:
			c.force(path + "." + string(name))
		}
	}
	return wanted
}

func mutable(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory
}

// qosClass forces what would change the class of the Pod: that is given to it for its life.
func (c *comparison) qosClass() {
	if len(c.change.Resize) == 0 && c.change.PodResize == nil {
		return
	}
	before, after := qosOf(c.from), qosOf(c.to)
	if before == after {
		return
	}
	why := fmt.Sprintf("resources (QoS class %s would become %s)", before, after)
	for _, list := range []string{"containers", "initContainers"} {
		for _, container := range objects(c.to[list]) {
			name, _ := container["name"].(string)
			if _, resized := c.change.Resize[name]; resized {
				c.force(fmt.Sprintf("template.spec.%s[%s].%s", list, name, why))
			}
		}
	}
	if c.change.PodResize != nil {
		c.force("template.spec." + why)
	}
}

// qosOf is the QoS class of a Pod of this spec.
func qosOf(spec map[string]any) corev1.PodQOSClass {
	var parts []corev1.ResourceRequirements
	if whole := object(spec["resources"]); len(whole) > 0 {
		parts = append(parts, requirements(whole, true))
	} else {
		for _, container := range slices.Concat(objects(spec["containers"]), objects(spec["initContainers"])) {
			parts = append(parts, requirements(container["resources"], true))
		}
	}
	some, guaranteed := false, true
	for _, r := range parts {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			some = some || request.Sign() > 0 || limit.Sign() > 0
			guaranteed = guaranteed && limit.Sign() > 0 && request.Cmp(limit) == 0
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	default:
		return corev1.PodQOSBurstable
	}
}

// tolerations may be added, and the seconds of one may change.
func (c *comparison) tolerations(path string, before, after any) {
	var old, new []corev1.Toleration
	convert(before, &old)
	convert(after, &new)
	for i := range old {
		if !slices.ContainsFunc(new, func(t corev1.Toleration) bool { return sameToleration(t, old[i]) }) {
			c.force(path)
			return
		}
	}
	for i := range new {
		if !slices.ContainsFunc(old, func(t corev1.Toleration) bool { return reflect.DeepEqual(t, new[i]) }) {
			c.change.Tolerations = append(c.change.Tolerations, new[i])
		}
	}
	// Where order means something, the Pod must come to have it. That of the Pod is known only if it meant something
	// before.
	known := len(old) < 2 || !noTaintTwice(old)
	if !noTaintTwice(new) && (!known || !reflect.DeepEqual(c.change.addTo(old), new)) {
		c.force(path)
	}
}

// sameToleration compares all but the seconds.
func sameToleration(a, b corev1.Toleration) bool { return a.MatchToleration(&b) }

// activeDeadline may be set or lowered.
func (c *comparison) activeDeadline(path string, before, after any) {
	var old, new *int64
	convert(before, &old)
	convert(after, &new)
	if new == nil || (old != nil && *new > *old) {
		c.force(path)
		return
	}
	c.change.ActiveDeadlineSeconds = new
}

// claims compares volume claim templates by name; their order means nothing.
func (c *comparison) claims(before, after []map[string]any) {
	old, new := byName(before), byName(after)
	for name, claim := range new {
		was, both := old[name]
		kind, grows := compareClaims(was, claim)
		switch {
		case !both:
			c.force(claimTemplates)
		case kind && !grows:
			// Claims neither shrink nor lose labels; what can be changed on them is.
		case kind:
			c.change.Expand = append(c.change.Expand, name)
		default:
			c.force(claimTemplates + "[" + name + "]")
			c.change.claimsForce++
		}
	}
	for name := range old {
		if _, both := new[name]; !both {
			c.force(claimTemplates)
		}
	}
	slices.Sort(c.change.Expand)
}

// compareClaims reports whether two claims are of one kind, which leaves out their size, labels and annotations, and
// whether the second asks for more storage.
func compareClaims(before, after map[string]any) (kind, grows bool) {
	size := func(claim map[string]any) (q resource.Quantity, rest corev1.PersistentVolumeClaim) {
		convert(claim, &rest)
		q = rest.Spec.Resources.Requests[corev1.ResourceStorage]
		delete(rest.Spec.Resources.Requests, corev1.ResourceStorage)
		rest.Labels, rest.Annotations = nil, nil
		return q, rest
	}
	old, oldRest := size(before)
	new, newRest := size(after)
	return reflect.DeepEqual(oldRest, newRest), new.Cmp(old) > 0
}

func byName(claims []map[string]any) map[string]map[string]any {
	out := make(map[string]map[string]any, len(claims))
	for _, claim := range claims {
		out[nameOf(object(claim["metadata"]))] = claim
	}
	return out
}

// named are a revision's unknown fields, with containers by name instead of number.
func named(d *Data) map[string]any {
	if len(d.unknown) == 0 {
		return nil
	}
	var names []string
	spec := podSpec(d)
	for _, list := range []string{"containers", "initContainers"} {
		for i, container := range objects(spec[list]) {
			name, _ := container["name"].(string)
			names = append(names, fmt.Sprintf("template.spec.%s[%d]", list, i), fmt.Sprintf("template.spec.%s[%s]", list, name))
		}
	}
	byName := strings.NewReplacer(names...)
	out := make(map[string]any, len(d.unknown))
	for path, value := range d.unknown {
		out[byName.Replace(path)] = value
	}
	return out
}

func podSpec(d *Data) map[string]any { return object(d.normal["spec"]) }

func object(value any) map[string]any {
	m, _ := value.(map[string]any)
	return m
}

// requirements reads resource requirements in normal form.
func requirements(value any, defaults bool) corev1.ResourceRequirements {
	var r corev1.ResourceRequirements
	convert(value, &r)
	if defaults && len(r.Limits) > 0 {
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		for name, limit := range r.Limits {
			if _, given := r.Requests[name]; !given {
				r.Requests[name] = limit
			}
		}
	}
	return r
}

// convert reads a value in normal form, which was written from that type.
func convert(value, into any) {
	raw, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		panic(err)
	}
}

func put[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

func diff(before, after map[string]any) map[string]*string {
	var d map[string]*string
	for key, value := range after {
		if old, ok := before[key]; !ok || old != value {
			text, _ := value.(string)
			put(&d, key, &text)
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			put(&d, key, nil)
		}
	}
	return d
}
