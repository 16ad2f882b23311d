package plugin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"kusionstack.io/kuperator/internal/insight"
)

func (p *plugin) drainCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "drain-check NODE", GroupID: groupLook, Short: "Show what a drain of the node would do with each Pod, and what it would wait for",
		Long: `Show what a drain of the node would do with each Pod now, and what it would wait for: freezes, rules,
PodDisruptionBudgets, finalizers, other Pods that come first (spec.disruption of a CollaSet). The command only reads.

The exit code is 2 if a Pod would wait until a user acts. Rules are evaluated by their current status: the budget that
is left when the drain begins may differ.`,
		Example: "  kubectl kuperator drain-check node-3",
		Args:    between(1, 1), ValidArgsFunction: p.completeNames("Node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := p.sessionFor(dryRunNone)
			if err != nil {
				return err
			}
			check, err := s.drainCheck(cmd.Context(), withoutKind(args[0], "node", "nodes", "no"))
			if err != nil {
				return err
			}
			if err := p.print(check, func(w io.Writer) { writeDrainCheck(w, check) }); err != nil {
				return err
			}
			if check.Held > 0 {
				return errFindings
			}
			return nil
		},
	}
}

// drainCheck reads what bears on the Pods of a node. Without the right to list all Pods, those of the namespace are
// looked at.
func (s *session) drainCheck(ctx context.Context, node string) (insight.Drain, error) {
	var gaps []insight.Gap
	namespace := ""
	pods, err := s.podsOn(ctx, node, namespace)
	if apierrors.IsForbidden(err) {
		gaps = append(gaps, *gap(err, "list", "pods", "", "Pods of other namespaces than "+s.namespace))
		namespace = s.namespace
		pods, err = s.podsOn(ctx, node, namespace)
	}
	if err != nil {
		return insight.Drain{}, fmt.Errorf("listing the Pods of node %s: %w", node, err)
	}
	f := insight.Facts{System: s.system, Pods: pods, Gaps: gaps}
	for _, read := range []reading{s.read(setsResource, rulesResource), s.readNamespaces, s.read(leasesResource)} {
		if err := read(ctx, namespace, &f); err != nil {
			return insight.Drain{}, err
		}
	}
	n, err := s.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return insight.Drain{}, fmt.Errorf("there is no node %s", node)
	case err == nil:
		f.Nodes = map[string]*corev1.Node{node: n}
	default:
		if err := tolerate(&f, err, "get", "nodes", "", "whether the node is Ready"); err != nil {
			return insight.Drain{}, err
		}
	}
	var budgets []policyv1.PodDisruptionBudget
	err = each(ctx, metav1.ListOptions{}, s.kube.PolicyV1().PodDisruptionBudgets(namespace).List,
		func(b *policyv1.PodDisruptionBudget) { budgets = append(budgets, *b) })
	if err := tolerate(&f, err, "list", "poddisruptionbudgets.policy", namespace,
		"which PodDisruptionBudgets refuse evictions"); err != nil {
		return insight.Drain{}, err
	}
	f.Now = s.now()
	return insight.CheckDrain(f, node, budgets), nil
}

func (s *session) podsOn(ctx context.Context, node, namespace string) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	on := fields.OneTermEqualSelector("spec.nodeName", node).String()
	err := each(ctx, metav1.ListOptions{FieldSelector: on}, s.kube.CoreV1().Pods(namespace).List,
		func(pod *corev1.Pod) { pods = append(pods, *pod) })
	return pods, err
}

func writeDrainCheck(w io.Writer, d insight.Drain) {
	fmt.Fprintf(w, "node %s: %s; %d would be held, %d are replaced first, %d wait their turn, %d go at once, "+
		"%d are left alone\n", d.Node, insight.Plural(len(d.Pods), "Pod"), d.Held, d.Replaced, d.Waiting, d.Going,
		d.Ignored)
	for _, verdict := range []insight.DrainVerdict{insight.DrainHeld, insight.DrainReplaced, insight.DrainWaits,
		insight.DrainGoes, insight.DrainIgnored} {
		pods := slices.DeleteFunc(slices.Clone(d.Pods), func(p insight.DrainedPod) bool { return p.Verdict != verdict })
		if len(pods) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", strings.ToUpper(string(verdict)))
		for _, p := range pods {
			fmt.Fprintf(w, "  %s/%s\n", p.Namespace, p.Name)
			for _, r := range p.Reasons {
				fmt.Fprintf(w, "     %s: %s\n", r.Code, r.Message)
				if r.Next != "" {
					fmt.Fprintf(w, "        next: %s\n", r.Next)
				}
			}
		}
	}
	writeGaps(w, d.Gaps)
}
