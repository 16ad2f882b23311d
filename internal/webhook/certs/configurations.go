package certs

import (
	"bytes"
	"context"
	"fmt"
	"net/url"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type controllerQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// servicePort is the port of the Service.
const servicePort = 443

// configurations are the component's own; nil is one that does not exist.
type configurations struct {
	name       string
	mutating   *admissionregistrationv1.MutatingWebhookConfiguration
	validating *admissionregistrationv1.ValidatingWebhookConfiguration
}

// configurations reads both from the cache, as copies.
func (j *judge) configurations(ctx context.Context) (configurations, error) {
	found := configurations{
		name:       j.settings.Name,
		mutating:   &admissionregistrationv1.MutatingWebhookConfiguration{},
		validating: &admissionregistrationv1.ValidatingWebhookConfiguration{},
	}
	key := client.ObjectKey{Name: j.settings.Name}
	if err := j.reader.Get(ctx, key, found.mutating); apierrors.IsNotFound(err) {
		found.mutating = nil
	} else if err != nil {
		return configurations{}, fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", key.Name, err)
	}
	if err := j.reader.Get(ctx, key, found.validating); apierrors.IsNotFound(err) {
		found.validating = nil
	} else if err != nil {
		return configurations{}, fmt.Errorf("reading ValidatingWebhookConfiguration %s: %w", key.Name, err)
	}
	return found, nil
}

// complete is an error while one of them does not exist.
func (c configurations) complete() error {
	if c.mutating == nil {
		return fmt.Errorf("MutatingWebhookConfiguration %s does not exist: apply deploy/webhook-server", c.name)
	}
	if c.validating == nil {
		return fmt.Errorf("ValidatingWebhookConfiguration %s does not exist: apply deploy/webhook-server", c.name)
	}
	return nil
}

// caller is one webhook: how the API server calls it. The two configurations may have webhooks of one name.
type caller struct {
	name   string // kind of the configuration, and webhook
	config *admissionregistrationv1.WebhookClientConfig
}

// callers are all webhooks of both configurations.
func (c configurations) callers() []caller {
	var all []caller
	if c.mutating != nil {
		for i := range c.mutating.Webhooks {
			all = append(all, caller{"mutating " + c.mutating.Webhooks[i].Name, &c.mutating.Webhooks[i].ClientConfig})
		}
	}
	if c.validating != nil {
		for i := range c.validating.Webhooks {
			all = append(all, caller{"validating " + c.validating.Webhooks[i].Name, &c.validating.Webhooks[i].ClientConfig})
		}
	}
	return all
}

// trust reports whether both exist and every webhook of them has just this bundle.
func (c configurations) trust(bundle []byte) bool {
	for _, webhook := range c.callers() {
		if !bytes.Equal(webhook.config.CABundle, bundle) {
			return false
		}
	}
	return c.complete() == nil
}

// publish writes the bundle, where the server is, and the token, into every webhook that has something else. A write
// that rests on an old copy fails with a conflict.
func (k *Keeper) publish(ctx context.Context, c configurations, m material) error {
	var before, after []client.Object
	if c.mutating != nil {
		before, after = append(before, c.mutating.DeepCopy()), append(after, c.mutating)
	}
	if c.validating != nil {
		before, after = append(before, c.validating.DeepCopy()), append(after, c.validating)
	}
	for _, webhook := range c.callers() {
		k.point(webhook, m)
	}
	for i := range after {
		if equality.Semantic.DeepEqual(before[i], after[i]) {
			continue
		}
		// Webhooks are a list merged by name, so a strategic patch touches the client configurations only.
		patch := client.StrategicMergeFrom(before[i], client.MergeFromWithOptimisticLock{})
		if err := k.client.Patch(ctx, after[i], patch); err != nil {
			return err
		}
		k.writes.Wrote(k.request().NamespacedName, after[i])
	}
	return nil
}

// point makes a webhook call this server: at its URL if it has one, else through its Service, under the same path, or
// the guarded one.
func (k *Keeper) point(webhook caller, m material) {
	config := webhook.config
	config.CABundle = m.bundle
	var at string
	switch {
	case k.settings.Guarded[webhook.name] != "":
		at = k.settings.Guarded[webhook.name] + "/" + string(m.token)
	case config.Service != nil:
		at = ptr.Deref(config.Service.Path, "/")
	case config.URL != nil:
		if was, err := url.Parse(*config.URL); err == nil {
			at = was.Path
		}
	}
	if k.settings.AdvertiseURL != nil {
		config.URL, config.Service = ptr.To(k.settings.AdvertiseURL.JoinPath(at).String()), nil
		return
	}
	config.URL = nil
	config.Service = &admissionregistrationv1.ServiceReference{
		Namespace: k.settings.Namespace,
		Name:      k.settings.Name,
		Path:      &at,
		Port:      ptr.To[int32](servicePort),
	}
}
