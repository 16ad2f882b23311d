package imagename

import (
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSecond(t *testing.T) {
	a, b := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	for name, test := range map[string]struct{ image, imageID, want string }{
		"a tag":                             {"app:v1", "app@" + a, "app:v1@" + a},
		"no tag":                            {"app", "app@" + a, "app@" + a},
		"a tag and a digest":                {"app:v1@" + a, "app@" + b, "app@" + a},
		"a digest":                          {"app@" + a, "app@" + b, "app:restarted@" + a},
		"the tag of a digest before":        {"app:restarted@" + a, "app@" + a, "app@" + a},
		"a port":                            {"example.com:5000/app:v1", "example.com:5000/app@" + a, "example.com:5000/app:v1@" + a},
		"a port and a digest":               {"example.com:5000/app@" + a, "", "example.com:5000/app:restarted@" + a},
		"a port, a tag and a digest":        {"example.com:5000/app:v1@" + a, "", "example.com:5000/app@" + a},
		"the repository in other words":     {"app:v1", "library/app@" + a, "app:v1@" + a},
		"loaded by hand":                    {"app:v1", a, ""},
		"pulled from another repository":    {"app:v1", "other/app@" + a, ""},
		"an ID that is no reference":        {"app:v1", "docker-pullable://app@" + a, ""},
		"an ID without a digest":            {"app:v1", "app:v1", ""},
		"no ID":                             {"app:v1", "", ""},
		"an image that cannot be the name ": {"App:v1", "app@" + a, ""},
	} {
		t.Run(name, func(t *testing.T) {
			second := Second(test.image, test.imageID)
			require.Equal(t, test.want, second)
			if second == "" {
				return
			}
			assert.NotEqual(t, test.image, second)
			before, err := reference.ParseNormalizedNamed(test.image)
			require.NoError(t, err)
			after, err := reference.ParseNormalizedNamed(second)
			require.NoError(t, err)
			assert.Equal(t, before.Name(), after.Name())
		})
	}
}
