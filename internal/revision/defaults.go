package revision

import (
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// fill gives an object of the core API, and everything in it, what the API server gives Pods and claims that leave it
// open. The API server's own defaults cannot be imported without the whole of Kubernetes; a test compares these with a
// real one. What depends on a cluster is left open: priorities, storage classes, the tolerations that admission adds.
func fill(object any) { each(reflect.ValueOf(object), defaults) }

// each calls act with a pointer to each struct in a value, parents first, and to each list of quantities.
func each(v reflect.Value, act func(any)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			each(v.Elem(), act)
		}
	case reflect.Slice:
		for i := range v.Len() {
			each(v.Index(i), act)
		}
	case reflect.Map:
		if v.Type() == reflect.TypeFor[corev1.ResourceList]() {
			act(v.Addr().Interface())
		}
	case reflect.Struct:
		act(v.Addr().Interface())
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				each(v.Field(i), act)
			}
		}
	default:
	}
}

// defaults is the table.
//
//nolint:gocyclo // a table by type
func defaults(object any) {
	switch o := object.(type) {
	case *corev1.PodSpec:
		say(&o.RestartPolicy, corev1.RestartPolicyAlways)
		say(&o.DNSPolicy, corev1.DNSClusterFirst)
		say(&o.SchedulerName, corev1.DefaultSchedulerName)
		say(&o.TerminationGracePeriodSeconds, ptr.To[int64](corev1.DefaultTerminationGracePeriodSeconds))
		say(&o.EnableServiceLinks, ptr.To(corev1.DefaultEnableServiceLinks))
		say(&o.ServiceAccountName, o.DeprecatedServiceAccount) // the older name of the same field
		say(&o.ServiceAccountName, "default")
		o.DeprecatedServiceAccount = ""
		for _, containers := range [][]corev1.Container{o.Containers, o.InitContainers} {
			for i := range containers {
				fillContainer(&containers[i], o.HostNetwork)
			}
		}
		fillWhole(o)
	case *corev1.Container:
		say(&o.ImagePullPolicy, pullPolicy(o.Image))
		say(&o.TerminationMessagePath, corev1.TerminationMessagePathDefault)
		say(&o.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	case *corev1.EphemeralContainerCommon:
		defaults((*corev1.Container)(o))
	case *corev1.ContainerPort:
		say(&o.Protocol, corev1.ProtocolTCP)
	case *corev1.Probe:
		say(&o.TimeoutSeconds, 1)
		say(&o.PeriodSeconds, 10)
		say(&o.SuccessThreshold, 1)
		say(&o.FailureThreshold, 3)
	case *corev1.HTTPGetAction:
		say(&o.Path, "/")
		say(&o.Scheme, corev1.URISchemeHTTP)
	case *corev1.GRPCAction:
		say(&o.Service, ptr.To(""))
	case *corev1.ObjectFieldSelector:
		say(&o.APIVersion, "v1")
	case *corev1.FileKeySelector:
		say(&o.Optional, ptr.To(false))
	case *corev1.Volume:
		if ptr.AllPtrFieldsNil(&o.VolumeSource) {
			o.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
	case *corev1.ImageVolumeSource:
		say(&o.PullPolicy, pullPolicy(o.Reference))
	case *corev1.HostPathVolumeSource:
		say(&o.Type, ptr.To(corev1.HostPathUnset))
	case *corev1.SecretVolumeSource:
		say(&o.DefaultMode, ptr.To(corev1.SecretVolumeSourceDefaultMode))
	case *corev1.ConfigMapVolumeSource:
		say(&o.DefaultMode, ptr.To(corev1.ConfigMapVolumeSourceDefaultMode))
	case *corev1.DownwardAPIVolumeSource:
		say(&o.DefaultMode, ptr.To(corev1.DownwardAPIVolumeSourceDefaultMode))
	case *corev1.ProjectedVolumeSource:
		say(&o.DefaultMode, ptr.To(corev1.ProjectedVolumeSourceDefaultMode))
	case *corev1.ServiceAccountTokenProjection:
		say(&o.ExpirationSeconds, ptr.To[int64](3600))
	case *corev1.ISCSIVolumeSource:
		say(&o.ISCSIInterface, "default")
	case *corev1.RBDVolumeSource:
		say(&o.RBDPool, "rbd")
		say(&o.RadosUser, "admin")
		say(&o.Keyring, "/etc/ceph/keyring")
	case *corev1.AzureDiskVolumeSource:
		say(&o.CachingMode, ptr.To(corev1.AzureDataDiskCachingReadWrite))
		say(&o.FSType, ptr.To("ext4"))
		say(&o.ReadOnly, ptr.To(false))
		say(&o.Kind, ptr.To(corev1.AzureSharedBlobDisk))
	case *corev1.ScaleIOVolumeSource:
		say(&o.StorageMode, "ThinProvisioned")
		say(&o.FSType, "xfs")
	case *corev1.PersistentVolumeClaimSpec:
		say(&o.VolumeMode, ptr.To(corev1.PersistentVolumeFilesystem))
		fillSources(o)
	case *corev1.ResourceList:
		for name, q := range *o {
			q.RoundUp(resource.Milli)
			(*o)[name] = plain(q)
		}
	case *resource.Quantity:
		*o = plain(*o)
	}
}

// say sets what is not set.
func say[T comparable](field *T, value T) {
	var none T
	if *field == none {
		*field = value
	}
}

// fillContainer gives a container what follows from its limits and from its Pod.
func fillContainer(c *corev1.Container, hostNetwork bool) {
	for name, limit := range c.Resources.Limits {
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		if _, given := c.Resources.Requests[name]; !given {
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	for i := range c.Ports {
		if hostNetwork {
			say(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
}

// fillWhole gives the resources of a Pod as a whole what follows from its containers, once these are filled.
func fillWhole(spec *corev1.PodSpec) {
	whole, pod := spec.Resources, &corev1.Pod{Spec: *spec}
	if whole == nil {
		return
	}
	give := func(list *corev1.ResourceList, from corev1.ResourceList, which func(corev1.ResourceName) bool) {
		for name, q := range from {
			if _, given := (*list)[name]; given || !resourcehelper.IsSupportedPodLevelResource(name) || !which(name) {
				continue
			}
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = q
		}
	}
	huge := func(name corev1.ResourceName) bool {
		return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
	}
	var options resourcehelper.PodResourcesOptions
	if len(whole.Limits)+len(whole.Requests) > 0 {
		limits := resourcehelper.AggregateContainerLimits(pod, options)
		give(&whole.Limits, limits, func(name corev1.ResourceName) bool {
			_, requested := whole.Requests[name]
			return huge(name) && !requested
		})
	}
	if len(whole.Limits) > 0 {
		requests := resourcehelper.AggregateContainerRequests(pod, options)
		give(&whole.Requests, requests, func(name corev1.ResourceName) bool { return !huge(name) })
		give(&whole.Requests, whole.Limits, func(corev1.ResourceName) bool { return true })
	}
}

// fillSources says the source of a claim in both of the fields that stand for it, as the API server does.
func fillSources(spec *corev1.PersistentVolumeClaimSpec) {
	if old := spec.DataSource; old != nil && spec.DataSourceRef == nil {
		spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: old.APIGroup, Kind: old.Kind, Name: old.Name}
	}
	if ref := spec.DataSourceRef; ref != nil && ref.Namespace == nil && spec.DataSource == nil {
		spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	}
}

// pullPolicy is that of an image for which none is given: an image of the tag latest, given or not, is pulled always.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digest := strings.Cut(image, "@")
	_, tag, tagged := strings.Cut(path.Base(name), ":")
	if tag == "latest" || (!tagged && !digest && image != "") {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// plain writes equal quantities alike: in the shorter of the two usual ways, 1Gi as well as 1500M.
func plain(q resource.Quantity) resource.Quantity {
	q = q.DeepCopy()
	q.Add(resource.Quantity{}) // forget the text that it was read from
	decimal, binary := q.DeepCopy(), q.DeepCopy()
	decimal.Format, binary.Format = resource.DecimalSI, resource.BinarySI
	if text := binary.String(); len(text) < len(decimal.String()) {
		if again := resource.MustParse(text); again.Cmp(q) == 0 { // a fraction is rounded
			return again
		}
	}
	return decimal
}

// withoutClaimed is a template without the volumes of which a claim takes the place.
func withoutClaimed(template map[string]any, claims []map[string]any) map[string]any {
	spec := object(template["spec"])
	volumes, _ := spec["volumes"].([]any)
	kept := slices.DeleteFunc(slices.Clone(volumes), func(volume any) bool {
		name := nameOf(object(volume))
		return name != "" && slices.ContainsFunc(claims,
			func(claim map[string]any) bool { return nameOf(object(claim["metadata"])) == name })
	})
	if len(kept) == len(volumes) {
		return template
	}
	template, spec = maps.Clone(template), maps.Clone(spec)
	template["spec"], spec["volumes"] = spec, kept
	return template
}
