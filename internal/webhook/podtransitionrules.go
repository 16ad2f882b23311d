package webhook

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/callout"
)

// validatePodTransitionRule refuses what the schema cannot see to be wrong: selectors, certificates, ports. It never
// connects to a webhook rule's server.
func validatePodTransitionRule(_ context.Context, request admission.Request) admission.Response {
	rule := appsv1alpha1.PodTransitionRule{}
	if answer := changed(request, "podtransitionrules", appsv1alpha1.PodTransitionRuleKind, &rule); answer != nil {
		return *answer
	}
	errs, warnings := checkPodTransitionRule(&rule.Spec)
	return verdict(appsv1alpha1.Kind(appsv1alpha1.PodTransitionRuleKind), nameOf(rule.ObjectMeta), errs, warnings)
}

func checkPodTransitionRule(spec *appsv1alpha1.PodTransitionRuleSpec) (field.ErrorList, []string) {
	path := field.NewPath("spec")
	errs := checkSelector(spec.Selector, path.Child("selector"))
	var warnings []string
	if len(spec.Rules) == 0 {
		warnings = append(warnings, "spec.rules is empty: every Pod passes")
	}
	for i := range spec.Rules {
		ruleErrs, ruleWarnings := checkRule(&spec.Rules[i], path.Child("rules").Index(i))
		errs = append(errs, ruleErrs...)
		warnings = append(warnings, ruleWarnings...)
	}
	return errs, warnings
}

func checkRule(rule *appsv1alpha1.TransitionRule, path *field.Path) (field.ErrorList, []string) {
	var errs field.ErrorList
	var warnings, kinds []string
	if rule.Filter != nil {
		errs = append(errs, checkSelector(rule.Filter.LabelSelector, path.Child("filter", "labelSelector"))...)
	}
	if rule.AvailablePolicy != nil {
		kinds = append(kinds, "availablePolicy")
		errs = append(errs, checkAvailablePolicy(rule.AvailablePolicy, path.Child("availablePolicy"))...)
	}
	if rule.LabelCheck != nil {
		kinds = append(kinds, "labelCheck")
		errs = append(errs, checkSelector(rule.LabelCheck.Requires, path.Child("labelCheck", "requires"))...)
	}
	if rule.Webhook != nil {
		kinds = append(kinds, "webhook")
		errs = append(errs, checkWebhookRule(rule.Webhook, path.Child("webhook"))...)
	}
	switch {
	case len(kinds) == 0:
		warnings = append(warnings, fmt.Sprintf("%s demands nothing: set availablePolicy, labelCheck or webhook", path))
	case len(kinds) > 1:
		warnings = append(warnings, fmt.Sprintf("%s sets %s: only %s is used", path, strings.Join(kinds, " and "), kinds[0]))
	}
	if len(rule.Conditions) > 0 {
		warnings = append(warnings,
			fmt.Sprintf("%s.conditions names conditions that are not registered: the rule applies to no Pod", path))
	}
	return errs, warnings
}

func checkAvailablePolicy(policy *appsv1alpha1.AvailableRule, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if topology := policy.Topology; topology != nil {
		errs = append(errs, metav1validation.ValidateLabelName(topology.TopologyKey,
			path.Child("topology", "topologyKey"))...)
	}
	if groups := policy.Groups; groups != nil {
		errs = append(errs, metav1validation.ValidateLabelName(groups.GroupKey, path.Child("groups", "groupKey"))...)
		if groups.SetKey != "" {
			errs = append(errs, metav1validation.ValidateLabelName(groups.SetKey, path.Child("groups", "setKey"))...)
		}
	}
	errs = append(errs, checkAdaptive(policy.MaxUnavailablePolicy, path.Child("maxUnavailablePolicy"))...)
	return append(errs, checkAdaptive(policy.MinAvailablePolicy, path.Child("minAvailablePolicy"))...)
}

func checkAdaptive(policy *appsv1alpha1.AvailableAdaptivePolicy, path *field.Path) field.ErrorList {
	if policy == nil || policy.ExpFunc == nil {
		return nil
	}
	return append(checkDecimal(policy.ExpFunc.Coeff, path.Child("expFunc", "coeff")),
		checkDecimal(policy.ExpFunc.Pow, path.Child("expFunc", "pow"))...)
}

var decimal = regexp.MustCompile(`^[0-9]{1,9}([.][0-9]{1,9})?$`)

// checkDecimal accepts what the schema accepts: a cluster may have an older one.
func checkDecimal(given string, path *field.Path) field.ErrorList {
	if given == "" || decimal.MatchString(given) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, given, "it must be a decimal number from 0, such as \"0.5\"")}
}

// checkWebhookRule wants both servers asked over https when credentials are sent.
func checkWebhookRule(hook *appsv1alpha1.TransitionRuleWebhook, path *field.Path) field.ErrorList {
	given, config := &hook.ClientConfig, path.Child("clientConfig")
	var errs field.ErrorList
	check := func(url, caBundle string, path *field.Path) {
		if u, err := callout.ParseURL(url); err != nil {
			errs = append(errs, field.Invalid(path.Child("url"), cmp.Or(u.Redacted(), url), err.Error()))
		} else if given.SecretName != "" && u.Scheme != "https" {
			errs = append(errs, field.Invalid(path.Child("url"), url,
				"credentials are sent over https only: use https, or remove secretName"))
		}
		if _, err := callout.ParseBundle(caBundle); err != nil {
			errs = append(errs, field.Invalid(path.Child("caBundle"), caBundle[:min(len(caBundle), 32)]+"...", err.Error()))
		}
	}
	check(given.URL, given.CABundle, config)
	if poll := given.Poll; poll != nil {
		check(poll.URL, poll.CABundle, config.Child("poll"))
	}
	if problems := validation.IsDNS1123Subdomain(given.SecretName); given.SecretName != "" && len(problems) > 0 {
		errs = append(errs, field.Invalid(config.Child("secretName"), given.SecretName,
			"it must be the name of a Secret of the rule's namespace: "+strings.Join(problems, "; ")))
	}
	return errs
}

// checkSelector says what is wrong with keys, operators and values. Nil is nothing to check: the schema says where a
// selector is required.
func checkSelector(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
}
