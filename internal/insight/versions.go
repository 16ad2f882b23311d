package insight

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// ImageVersion is the tag of an image; "" if it has none.
func ImageVersion(image string) string {
	name, _, _ := strings.Cut(image, "@")
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":") // before the last slash it is a port
	return tag
}

// Versions are those of the plugin and of the suite's components.
type Versions struct {
	Client string `json:"client"`
	// Namespace is where the components were looked for; empty if they were not.
	Namespace  string             `json:"namespace,omitempty"`
	Components []ComponentVersion `json:"components,omitempty"`
	// Warning is what is wrong with them together; empty if nothing is.
	Warning string `json:"warning,omitempty"`
	Gaps    []Gap  `json:"gaps,omitempty"`
}

// ComponentVersion is the version of a component; empty if its Deployment does not tell.
type ComponentVersion struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// Compare sorts the components and warns of those that are not of the client's minor version. A version that is none,
// as that of a local build, is not compared.
func (v *Versions) Compare() {
	slices.SortFunc(v.Components, func(a, b ComponentVersion) int { return cmp.Compare(a.Name, b.Name) })
	client, err := version.ParseGeneric(v.Client)
	if err != nil {
		return
	}
	var others []string
	for _, c := range v.Components {
		other, err := version.ParseGeneric(c.Version)
		if err == nil && (other.Major() != client.Major() || other.Minor() != client.Minor()) {
			others = append(others, c.Name+" "+c.Version)
		}
	}
	if len(others) > 0 {
		v.Warning = "this is " + v.Client + ", which differs in more than the patch version from " +
			strings.Join(others, ", ") + ": use the plugin of the suite's version"
	}
}
