package plugin

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// maxCompletions bounds what completion offers: more is of no help.
const maxCompletions = 500

type completion = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completeNames offers names of the first argument, as KIND/NAME.
func (p *plugin) completeNames(kinds ...string) completion {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		s, err := p.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		limited := metav1.ListOptions{Limit: maxCompletions}
		var names []string
		for _, kind := range kinds {
			prefix := strings.ToLower(kind) + "/"
			if len(kinds) > 1 && !strings.HasPrefix(toComplete, prefix) {
				names = append(names, prefix)
				continue
			}
			switch kind {
			case "Pod":
				limited.LabelSelector = managedPods
				if pods, err := s.kube.CoreV1().Pods(s.namespace).List(cmd.Context(), limited); err == nil {
					for i := range pods.Items {
						names = append(names, prefix+pods.Items[i].Name)
					}
				}
			case appsv1alpha1.CollaSetKind:
				if sets, err := s.suite.AppsV1alpha1().CollaSets(s.namespace).List(cmd.Context(),
					metav1.ListOptions{Limit: maxCompletions}); err == nil {
					for i := range sets.Items {
						names = append(names, prefix+sets.Items[i].Name)
					}
				}
			case appsv1alpha1.OperationJobKind:
				if jobs, err := s.suite.AppsV1alpha1().OperationJobs(s.namespace).List(cmd.Context(),
					metav1.ListOptions{Limit: maxCompletions}); err == nil {
					for i := range jobs.Items {
						names = append(names, prefix+jobs.Items[i].Name)
					}
				}
			case appsv1alpha1.PodDecorationKind:
				if decorations, err := s.suite.AppsV1alpha1().PodDecorations(s.namespace).List(cmd.Context(),
					metav1.ListOptions{Limit: maxCompletions}); err == nil {
					for i := range decorations.Items {
						names = append(names, prefix+decorations.Items[i].Name)
					}
				}
			case "Node":
				if nodes, err := s.kube.CoreV1().Nodes().List(cmd.Context(),
					metav1.ListOptions{Limit: maxCompletions}); err == nil {
					for i := range nodes.Items {
						names = append(names, nodes.Items[i].Name)
					}
				}
			}
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		for _, n := range names {
			if strings.HasSuffix(n, "/") {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
		}
		return matching(names, toComplete), directive
	}
}

// completeSeveral offers names of any argument, each once.
func (p *plugin) completeSeveral(kinds ...string) completion {
	one := p.completeNames(kinds...)
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		names, directive := one(cmd, nil, toComplete)
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), directive
	}
}

func (p *plugin) completeNamespaces(
	cmd *cobra.Command, args []string, toComplete string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() == "freeze" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	s, err := p.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := s.kube.CoreV1().Namespaces().List(cmd.Context(), metav1.ListOptions{Limit: maxCompletions})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return matching(names, toComplete), cobra.ShellCompDirectiveNoFileComp
}

func matching(names []string, prefix string) []string {
	var kept []string
	for _, n := range names {
		if strings.HasPrefix(n, prefix) {
			kept = append(kept, n)
		}
	}
	return kept
}
