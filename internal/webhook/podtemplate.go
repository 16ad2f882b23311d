package webhook

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkPodTemplate finds what the API server would refuse in every Pod made of the template, as far as that can be
// said without its internal packages: names, references between the parts, ports, quantities. What it does not know
// it accepts; the CollaSet's condition then reports what the API server said. Claims are the volumes that come from
// claim templates.
func checkPodTemplate(template *corev1.PodTemplateSpec, claims []string, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(template.Labels, path.Child("metadata", "labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(template.Annotations, path.Child("metadata", "annotations"))...)
	spec, path := &template.Spec, path.Child("spec")

	volumes := sets.New[string]()
	for i := range spec.Volumes {
		name, at := spec.Volumes[i].Name, path.Child("volumes").Index(i).Child("name")
		errs = append(errs, checkLabelName(name, at)...)
		if volumes.Has(name) {
			errs = append(errs, field.Duplicate(at, name))
		}
		volumes.Insert(name)
	}
	volumes.Insert(claims...)
	seen := sets.New[string]()
	for i := range spec.InitContainers {
		errs = append(errs, checkContainer(&spec.InitContainers[i], seen, volumes, path.Child("initContainers").Index(i))...)
	}
	for i := range spec.Containers {
		errs = append(errs, checkContainer(&spec.Containers[i], seen, volumes, path.Child("containers").Index(i))...)
	}
	errs = append(errs, metav1validation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	if len(spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("ephemeralContainers"),
			"they cannot be part of a template: add them to a running Pod with kubectl debug"))
	}
	switch spec.RestartPolicy {
	case "", corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), spec.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	if seconds := spec.TerminationGracePeriodSeconds; seconds != nil && *seconds < 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *seconds,
			"it must not be negative: set 0 or more"))
	}
	for _, name := range []struct {
		value string
		at    *field.Path
		check func(string) []string
	}{
		{spec.ServiceAccountName, path.Child("serviceAccountName"), validation.IsDNS1123Subdomain},
		{spec.PriorityClassName, path.Child("priorityClassName"), validation.IsDNS1123Subdomain},
		{spec.Hostname, path.Child("hostname"), validation.IsDNS1123Label},
		{spec.Subdomain, path.Child("subdomain"), validation.IsDNS1123Label},
	} {
		if name.value == "" {
			continue
		}
		for _, problem := range name.check(name.value) {
			errs = append(errs, field.Invalid(name.at, name.value, problem))
		}
	}
	gates := sets.New[corev1.PodConditionType]()
	for i, gate := range spec.ReadinessGates {
		at := path.Child("readinessGates").Index(i).Child("conditionType")
		if problems := validation.IsQualifiedName(string(gate.ConditionType)); len(problems) > 0 {
			errs = append(errs, field.Invalid(at, gate.ConditionType, problems[0]))
		}
		if gates.Has(gate.ConditionType) {
			errs = append(errs, field.Duplicate(at, gate.ConditionType))
		}
		gates.Insert(gate.ConditionType)
	}
	return errs
}

// warnPodTemplate names what is said twice in a template, which Pods may have: of two, one counts, or both do. Claims
// are the volumes that come from claim templates.
func warnPodTemplate(template *corev1.PodTemplateSpec, claims []string) []string {
	var warnings []string
	const path = "spec.template.spec."
	twice := func(where string, keys []string, what string) {
		seen := sets.New[string]()
		for _, key := range keys {
			if seen.Has(key) {
				warning := fmt.Sprintf("%s has %s more than once: %s", where, key, what)
				if len(warning) > maxWarning {
					warning = fmt.Sprintf("%s has a name more than once: %s", where, what)
				}
				warnings = append(warnings, warning)
				return // one warning for each list
			}
			seen.Insert(key)
		}
	}
	spec := &template.Spec
	for list, containers := range map[string][]corev1.Container{"initContainers": spec.InitContainers,
		"containers": spec.Containers} {
		for i := range containers {
			names := make([]string, 0, len(containers[i].Env))
			for _, variable := range containers[i].Env {
				names = append(names, variable.Name)
			}
			twice(fmt.Sprintf("%s%s[%s].env", path, list, containers[i].Name), names, "the last one counts")
		}
	}
	addresses := make([]string, 0, len(spec.HostAliases))
	for _, alias := range spec.HostAliases {
		addresses = append(addresses, alias.IP)
	}
	twice(path+"hostAliases", addresses, "the hosts of all count")
	for i := range spec.Volumes {
		if name := spec.Volumes[i].Name; slices.Contains(claims, name) {
			warnings = append(warnings,
				fmt.Sprintf("%svolumes[%s] is not used: the claim template of that name takes its place", path, name))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// checkContainer adds the container's name to seen.
func checkContainer(container *corev1.Container, seen, volumes sets.Set[string], path *field.Path) field.ErrorList {
	errs := checkLabelName(container.Name, path.Child("name"))
	if container.Name != "" && seen.Has(container.Name) {
		errs = append(errs, field.Duplicate(path.Child("name"), container.Name))
	}
	seen.Insert(container.Name)
	if container.Image != strings.TrimSpace(container.Image) {
		errs = append(errs, field.Invalid(path.Child("image"), container.Image,
			"it begins or ends with a space: remove that"))
	}
	errs = append(errs, checkPorts(container.Ports, path.Child("ports"))...)
	for i, variable := range container.Env {
		if problems := validation.IsRelaxedEnvVarName(variable.Name); len(problems) > 0 {
			errs = append(errs, field.Invalid(path.Child("env").Index(i).Child("name"), variable.Name, problems[0]))
		}
		if variable.Value != "" && variable.ValueFrom != nil {
			errs = append(errs, field.Invalid(path.Child("env").Index(i), variable.Name,
				"it has value and valueFrom: keep one of them"))
		}
	}
	mounted := sets.New[string]()
	for i, mount := range container.VolumeMounts {
		at := path.Child("volumeMounts").Index(i)
		if !volumes.Has(mount.Name) {
			errs = append(errs, field.NotFound(at.Child("name"), mount.Name))
		}
		if mount.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), "set the folder inside the container"))
		} else if mounted.Has(mount.MountPath) {
			errs = append(errs, field.Invalid(at.Child("mountPath"), mount.MountPath,
				"another mount of this container has it: each needs its own"))
		}
		mounted.Insert(mount.MountPath)
	}
	return append(errs, checkResources(container.Resources, path.Child("resources"))...)
}

func checkPorts(ports []corev1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, port := range ports {
		at := path.Index(i)
		if problems := validation.IsValidPortNum(int(port.ContainerPort)); len(problems) > 0 {
			errs = append(errs, field.Invalid(at.Child("containerPort"), port.ContainerPort, problems[0]))
		}
		if port.Name == "" {
			continue
		}
		if problems := validation.IsValidPortName(port.Name); len(problems) > 0 {
			errs = append(errs, field.Invalid(at.Child("name"), port.Name, problems[0]))
		}
		if names.Has(port.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
		}
		names.Insert(port.Name)
	}
	return errs
}

func checkResources(resources corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, limit := range resources.Limits {
		errs = append(errs, checkQuantity(limit, path.Child("limits").Key(string(name)))...)
	}
	for name, request := range resources.Requests {
		at := path.Child("requests").Key(string(name))
		errs = append(errs, checkQuantity(request, at)...)
		if limit, ok := resources.Limits[name]; ok && request.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(at, request.String(),
				fmt.Sprintf("it is more than the limit %s: lower it, or raise the limit", limit.String())))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) }) // maps have no order
	return errs
}

func checkQuantity(quantity resource.Quantity, path *field.Path) field.ErrorList {
	if quantity.Sign() < 0 {
		return field.ErrorList{field.Invalid(path, quantity.String(), "it must not be negative: set 0 or more")}
	}
	return nil
}

func checkClaimTemplate(claim *corev1.PersistentVolumeClaim, path *field.Path) field.ErrorList {
	errs := checkLabelName(claim.Name, path.Child("metadata", "name"))
	if len(claim.Spec.AccessModes) == 0 {
		errs = append(errs, field.Required(path.Child("spec", "accessModes"), "set at least one, for example ReadWriteOnce"))
	}
	at := path.Child("spec", "resources", "requests").Key(string(corev1.ResourceStorage))
	if storage, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs = append(errs, field.Required(at, "set the size of the volume, for example 1Gi"))
	} else if storage.Sign() <= 0 {
		errs = append(errs, field.Invalid(at, storage.String(), "it must be more than 0"))
	}
	return errs
}

func checkLabelName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "set a name of lower case letters, digits and dashes")}
	}
	var errs field.ErrorList
	for _, problem := range validation.IsDNS1123Label(name) {
		errs = append(errs, field.Invalid(path, name, problem))
	}
	return errs
}
