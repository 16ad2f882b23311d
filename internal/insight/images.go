package insight

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AllContainers stands for every container in an ImageChange that a user asks for.
const AllContainers = "*"

// ImageChange is another image of a container of a template.
type ImageChange struct {
	Container string
	// Before is empty in a change that is asked for.
	Before, Image string
	// Init is true for one of initContainers, and Index is its place in that list or in containers.
	Init  bool
	Index int
}

// ParseImages reads images that are asked for, as CONTAINER=IMAGE.
func ParseImages(args []string) ([]ImageChange, error) {
	var asked []ImageChange
	for _, arg := range args {
		container, image, _ := strings.Cut(arg, "=")
		switch {
		case container == "" || image == "":
			return nil, fmt.Errorf("%q is no image of a container: give it as CONTAINER=IMAGE", arg)
		case slices.ContainsFunc(asked, func(c ImageChange) bool { return c.Container == container }):
			return nil, fmt.Errorf("container %s has two images: name it once", container)
		}
		asked = append(asked, ImageChange{Container: container, Image: image})
	}
	if len(asked) > 1 && slices.ContainsFunc(asked, func(c ImageChange) bool { return c.Container == AllContainers }) {
		return nil, fmt.Errorf("%s=IMAGE is for all containers: leave the others out", AllContainers)
	}
	return asked, nil
}

// SetImages decides which images of a template change. Those that are as asked for are left out. It is an error if the
// template lacks a container.
func SetImages(template *corev1.PodTemplateSpec, asked []ImageChange) ([]ImageChange, error) {
	var all, changes []ImageChange
	for _, list := range []struct {
		containers []corev1.Container
		init       bool
	}{{template.Spec.InitContainers, true}, {template.Spec.Containers, false}} {
		for i := range list.containers {
			c := &list.containers[i]
			all = append(all, ImageChange{Container: c.Name, Before: c.Image, Init: list.init, Index: i})
		}
	}
	for _, a := range asked {
		known := false
		for _, c := range all {
			if a.Container != AllContainers && a.Container != c.Container {
				continue
			}
			known = true
			if c.Image = a.Image; c.Image != c.Before {
				changes = append(changes, c)
			}
		}
		if !known {
			var names []string
			for _, c := range all {
				names = append(names, c.Container)
			}
			return nil, fmt.Errorf("there is no container %s: use one of %s, or %s for all", a.Container,
				strings.Join(names, ", "), AllContainers)
		}
	}
	return changes, nil
}
