package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/internal/insight"
)

// partOfSuite selects the suite's Deployments.
const partOfSuite = "app.kubernetes.io/part-of=kuperator"

func (p *plugin) versionCommand() *cobra.Command {
	var client bool
	cmd := &cobra.Command{
		Use: "version", GroupID: groupLook, Short: "Show the versions of the plugin and of the suite's components",
		Long: `Show the versions of the plugin and of the suite's components, as their Deployments have them, and warn if they
differ in more than the patch version.`,
		Example: "  kubectl kuperator version\n  kubectl kuperator version --client -o json",
		Args:    cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.checkOutput(); err != nil {
				return err
			}
			v := insight.Versions{Client: buildVersion()}
			var unread error
			if !client {
				s, err := p.connect()
				if err != nil {
					return err
				}
				unread = s.readVersions(cmd.Context(), &v)
			}
			if err := p.print(v, func(w io.Writer) { writeVersions(w, v) }); err != nil {
				return err
			}
			return unread
		},
	}
	cmd.Flags().BoolVar(&client, "client", false, "Show the version of the plugin only. No request is sent.")
	return cmd
}

// readVersions reads the versions of the components. What may not be read is a gap.
func (s *session) readVersions(ctx context.Context, v *insight.Versions) error {
	v.Namespace = s.system
	err := each(ctx, metav1.ListOptions{LabelSelector: partOfSuite}, s.kube.AppsV1().Deployments(s.system).List,
		func(deployment *appsv1.Deployment) {
			c := insight.ComponentVersion{Name: deployment.Name}
			if containers := deployment.Spec.Template.Spec.Containers; len(containers) > 0 {
				c.Version = imageVersion(deployment, containers[0].Image)
			}
			v.Components = append(v.Components, c)
		})
	v.Compare()
	if err == nil {
		return nil
	}
	g := gap(err, "list", "deployments.apps", s.system, "which versions run")
	if g == nil {
		return fmt.Errorf("reading the versions of the components in namespace %s: %w", s.system, err)
	}
	v.Gaps = append(v.Gaps, *g)
	return nil
}

// imageVersion is the version of a component's image: its tag, or the label of its Deployment if it is named by its
// digest. It is empty if neither tells.
func imageVersion(deployment *appsv1.Deployment, image string) string {
	return cmp.Or(insight.ImageVersion(image), deployment.Labels["app.kubernetes.io/version"])
}

func writeVersions(w io.Writer, v insight.Versions) {
	fmt.Fprintf(w, "%s %s\n", name, v.Client)
	for _, c := range v.Components {
		fmt.Fprintf(w, "%s %s\n", c.Name, cmp.Or(c.Version, "of unknown version"))
	}
	if v.Namespace != "" && len(v.Components)+len(v.Gaps) == 0 {
		fmt.Fprintf(w, "no component of the suite is installed in namespace %s: --suite-namespace chooses another\n",
			v.Namespace)
	}
	if v.Warning != "" {
		fmt.Fprintf(w, "warning: %s\n", v.Warning)
	}
	writeGaps(w, v.Gaps)
}
