package webhook

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// emptyBundle is base64 of a newline, which users of Kuperator write for "no caBundle".
const emptyBundle = "Cg=="

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

func checkWebhookRule(hook *appsv1alpha1.TransitionRuleWebhook, path *field.Path) field.ErrorList {
	config := path.Child("clientConfig")
	errs := checkURL(hook.ClientConfig.URL, config.Child("url"))
	errs = append(errs, checkBundle(hook.ClientConfig.CABundle, config.Child("caBundle"))...)
	if poll := hook.ClientConfig.Poll; poll != nil {
		errs = append(errs, checkURL(poll.URL, config.Child("poll", "url"))...)
		errs = append(errs, checkBundle(poll.CABundle, config.Child("poll", "caBundle"))...)
	}
	return append(errs, checkCredentials(&hook.ClientConfig, config)...)
}

// checkCredentials wants both servers asked over https when credentials are sent.
func checkCredentials(given *appsv1alpha1.WebhookClientConfig, path *field.Path) field.ErrorList {
	if given.SecretName == "" {
		return nil
	}
	var errs field.ErrorList
	if problems := validation.IsDNS1123Subdomain(given.SecretName); len(problems) > 0 {
		errs = append(errs, field.Invalid(path.Child("secretName"), given.SecretName,
			"it must be the name of a Secret of the rule's namespace: "+strings.Join(problems, "; ")))
	}
	errs = append(errs, checkHTTPS(given.URL, path.Child("url"))...)
	if given.Poll != nil {
		errs = append(errs, checkHTTPS(given.Poll.URL, path.Child("poll", "url"))...)
	}
	return errs
}

// checkHTTPS leaves a URL that cannot be read to checkURL.
func checkHTTPS(given string, path *field.Path) field.ErrorList {
	u, err := url.Parse(given)
	if err != nil || u.Scheme == "https" {
		return nil
	}
	return field.ErrorList{field.Invalid(path, u.Redacted(),
		"credentials are sent over https only: use https, or remove secretName")}
}

// checkURL looks at the parts that CEL cannot: the port, and a password that every user who may read the rule would
// see.
func checkURL(given string, path *field.Path) field.ErrorList {
	u, err := url.Parse(given)
	if err != nil {
		return field.ErrorList{field.Invalid(path, given,
			"this is no URL: write https://host, with an optional port, path and query")}
	}
	if u.User != nil {
		return field.ErrorList{field.Invalid(path, u.Redacted(),
			"a user name or password may not be part of the URL: remove it")}
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return field.ErrorList{field.Invalid(path, given,
			"it must be http://host or https://host, with an optional port, path and query")}
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return field.ErrorList{field.Invalid(path, given, "the port must be between 1 and 65535")}
		}
	}
	return nil
}

// checkBundle accepts base64 of one PEM certificate or more. An empty one means the certificates of the system.
func checkBundle(given string, path *field.Path) field.ErrorList {
	if given == "" || given == emptyBundle {
		return nil
	}
	shown := given[:min(len(given), 32)]
	refuse := func(format string, args ...any) field.ErrorList {
		return field.ErrorList{field.Invalid(path, shown+"...",
			fmt.Sprintf(format, args...)+": set it to base64 of PEM certificates (base64 -w0 ca.crt), or leave it out")}
	}
	rest, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(given), ""))
	if err != nil {
		return refuse("this is not base64 (%v)", err)
	}
	certificates := 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return refuse("PEM block %d is %q, not a certificate", certificates+1, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return refuse("certificate %d cannot be read (%v)", certificates+1, err)
		}
		certificates++
	}
	if certificates == 0 || strings.TrimSpace(string(rest)) != "" {
		return refuse("after %d certificates there is something that is not PEM", certificates)
	}
	return nil
}

// checkSelector says what is wrong with keys, operators and values. Nil is nothing to check: the schema says where a
// selector is required.
func checkSelector(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path)
}
