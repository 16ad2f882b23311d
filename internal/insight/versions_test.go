package insight_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/insight"
)

func TestImageVersion(t *testing.T) {
	for image, want := range map[string]string{
		"kuperator/collaset-controller:v0.1.0": "v0.1.0", "registry:5000/kuperator/collaset-controller": "",
		"registry:5000/collaset-controller:v2@sha256:ab": "v2", "collaset-controller@sha256:ab": "", "": "",
	} {
		require.Equal(t, want, insight.ImageVersion(image), image)
	}
}

func TestVersionsThatDiffer(t *testing.T) {
	for name, tc := range map[string]struct {
		client, component string
		warns             bool
	}{
		"the same":         {"v0.1.0", "v0.1.0", false},
		"a patch":          {"v0.1.0", "v0.1.7", false},
		"a minor version":  {"v0.1.0", "v0.2.0", true},
		"a major version":  {"v0.1.0-3-gabcdef", "v1.1.0", true},
		"of a local build": {"unknown", "v0.2.0", false},
		"of a local image": {"v0.1.0", "dev", false},
		"unknown":          {"v0.1.0", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			v := insight.Versions{Client: tc.client, Components: []insight.ComponentVersion{
				{Name: "webhook-server", Version: tc.client}, {Name: "collaset-controller", Version: tc.component}}}
			v.Compare()
			require.Equal(t, "collaset-controller", v.Components[0].Name)
			if !tc.warns {
				require.Empty(t, v.Warning)
				return
			}
			require.Equal(t, "this is "+tc.client+", which differs in more than the patch version from collaset-controller "+
				tc.component+": use the plugin of the suite's version", v.Warning)
		})
	}
}
