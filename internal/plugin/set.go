package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

func (p *plugin) setCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set", GroupID: groupChange, Short: "Set fields of a CollaSet's template",
		Long: "Set fields of a CollaSet's template, which begins a rollout.",
	}
	cmd.AddCommand(p.setImageCommand())
	return cmd
}

func (p *plugin) setImageCommand() *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use: "image collaset/NAME CONTAINER=IMAGE...", Short: "Set the images of a CollaSet's containers",
		Long: `Set the images of containers in the template of a CollaSet, which begins a rollout. Init containers are found
too. *=IMAGE sets the image of all containers and init containers.

Change your manifests as well.`,
		Example: `  kubectl kuperator set image collaset/web main=web:2
  # Several containers, as a dry run
  kubectl kuperator set image collaset/web main=web:2 proxy=proxy:7 --dry-run=server
  # All containers
  kubectl kuperator set image collaset/web '*=web:2'`,
		Args: between(1, unlimited), ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			var names, images []string
			for _, arg := range args {
				if strings.Contains(arg, "=") {
					images = append(images, arg)
				} else {
					names = append(names, arg)
				}
			}
			asked, err := insight.ParseImages(images)
			if err == nil && len(asked) == 0 {
				err = errors.New("an image is missing: give it as CONTAINER=IMAGE")
			}
			if err != nil {
				return err
			}
			s, set, err := p.setFor(cmd.Context(), names, dry)
			if err != nil {
				return err
			}
			c, err := s.setImages(cmd.Context(), set, asked, dry)
			if err != nil {
				return err
			}
			return p.report(c, dry)
		},
	}
	dry.flag(cmd)
	return cmd
}

// setImages writes the images that change, as they were read: places in a list mean nothing in another template.
func (s *session) setImages(
	ctx context.Context, set *appsv1alpha1.CollaSet, asked []insight.ImageChange, dry dryRun,
) (change, error) {
	c := change{Object: refOfSet(set), Action: "image updated", idle: "has these images already"}
	changes, err := insight.SetImages(&set.Spec.Template, asked)
	if err != nil {
		return c, fmt.Errorf("collaset/%s: %w", set.Name, err)
	}
	if len(changes) == 0 {
		return c, nil
	}
	patch := asRead(set)
	for _, image := range changes {
		list := "containers"
		if image.Init {
			list = "initContainers"
		}
		// add replaces a field that exists, and makes one that does not
		patch = append(patch, patchOperation{"add", fmt.Sprintf("/spec/template/spec/%s/%d/image", list, image.Index),
			image.Image})
		c.Details = append(c.Details, image.Container+": "+image.Before+" -> "+image.Image)
	}
	c.Changed, c.Details = true, append(c.Details, chosen(set)...)
	c.tell(insight.WhilePaused(set))
	return c, s.patchAsRead(ctx, set, patch, dry)
}
