package localkube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

const crdTimeout = 5 * time.Minute

// WaitForCRDs waits until the API server behind config serves every
// CustomResourceDefinition in it. The error names the first that it does not
// serve within five minutes.
//
// kubectl wait --for=condition=Established does not do: it fails at once on a
// definition so new that its conditions are still null.
func WaitForCRDs(ctx context.Context, config *rest.Config) error {
	definitions, err := apiextensions.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, crdTimeout)
	defer cancel()
	return waitFor(ctx, "the CRDs", nil, func(ctx context.Context) error {
		list, err := definitions.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := served(definitions.Discovery(), &list.Items[i]); err != nil {
				return fmt.Errorf("%s: %w", list.Items[i].Name, err)
			}
		}
		return nil
	})
}

func served(client discovery.DiscoveryInterface, crd *apiextensionsv1.CustomResourceDefinition) error {
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return errors.New("not established")
	}
	for _, version := range crd.Spec.Versions {
		if !version.Served {
			continue
		}
		groupVersion := metav1.GroupVersion{Group: crd.Spec.Group, Version: version.Name}.String()
		resources, err := client.ServerResourcesForGroupVersion(groupVersion)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(resources.APIResources,
			func(r metav1.APIResource) bool { return r.Name == crd.Spec.Names.Plural }) {
			return fmt.Errorf("%s does not serve it yet", groupVersion)
		}
	}
	return nil
}
