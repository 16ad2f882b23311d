package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/insight"
)

// freezeOptions are the flags of freeze and unfreeze.
type freezeOptions struct {
	cluster bool
	reason  string
	length  time.Duration
	dry     dryRun
}

func (p *plugin) freezeCommand() *cobra.Command {
	o := freezeOptions{}
	cmd := &cobra.Command{
		Use: "freeze (NAMESPACE | --cluster) --reason WHY", GroupID: groupChange,
		Short: "Stop all operations that take Pods out of service, in an emergency",
		Long: `Stop all operations that take Pods out of service, in a namespace or in the whole cluster, whichever program
requests them. Pods that are already leaving service or returning to it continue.

The annotation of the freeze records the reason, the user and the intended end. A freeze does not end by itself: see
kubectl kuperator unfreeze.`,
		Example: "  kubectl kuperator freeze shop --reason \"release week\" --for 48h\n" +
			"  kubectl kuperator freeze --cluster --reason \"incident 4711\"",
		Args: between(0, 1), ValidArgsFunction: p.completeNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.reason = strings.Join(strings.Fields(o.reason), " ") // it is shown in one line
			switch {
			case o.length < 0:
				return fmt.Errorf("--for is %s: give how long the freeze is meant to last, such as 48h", o.length)
			case o.reason == "":
				return errors.New("--reason is missing: those whom the freeze stops will ask")
			}
			return p.freeze(cmd.Context(), args, o, true)
		},
	}
	cmd.Flags().BoolVar(&o.cluster, "cluster", false,
		"Freeze the whole cluster, by an annotation of the Namespace in which the suite is installed.")
	cmd.Flags().StringVar(&o.reason, "reason", "", "Reason of the freeze. Required.")
	cmd.Flags().DurationVar(&o.length, "for", 0,
		"Intended duration, such as 48h. It is recorded only: the freeze does not end by itself.")
	o.dry.flag(cmd)
	return cmd
}

func (p *plugin) unfreezeCommand() *cobra.Command {
	o := freezeOptions{}
	cmd := &cobra.Command{
		Use: "unfreeze (NAMESPACE | --cluster)", GroupID: groupChange, Short: "End a freeze",
		Long:    "End a freeze. Operations that waited for its end continue.",
		Example: "  kubectl kuperator unfreeze shop\n  kubectl kuperator unfreeze --cluster",
		Args:    between(0, 1), ValidArgsFunction: p.completeNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error { return p.freeze(cmd.Context(), args, o, false) },
	}
	cmd.Flags().BoolVar(&o.cluster, "cluster", false, "End the freeze of the whole cluster.")
	o.dry.flag(cmd)
	return cmd
}

// place is the Namespace that has the annotation.
func (o freezeOptions) place(args []string, system string) (string, error) {
	switch {
	case o.cluster && len(args) > 0, !o.cluster && len(args) == 0:
		return "", errors.New("say what: the name of a namespace, or --cluster for all of them")
	case o.cluster:
		return system, nil
	}
	place := withoutKind(args[0], "namespace", "namespaces", "ns")
	if strings.Contains(place, "/") {
		return "", fmt.Errorf("%q is no namespace: give its name", args[0])
	}
	return place, nil
}

func (p *plugin) freeze(ctx context.Context, args []string, o freezeOptions, on bool) error {
	place, err := o.place(args, p.system)
	if err != nil {
		return err
	}
	s, err := p.sessionFor(o.dry)
	if err != nil {
		return err
	}
	key := insight.FreezeAnnotation(o.cluster)
	// Who may set an annotation need not be able to read it: the present value is only for what is printed.
	was, readErr := s.kube.CoreV1().Namespaces().Get(ctx, place, metav1.GetOptions{})
	if apierrors.IsNotFound(readErr) {
		return fmt.Errorf("reading namespace %s: %w", place, readErr)
	}
	before, frozen := "", false
	if readErr == nil {
		before, frozen = was.Annotations[key]
	}
	c := change{Object: insight.Ref{Kind: "Namespace", Name: place}, Action: "unfrozen", Changed: readErr != nil || frozen}
	var value any
	if on {
		wanted := insight.Freeze{Why: o.reason, By: s.whoAmI(ctx)}
		if o.length > 0 {
			until := s.now().Add(o.length)
			wanted.Until = &until
		}
		value, c.Action, c.Changed = wanted.Value(), "frozen", before != wanted.Value() || !frozen
		c.Details = append(c.Details, wanted.Value())
	}
	if frozen && c.Changed {
		c.Details = append(c.Details, "before: "+before)
	}
	if o.cluster {
		c.Object = insight.Ref{Kind: "Cluster", Name: "*"}
	}
	if c.Changed && o.dry != dryRunClient {
		metadata := map[string]any{"annotations": map[string]any{key: value}}
		if readErr == nil {
			metadata["uid"] = was.UID
		}
		body, err := json.Marshal(map[string]any{"metadata": metadata})
		if err != nil {
			return err
		}
		if _, err := s.kube.CoreV1().Namespaces().Patch(ctx, place, types.MergePatchType, body, o.dry.options()); err != nil {
			return fmt.Errorf("annotating namespace %s: %w", place, err)
		}
	}
	return p.report(c, o.dry)
}

// whoAmI is the user as the API server knows it; "" if it does not say.
func (s *session) whoAmI(ctx context.Context) string {
	review, err := s.kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{})
	if err != nil {
		return ""
	}
	return review.Status.UserInfo.Username
}
