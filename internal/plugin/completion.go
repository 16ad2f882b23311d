package plugin

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// maxCompletions bounds what completion offers: more is of no help.
const maxCompletions = 500

// completable are the resources whose names are offered, by kind.
var completable = map[string]schema.GroupVersionResource{
	"Node":                         corev1.SchemeGroupVersion.WithResource("nodes"),
	"Pod":                          corev1.SchemeGroupVersion.WithResource("pods"),
	appsv1alpha1.CollaSetKind:      appsv1alpha1.SchemeGroupVersion.WithResource("collasets"),
	appsv1alpha1.OperationJobKind:  appsv1alpha1.SchemeGroupVersion.WithResource("operationjobs"),
	appsv1alpha1.PodDecorationKind: appsv1alpha1.SchemeGroupVersion.WithResource("poddecorations"),
}

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
		var names []string
		for _, kind := range kinds {
			prefix, options := strings.ToLower(kind)+"/", metav1.ListOptions{Limit: maxCompletions}
			if len(kinds) > 1 && !strings.HasPrefix(toComplete, prefix) {
				names = append(names, prefix)
				continue
			}
			resource := s.dynamic.Resource(completable[kind])
			objects := resource.Namespace(s.namespace)
			switch kind {
			case "Pod":
				options.LabelSelector = managedPods
			case "Node":
				objects, prefix = resource, ""
			}
			if list, err := objects.List(cmd.Context(), options); err == nil {
				for i := range list.Items {
					names = append(names, prefix+list.Items[i].GetName())
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
