// Package imagename has names of container images. It is pure.
package imagename

import (
	"strings"

	"github.com/distribution/reference"
)

// ignoredTag is put beside the digest of an image that is named by its digest alone: of a tag and a digest the digest
// counts (https://kubernetes.io/docs/concepts/containers/images/#image-names).
const ignoredTag = "restarted"

// Second is another name of the content that a container runs, by its image in the spec and the ID that its status has;
// "" if there is none. A kubelet restarts a container whose image has another name, and finds the same content on the
// node.
func Second(image, imageID string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	repository, digest, isDigested := strings.Cut(image, "@")
	_, isTagged := named.(reference.Tagged)
	switch {
	case isDigested && isTagged:
		return repository[:strings.LastIndex(repository, ":")] + "@" + digest
	case isDigested:
		return repository + ":" + ignoredTag + "@" + digest
	}
	running, err := reference.ParseNormalizedNamed(imageID)
	if err != nil || running.Name() != named.Name() {
		return "" // loaded by hand, or pulled under another name, under which alone the node has it
	}
	canonical, ok := running.(reference.Canonical)
	if !ok {
		return ""
	}
	return image + "@" + canonical.Digest().String()
}
