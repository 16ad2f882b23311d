package plugin

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

const (
	// oldestMinor is the oldest minor version of Kubernetes 1 that the suite supports.
	oldestMinor = 30
	// webhookServer is the name of the component, its Service and its two webhook configurations.
	webhookServer = "webhook-server"
	// certificateSoon is how long before its end an authority is reported.
	certificateSoon = 24 * time.Hour
)

func (p *plugin) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", GroupID: groupLook, Short: "Check the installation for problems",
		Long: `Check the installation for problems: the API server's version and clock, CRDs, components and their versions,
webhooks and their certificates, freezes, keys left behind on Pods, and your permissions.

What you may not read is listed, and does not count as a problem. The exit code is 2 if there is a problem.`,
		Example: "  kubectl kuperator doctor\n  kubectl kuperator doctor -o json",
		Args:    cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.sessionFor(dryRunNone)
			if err != nil {
				return err
			}
			report := s.diagnose(cmd.Context())
			if err := p.print(report, func(w io.Writer) { writeDiagnosis(w, report) }); err != nil {
				return err
			}
			if report.Problems > 0 {
				return errFindings
			}
			return nil
		},
	}
}

func writeDiagnosis(w io.Writer, d insight.Diagnosis) {
	for _, f := range d.Findings {
		fmt.Fprintf(w, "%-8s %s: %s\n", strings.ToUpper(string(f.Level)), f.Check, f.Message)
		if f.Next != "" {
			fmt.Fprintf(w, "         next: %s\n", f.Next)
		}
	}
	fmt.Fprintf(w, "%s, %s\n", insight.Plural(d.Problems, "problem"), insight.Plural(d.Warnings, "warning"))
}

// diagnose makes every check. One that cannot be made is a finding as well.
func (s *session) diagnose(ctx context.Context) insight.Diagnosis {
	var d insight.Diagnosis
	s.checkServer(ctx, &d)
	s.checkKinds(&d)
	s.checkFacts(ctx, &d)
	s.checkNamespace(ctx, &d)
	s.checkDeployments(ctx, &d)
	s.checkWebhooks(ctx, &d)
	s.checkPermissions(ctx, &d)
	return d
}

func (s *session) checkServer(ctx context.Context, d *insight.Diagnosis) {
	const check = "API server"
	version, err := s.kube.Discovery().ServerVersion()
	if err != nil {
		d.Add(insight.LevelProblem, check, "it does not answer: "+err.Error(),
			"check --context, --kubeconfig and the network")
		return
	}
	minor, _ := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	if minor < oldestMinor {
		d.Add(insight.LevelProblem, check, "it is "+version.GitVersion+", and the suite needs v1."+strconv.Itoa(oldestMinor),
			"upgrade Kubernetes")
		return
	}
	can, err := s.capabilities(ctx)
	text := version.GitVersion
	switch {
	case err != nil:
	case can.ResizePod:
		text += ", resizes containers and Pods in place"
	case can.Resize:
		text += ", resizes containers in place"
	default:
		text += ", resizes nothing in place"
	}
	d.Add(insight.LevelOK, check, text, "")
	if skew := s.server.ahead(); skew != 0 {
		d.Add(insight.LevelWarning,
			"clock", fmt.Sprintf("the API server's clock is %s ahead of this machine's (negative: behind)",
				skew.Round(time.Second)), "set this machine's clock; the times shown here are the API server's")
	} else {
		d.Add(insight.LevelOK, "clock", "this machine and the API server agree", "")
	}
}

// checkKinds says which of the suite's kinds are served.
func (s *session) checkKinds(d *insight.Diagnosis) {
	const check = "CRDs"
	served := map[string]bool{}
	list, err := s.kube.Discovery().ServerResourcesForGroupVersion(appsv1alpha1.SchemeGroupVersion.String())
	if err != nil && !apierrors.IsNotFound(err) {
		d.Add(insight.LevelUnknown, check, err.Error(), "")
		return
	}
	if list != nil {
		for _, r := range list.APIResources {
			served[r.Name] = true
		}
	}
	kinds := []string{"collasets", "podtransitionrules", "operationjobs", "poddecorations", "resourcecontexts"}
	var missing []string
	for _, kind := range kinds {
		if !served[kind] {
			missing = append(missing, kind)
		}
	}
	switch len(missing) {
	case 0:
		d.Add(insight.LevelOK, check, strings.Join(kinds[:len(kinds)-1], ", ")+" and "+kinds[len(kinds)-1]+" are served", "")
	case len(kinds):
		d.Add(insight.LevelProblem, check, "none of "+appsv1alpha1.SchemeGroupVersion.String()+" is served",
			"install them: kubectl apply --server-side -k deploy/crd")
	default:
		d.Add(insight.LevelWarning, check, strings.Join(missing, ", ")+" are not served",
			"fine if their components are not installed; else kubectl apply --server-side -k deploy/crd")
	}
}

// checkFacts reads what insight diagnoses: Leases, freezes, rules, CollaSets and Pods of the cluster, or, without the
// right to that, of the namespace.
func (s *session) checkFacts(ctx context.Context, d *insight.Diagnosis) {
	facts, err := s.factsOf(ctx, "")
	where := "of all namespaces"
	if apierrors.IsForbidden(err) {
		where = "of namespace " + s.namespace
		facts, err = s.factsOf(ctx, s.namespace)
	}
	if err != nil {
		d.Add(insight.LevelUnknown, "Pods", err.Error(), "")
		return
	}
	// what is not served was said
	facts.Gaps = slices.DeleteFunc(facts.Gaps, func(g insight.Gap) bool { return g.Missing == "" })
	insight.Diagnose(facts, where, d)
}

// checkNamespace looks for the label by which the webhooks leave the suite's own Pods alone. Helm cannot set it.
func (s *session) checkNamespace(ctx context.Context, d *insight.Diagnosis) {
	const check, label = "namespace", "kuperator.kusionstack.io/installation"
	namespace, err := s.kube.CoreV1().Namespaces().Get(ctx, s.system, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		d.Add(insight.LevelProblem, check, "there is no namespace "+s.system,
			"install the suite, or say where it is with --suite-namespace")
	case err != nil:
		d.AddGap(check, gap(err, "get", "namespaces", "", "whether "+s.system+" has the label "+label), err)
	case namespace.Labels[label] != "true":
		d.Add(insight.LevelWarning, check,
			s.system+" has no label "+label+"=true: webhooks are asked about the suite's own Pods",
			"kubectl label namespace "+s.system+" "+label+"=true")
	default:
		d.Add(insight.LevelOK, check, s.system+" has the label "+label, "")
	}
}

// checkDeployments says which versions run.
func (s *session) checkDeployments(ctx context.Context, d *insight.Diagnosis) {
	const check = "Deployments"
	images := map[string][]string{}
	found := 0
	err := each(ctx, metav1.ListOptions{LabelSelector: partOfSuite}, s.kube.AppsV1().Deployments(s.system).List,
		func(deployment *appsv1.Deployment) {
			found++
			for _, c := range deployment.Spec.Template.Spec.Containers {
				version := imageVersion(deployment, c.Image)
				images[version] = append(images[version], deployment.Name)
			}
			wanted := ptr.Deref(deployment.Spec.Replicas, 1)
			if ready := deployment.Status.ReadyReplicas; ready < wanted {
				level := insight.LevelWarning
				if ready == 0 {
					level = insight.LevelProblem
				}
				d.Add(level, check, fmt.Sprintf("%s has %d of %d replicas ready", deployment.Name, ready, wanted),
					"kubectl -n "+s.system+" describe deployment "+deployment.Name)
			}
		})
	if err != nil {
		d.AddGap(check, gap(err, "list", "deployments.apps", s.system, "which versions run"), err)
		return
	}
	if len(images) > 1 {
		d.Add(insight.LevelWarning, "versions", fmt.Sprintf("components differ: %v", images),
			"fine during an upgrade; else install one version")
	} else if found > 0 {
		for version := range images {
			d.Add(insight.LevelOK, "versions", fmt.Sprintf("%d Deployments of %s; this is %s %s", found,
				cmp.Or(version, "unknown version"), name, buildVersion()), "")
		}
	}
}

// checkWebhooks checks whether the API server can call webhook-server.
func (s *session) checkWebhooks(ctx context.Context, d *insight.Diagnosis) {
	const check = "webhooks"
	mutating, err := s.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, webhookServer,
		metav1.GetOptions{})
	if err != nil {
		s.noWebhooks(d, "mutatingwebhookconfigurations", err)
		return
	}
	validating, err := s.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, webhookServer,
		metav1.GetOptions{})
	if err != nil {
		s.noWebhooks(d, "validatingwebhookconfigurations", err)
		return
	}
	var clients []admissionv1.WebhookClientConfig
	for _, w := range mutating.Webhooks {
		clients = append(clients, w.ClientConfig)
	}
	for _, w := range validating.Webhooks {
		clients = append(clients, w.ClientConfig)
	}
	bad, services := "", map[string]bool{}
	for _, c := range clients {
		if problem := certificateProblem(c.CABundle, s.now()); problem != "" {
			bad = problem
		}
		if c.Service != nil {
			services[c.Service.Name] = true
		}
	}
	if bad != "" {
		d.Add(insight.LevelProblem, check, "the API server cannot trust webhook-server: "+bad,
			"webhook-server writes its own authority: see whether it runs, and its log; with cert-manager, see its Certificate")
	} else {
		d.Add(insight.LevelOK, check, fmt.Sprintf("%d webhooks with valid authorities", len(clients)), "")
	}
	for service := range services {
		s.checkEndpoints(ctx, d, service)
	}
}

func (s *session) noWebhooks(d *insight.Diagnosis, resource string, err error) {
	if apierrors.IsNotFound(err) {
		d.Add(insight.LevelWarning, "webhooks", "there is no "+resource+"/"+webhookServer,
			"fine with the overlay no-webhook: Pods of other workloads than CollaSets get no readiness gate, and nothing is deleted gracefully")
		return
	}
	d.AddGap("webhooks", gap(err, "get", resource+".admissionregistration.k8s.io", "", "whether admission works"), err)
}

// certificateProblem says what is wrong with an authority; "" if nothing is.
func certificateProblem(bundle []byte, now time.Time) string {
	if len(bundle) == 0 {
		return "caBundle is empty"
	}
	valid := 0
	problem := "caBundle has no certificate"
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			problem = "caBundle has a certificate that cannot be read: " + err.Error()
		case now.After(certificate.NotAfter):
			problem = "the certificate in caBundle ended at " + certificate.NotAfter.UTC().Format(time.RFC3339)
		case now.Add(certificateSoon).After(certificate.NotAfter):
			problem = "the certificate in caBundle ends at " + certificate.NotAfter.UTC().Format(time.RFC3339)
		default:
			valid++
		}
	}
	if valid > 0 {
		return ""
	}
	return problem
}

func (s *session) checkEndpoints(ctx context.Context, d *insight.Diagnosis, service string) {
	ready := 0
	of := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
	err := each(ctx, of, s.kube.DiscoveryV1().EndpointSlices(s.system).List,
		func(slice *discoveryv1.EndpointSlice) {
			for _, e := range slice.Endpoints {
				if ptr.Deref(e.Conditions.Ready, false) {
					ready++
				}
			}
		})
	switch {
	case err != nil:
		d.AddGap("webhooks", gap(err, "list", "endpointslices.discovery.k8s.io", s.system,
			"whether the Service "+service+" has endpoints"), err)
	case ready == 0:
		d.Add(insight.LevelProblem, "webhooks", "Service "+service+" has no ready endpoint: no server answers",
			"kubectl -n "+s.system+" get pods -l app.kubernetes.io/name="+service)
	default:
		d.Add(insight.LevelOK, "webhooks",
			fmt.Sprintf("Service %s has %s", service, insight.Plural(ready, "ready endpoint")), "")
	}
}

// permissions are what commands need, by the command that needs it first.
var permissions = []struct {
	verb, group, resource, needs string
	cluster                      bool
}{
	{"list", "", "pods", "status, why", false},
	{"list", appsv1alpha1.SchemeGroupVersion.Group, "collasets", "status, why", false},
	{"list", appsv1alpha1.SchemeGroupVersion.Group, "podtransitionrules", "status, why", false},
	{"list", appsv1alpha1.SchemeGroupVersion.Group, "operationjobs", "status, why", false},
	{"list", appsv1alpha1.SchemeGroupVersion.Group, "poddecorations", "status, why, plan", false},
	{"list", "apps", "controllerrevisions", "history, undo, abort, plan", false},
	{"patch", appsv1alpha1.SchemeGroupVersion.Group, "collasets", "pause, resume, restart, undo, abort, promote, set image, plan -f",
		false},
	{"patch", appsv1alpha1.SchemeGroupVersion.Group, "poddecorations", "plan -f", false},
	{"create", appsv1alpha1.SchemeGroupVersion.Group, "operationjobs", "replace, restart --in-place", false},
	{"patch", "", "pods", "replace --cancel", false},
	{"patch", "", "namespaces", "freeze, unfreeze", false},
	{"list", "", "nodes", "nodes that are not Ready", true},
}

// checkPermissions asks what the user may do.
func (s *session) checkPermissions(ctx context.Context, d *insight.Diagnosis) {
	var may, mayNot []string
	for _, p := range permissions {
		attributes := &authorizationv1.ResourceAttributes{Verb: p.verb, Group: p.group, Resource: p.resource,
			Namespace: s.namespace}
		if p.cluster {
			attributes.Namespace = ""
		}
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
		}
		answer, err := s.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		switch {
		case err != nil:
			d.Add(insight.LevelUnknown, "permissions", err.Error(), "")
			return
		case answer.Status.Allowed:
			may = append(may, p.verb+" "+p.resource)
		default:
			mayNot = append(mayNot, p.verb+" "+p.resource+" ("+p.needs+")")
		}
	}
	d.Add(insight.LevelOK, "permissions", "in namespace "+s.namespace+" you may "+strings.Join(may, ", "), "")
	if len(mayNot) > 0 {
		d.Add(insight.LevelUnknown, "permissions", "you may not "+strings.Join(mayNot, ", "),
			"see docs/kubectl-kuperator.md#permissions")
	}
}
