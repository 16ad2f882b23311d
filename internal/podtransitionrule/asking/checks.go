package asking

import (
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/callout"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking/exchange"
)

const (
	// ruleRoom and historyRoom bound what the webhooks of one PodTransitionRule put into its status: bytes of tasks, and
	// tasks that ended.
	ruleRoom    = 96 << 10
	historyRoom = 24
	// defaults of polling, where the API server did not fill them in.
	defaultInterval, defaultTimeout = 5, 60
)

// update returns the inquiries of a rule as it is now; strict is that of Options.
func (ns *namespace) update(name string, rule *appsv1alpha1.PodTransitionRule, strict bool, now time.Time) []*inquiry {
	var found []*inquiry
	checks := webhookChecks(rule)
	for _, check := range checks {
		k := key{rule.UID, check.Name}
		settings := settingsOf(rule, check, len(checks))
		settings.Ignore = settings.Ignore && !strict
		state := stateOf(rule, check.Name)
		i := ns.inquiries[k]
		switch {
		case i == nil || !sameServer(i.check.Webhook, check.Webhook):
			adopt := i == nil && rule.Status.ObservedGeneration == rule.Generation // else the tasks may be another server's
			if i != nil {
				i.gone = true
			}
			i = &inquiry{Inquiry: exchange.New(settings), key: k, namespace: name, ruleName: rule.Name}
			if adopt {
				i.Adopt(state, now)
			}
			ns.inquiries[k] = i
		case !equality.Semantic.DeepEqual(i.check.Webhook, check.Webhook):
			i.Retry()
		}
		i.Use(settings)
		i.check = check
		i.Known(state)
		found = append(found, i)
	}
	return found
}

// webhookChecks are the items of a rule that ask a webhook.
func webhookChecks(rule *appsv1alpha1.PodTransitionRule) []*appsv1alpha1.TransitionRule {
	var checks []*appsv1alpha1.TransitionRule
	for n := range rule.Spec.Rules {
		check := &rule.Spec.Rules[n]
		if check.Webhook != nil && check.AvailablePolicy == nil && check.LabelCheck == nil && !check.Disabled &&
			len(check.Conditions) == 0 {
			checks = append(checks, check)
		}
	}
	return checks
}

func settingsOf(rule *appsv1alpha1.PodTransitionRule, check *appsv1alpha1.TransitionRule, of int) exchange.Settings {
	s := exchange.Settings{
		Rule: rule.UID, Check: check.Name,
		Ignore: ptr.Deref(check.Webhook.FailurePolicy, appsv1alpha1.FailurePolicyIgnore) == appsv1alpha1.FailurePolicyIgnore,
		Room:   ruleRoom / of, HistoryRoom: max(1, historyRoom/of),
	}
	if poll := check.Webhook.ClientConfig.Poll; poll != nil {
		s.Polls = true
		s.Interval = seconds(ptr.Deref(poll.IntervalSeconds, defaultInterval))
		s.Timeout = seconds(ptr.Deref(poll.TimeoutSeconds, defaultTimeout))
	}
	return s
}

// seconds is a number of them as a duration, at least 1 and at most what fits.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 1), math.MaxInt32)) * time.Second
}

func stateOf(rule *appsv1alpha1.PodTransitionRule, check string) *appsv1alpha1.WebhookStatus {
	at := slices.IndexFunc(rule.Status.RuleStates, func(s appsv1alpha1.RuleState) bool { return s.Name == check })
	if at < 0 {
		return nil
	}
	return rule.Status.RuleStates[at].WebhookStatus
}

// sameServer reports whether what one was told holds for the other: they ask the same server the same.
func sameServer(a, b *appsv1alpha1.TransitionRuleWebhook) bool {
	if a == b {
		return true
	}
	pollOf := func(w *appsv1alpha1.TransitionRuleWebhook) appsv1alpha1.WebhookPoll {
		poll := ptr.Deref(w.ClientConfig.Poll, appsv1alpha1.WebhookPoll{})
		return appsv1alpha1.WebhookPoll{URL: poll.URL, RawQueryKey: poll.RawQueryKey}
	}
	return a.ClientConfig.URL == b.ClientConfig.URL && pollOf(a) == pollOf(b) &&
		equality.Semantic.DeepEqual(a.Parameters, b.Parameters)
}

// invalid says what is wrong with a webhook, as far as that is known without asking it; "" for nothing.
func invalid(w *appsv1alpha1.TransitionRuleWebhook) string {
	config := w.ClientConfig
	urls, bundles := []string{config.URL}, []string{config.CABundle}
	if config.Poll != nil {
		urls, bundles = append(urls, config.Poll.URL), append(bundles, config.Poll.CABundle)
	}
	for _, given := range urls {
		u, err := callout.ParseURL(given)
		if err != nil {
			return err.Error()
		}
		if config.SecretName != "" && u.Scheme != "https" {
			return "credentials of a Secret are sent over https only: change the urls, or remove webhook.clientConfig.secretName"
		}
	}
	for _, bundle := range bundles {
		if _, err := callout.ParseBundle(bundle); err != nil {
			return err.Error()
		}
	}
	return ""
}
