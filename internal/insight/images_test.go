package insight_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/internal/insight"
)

func TestSetImages(t *testing.T) {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "setup", Image: "setup:1"}},
		Containers:     []corev1.Container{{Name: "main", Image: "web:1"}, {Name: "proxy", Image: "proxy:1"}},
	}}
	for name, tc := range map[string]struct {
		asked []string
		want  []insight.ImageChange
		err   string
	}{
		"one": {asked: []string{"proxy=proxy:2"}, want: []insight.ImageChange{{Container: "proxy",
			Before: "proxy:1", Image: "proxy:2", Index: 1}}},
		"an init container": {asked: []string{"setup=setup:2"}, want: []insight.ImageChange{{Container: "setup",
			Before: "setup:1", Image: "setup:2", Init: true}}},
		"all": {asked: []string{"*=web:1"}, want: []insight.ImageChange{
			{Container: "setup", Before: "setup:1", Image: "web:1", Init: true},
			{Container: "proxy", Before: "proxy:1", Image: "web:1", Index: 1}}},
		"no other": {asked: []string{"main=web:1"}},
		"a digest": {asked: []string{"main=web@sha256:0a=b"}, want: []insight.ImageChange{{Container: "main",
			Before: "web:1", Image: "web@sha256:0a=b"}}},
		"none of that name": {asked: []string{"main=web:2", "side=x"},
			err: "there is no container side: use one of setup, main, proxy, or * for all"},
		"no image":     {asked: []string{"main="}, err: "give it as CONTAINER=IMAGE"},
		"no container": {asked: []string{"=web:2"}, err: "give it as CONTAINER=IMAGE"},
		"twice":        {asked: []string{"main=a", "main=b"}, err: "main has two images"},
		"all, and one": {asked: []string{"*=a", "main=b"}, err: "leave the others out"},
	} {
		t.Run(name, func(t *testing.T) {
			asked, err := insight.ParseImages(tc.asked)
			var got []insight.ImageChange
			if err == nil {
				got, err = insight.SetImages(template, asked)
			}
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}
