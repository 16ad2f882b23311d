package observer

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func itoa(i int) string { return strconv.Itoa(i) }

// judgeRevisions judges that every Pod at rest is what its revision says.
func (s *space) judgeRevisions(r resting, set *set, owned []*pod) {
	templates := map[string]*content{}
	for _, p := range owned {
		if !isLive(p.obj) || asks(p.obj) {
			continue
		}
		name := p.obj.Labels[revisionLabel]
		revision := s.revisions[name]
		if r.judge(Revision, p.obj, revision != nil, "is labelled with revision %q, which CollaSet %s does not have", name,
			set.obj.Name); revision == nil {
			continue
		}
		template := templates[name]
		if template == nil {
			template = contentOf(revision)
			templates[name] = template
		}
		at := template.differs(p.obj)
		r.judge(Revision, p.obj, at == "", "is not what its revision %s says: %s", name, at)
	}
}

// content is what of a revision's Pods can be seen on the Pods.
type content struct {
	Spec struct {
		Template             corev1.PodTemplateSpec         `json:"template"`
		VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates"`
	} `json:"spec"`
	problem string
}

func contentOf(revision *appsv1.ControllerRevision) *content {
	c := &content{}
	if err := json.Unmarshal(revision.Data.Raw, c); err != nil {
		c.problem = "it cannot be read: " + err.Error()
	}
	claimed := func(v corev1.Volume) bool {
		return slices.ContainsFunc(c.Spec.VolumeClaimTemplates,
			func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == v.Name })
	}
	c.Spec.Template.Spec.Volumes = slices.DeleteFunc(c.Spec.Template.Spec.Volumes, claimed)
	c.Spec.Template.Spec.Hostname = "" // with names in sequence it is the Pod's name
	return c
}

// differs says where a Pod lacks what its template says; "" if nowhere. What others have added is no difference.
func (c *content) differs(obj *corev1.Pod) string {
	if c.problem != "" {
		return c.problem
	}
	t := &c.Spec.Template
	for _, pair := range []struct {
		path            string
		wanted, present map[string]string
	}{{"metadata.labels", t.Labels, obj.Labels}, {"metadata.annotations", t.Annotations, obj.Annotations}} {
		if at := lacking(pair.path, reflect.ValueOf(pair.wanted), reflect.ValueOf(pair.present)); at != "" {
			return at
		}
	}
	present := obj.Spec.DeepCopy()
	for _, pair := range [][2][]corev1.Container{{t.Spec.Containers, present.Containers},
		{t.Spec.InitContainers, present.InitContainers}} {
		undoRestarts(obj, pair[0], pair[1])
	}
	return lacking("spec", reflect.ValueOf(&t.Spec), reflect.ValueOf(present))
}

// undoRestarts gives containers the wanted images where operationjob-controller has written another name of them, by
// which they have restarted.
func undoRestarts(obj *corev1.Pod, wanted, present []corev1.Container) {
	for i := range present {
		c := &present[i]
		isRestarted := slices.ContainsFunc(obj.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
			return entry.Manager == jobController && holds(entry, c.Name)
		})
		at := slices.IndexFunc(wanted, func(w corev1.Container) bool { return w.Name == c.Name })
		if isRestarted && at >= 0 && repositoryOf(c.Image) == repositoryOf(wanted[at].Image) {
			c.Image = wanted[at].Image
		}
	}
}

// repositoryOf is the name of an image without its tag and digest.
func repositoryOf(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if tag := strings.LastIndex(name, ":"); tag > strings.LastIndex(name, "/") {
		name = name[:tag]
	}
	return name
}

var quantity = reflect.TypeFor[resource.Quantity]()

// lacking is the path of the first thing that is wanted and not present. Zero values want nothing. Lists of things with
// names are compared by name.
func lacking(path string, wanted, present reflect.Value) string {
	if wanted.IsZero() {
		return ""
	}
	if wanted.Type() == quantity {
		w, _ := wanted.Interface().(resource.Quantity)
		p, _ := present.Interface().(resource.Quantity)
		if w.Cmp(p) != 0 {
			return fmt.Sprintf("%s is %s, not %s", path, p.String(), w.String())
		}
		return ""
	}
	switch wanted.Kind() {
	case reflect.Pointer:
		if present.IsNil() {
			return path + " is missing"
		}
		return lacking(path, wanted.Elem(), present.Elem())
	case reflect.Struct:
		for i := range wanted.NumField() {
			if field := wanted.Type().Field(i); field.IsExported() {
				if at := lacking(path+"."+field.Name, wanted.Field(i), present.Field(i)); at != "" {
					return at
				}
			}
		}
		return ""
	case reflect.Map:
		for _, k := range wanted.MapKeys() {
			value := present.MapIndex(k)
			if !value.IsValid() {
				return fmt.Sprintf("%s[%v] is missing", path, k)
			}
			if at := lacking(fmt.Sprintf("%s[%v]", path, k), wanted.MapIndex(k), value); at != "" {
				return at
			}
		}
		return ""
	case reflect.Slice:
		return lackingItem(path, wanted, present)
	default:
		if wanted.Interface() != present.Interface() {
			return fmt.Sprintf("%s is %v, not %v", path, present.Interface(), wanted.Interface())
		}
		return ""
	}
}

func lackingItem(path string, wanted, present reflect.Value) string {
	for i := range wanted.Len() {
		item, found, at := wanted.Index(i), false, ""
		for j := range present.Len() {
			if named := nameOf(item); named != "" && nameOf(present.Index(j)) != named {
				continue
			}
			at = lacking(fmt.Sprintf("%s[%d]", path, i), item, present.Index(j))
			found = at == "" || nameOf(item) != ""
			if at == "" {
				break // a name may be there twice: the next of that name is looked at too
			}
		}
		if !found {
			return fmt.Sprintf("%s[%d] is missing", path, i)
		}
		if at != "" {
			return at
		}
	}
	return ""
}

// nameOf is the name of an item of a list, "" if such items have none.
func nameOf(item reflect.Value) string {
	if item.Kind() == reflect.Struct {
		if name := item.FieldByName("Name"); name.IsValid() && name.Kind() == reflect.String {
			return name.String()
		}
	}
	return ""
}
