package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// notInstalled is what to do where the API server does not serve a kind of the suite.
const notInstalled = "Kuperator is not installed in this cluster, or is older than this plugin; " +
	"kubectl apply --server-side -k deploy/overlays/full installs it (docs/install.md)"

// notServed is why a kind cannot be read that the API server does not serve.
const notServed = "the API server does not serve it: " + notInstalled

// isUnserved reports whether the API server does not serve a resource, rather than that it lacks one object of it.
func isUnserved(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return meta.IsNoMatchError(err)
	}
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// resourceOf is the resource that an answer of the API server is about, with its group; "" if it is not known.
func resourceOf(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return ""
	}
	d := status.Status().Details
	return strings.TrimSuffix(d.Kind+"."+d.Group, ".")
}

// noNamespace is the error about a namespace that does not exist.
func noNamespace(name string) error {
	return fmt.Errorf("namespace %q does not exist: -n chooses another, and kubectl get namespaces lists them", name)
}

// forbidden is how the API server words what a user may not do.
var forbidden = regexp.MustCompile(
	`cannot (\S+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)"| at the cluster scope)`)

// advisedError is an answer of the API server, with what its user can do about it.
type advisedError struct {
	error
	advice string
}

func (e *advisedError) Error() string { return e.error.Error() + "\n" + e.advice }
func (e *advisedError) Unwrap() error { return e.error }

// advised adds to an error what its user can do about it. It is the one place for what the API server answers to any
// command.
func (p *plugin) advised(ctx context.Context, err error) error {
	switch {
	case isUnserved(err):
		what := cmp.Or(resourceOf(err), "the suite's kinds")
		return fmt.Errorf("the API server does not serve %s: %s", what, notInstalled)
	case apierrors.IsNotFound(err) && p.lacksNamespace(ctx):
		return noNamespace(p.session.namespace)
	case strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'kuperator-operate"):
		return &advisedError{err, "the role kuperator-operate does not cover that; the role edit does " +
			"(docs/kubectl-kuperator.md#permissions)"}
	case apierrors.IsForbidden(err):
		found := forbidden.FindStringSubmatch(err.Error())
		if found == nil { // admission has refused it, not authorization
			return err
		}
		where := " in the cluster"
		if found[4] != "" {
			where = " in namespace " + found[4]
		}
		missing := found[1] + " " + strings.TrimSuffix(found[2]+"."+found[3], ".") + where
		role := cmp.Or(roleFor(missing), "no role of the suite has that right: a cluster administrator can grant it")
		return &advisedError{err, "you may not " + missing + "; " + role + " (docs/kubectl-kuperator.md#permissions)"}
	case apierrors.IsUnauthorized(err):
		return &advisedError{err,
			"the API server does not accept your credentials: log in again, or choose another --context"}
	case apierrors.IsConflict(err):
		return &advisedError{err, "another client has changed it meanwhile: look again, and repeat the command"}
	}
	return err
}

// lacksNamespace reports whether the namespace that the command is about does not exist, as far as its user may know.
func (p *plugin) lacksNamespace(ctx context.Context) bool {
	if p.session == nil {
		return false
	}
	_, err := p.session.kube.CoreV1().Namespaces().Get(ctx, p.session.namespace, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// roleFor is which role has a right, such as "list pods in namespace shop"; "" if no role of a user has it.
func roleFor(right string) string {
	words := strings.Fields(right)
	if len(words) < 2 {
		return ""
	}
	verb, resource := words[0], words[1]
	resource, _, _ = strings.Cut(resource, "/") // the name of a Namespace
	reads := verb == "get" || verb == "list" || verb == "watch"
	name, group, _ := strings.Cut(resource, ".")
	switch ours := group == appsv1alpha1.SchemeGroupVersion.Group; {
	case ours && reads:
		return "the role view has that right, by kuperator-view"
	case ours && name == "collasets" && verb == "patch":
		return "the role edit has that right, by kuperator-edit; kuperator-operate has it to pause, resume, restart and promote"
	case ours && name == "operationjobs" && (verb == "create" || verb == "delete"):
		return "the roles edit, by kuperator-edit, and kuperator-operate have that right"
	case ours:
		return "the role edit has that right, by kuperator-edit"
	case resource == "pods" && verb == "patch":
		return "the role edit has that right; kuperator-operate has it for the labels of operations"
	case resource == "namespaces" && verb == "patch":
		return "the role kuperator-freeze has that right, for the annotations of a freeze"
	}
	for _, readable := range []string{"pods", "events", "namespaces", "deployments.apps", "controllerrevisions.apps",
		"replicasets.apps", "statefulsets.apps", "poddisruptionbudgets.policy"} {
		if reads && resource == readable {
			return "the role view has that right"
		}
	}
	return ""
}
