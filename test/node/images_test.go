package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/realnode"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestOurImagesRun: the images that make images builds run in real containers, as little trusted as the manifests have
// them: not as root, with a read-only file system.
func TestOurImagesRun(t *testing.T) {
	needsRealNodes(t)
	var archives []realnode.Image
	for _, component := range suite.Components() {
		archives = append(archives, realnode.Image{Archive: filepath.Join(root(t), "bin", "images", "node",
			component+".tar")})
	}
	w := newWorld(t, 1, suite.Config{Components: []string{suite.Lifecycle}}, archives...)
	restricted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restricted",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	w.create(t, restricted)

	rendered, err := w.Kubectl(t.Context(), "kustomize", filepath.Join(root(t), "deploy", "overlays", "full"))
	require.NoError(t, err)
	for _, component := range suite.Components() {
		image := imageOf(t, rendered, component)
		eventually(t.Context(), t, "the namespace has its service account", func() error {
			return client.IgnoreAlreadyExists(w.client.Create(t.Context(), shortLived(restricted.Name, component, image)))
		})
	}
	for _, component := range suite.Components() {
		pod := &corev1.Pod{}
		eventually(t.Context(), t, component+" ends", func() error {
			if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: restricted.Name, Name: component}, pod); err != nil {
				return err
			}
			for _, c := range pod.Status.ContainerStatuses {
				if c.State.Terminated == nil {
					return fmt.Errorf("%s: %s %+v", c.Name, pod.Status.Phase, c.State)
				}
			}
			if len(pod.Status.ContainerStatuses) != 2 {
				return errors.New("it was not started")
			}
			return nil
		})
		for _, c := range pod.Status.ContainerStatuses {
			ended := c.State.Terminated
			switch c.Name {
			case "version":
				require.Zero(t, ended.ExitCode, "%s --version: %+v", component, ended)
			case "mistaken": // what it says shows that it is the program that ran
				require.NotZero(t, ended.ExitCode, component)
				require.Contains(t, ended.Message, "unknown flag: --no-such-flag", component)
			}
		}
	}
}

// imageOf is the image that the manifests name for a component.
func imageOf(t *testing.T, manifests, component string) string {
	t.Helper()
	for line := range strings.Lines(manifests) {
		if image, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "- ")),
			"image: "); ok && strings.Contains(image, component) {
			return image
		}
	}
	t.Fatalf("no image of %s in the manifests", component)
	return ""
}

// shortLived is a Pod of an image's program, once asked for its version and once with a flag that it does not know.
func shortLived(namespace, name, image string) *corev1.Pod {
	container := func(name, arg string) corev1.Container {
		return corev1.Container{
			Name: name, Image: image, Args: []string{arg}, ImagePullPolicy: corev1.PullNever,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{container("version", "--version"), container("mistaken", "--no-such-flag")},
		},
	}
}
