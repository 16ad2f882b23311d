package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"kusionstack.io/kuperator/internal/testkit/localkube"
)

// right is one verb on one kind of object.
type right struct {
	where    string // a namespace; "" is all namespaces, and what is in none
	group    string
	resource string // with its subresource
	name     string // of the object, "" for any
	verb     string
}

func (r right) String() string {
	return fmt.Sprintf("%s %s %q in %q", r.verb, strings.TrimPrefix(r.group+"/"+r.resource, "/"), r.name, r.where)
}

// clustersOwn are the roles of every cluster that deploy binds.
var clustersOwn = map[string][]rbacv1.PolicyRule{
	"system:auth-delegator": {
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	},
}

// rightsIn are the rights that rendered manifests give to the components' ServiceAccounts.
func rightsIn(t *testing.T, objects []unstructured.Unstructured) map[string]map[right]bool {
	t.Helper()
	roles := maps.Clone(clustersOwn)
	for _, o := range objects {
		if o.GetKind() == "Role" || o.GetKind() == "ClusterRole" {
			roles[o.GetNamespace()+o.GetName()] = as[rbacv1.ClusterRole](t, o).Rules
		}
	}
	all := map[string]map[right]bool{}
	for _, o := range objects {
		if o.GetKind() != "RoleBinding" && o.GetKind() != "ClusterRoleBinding" {
			continue
		}
		binding := as[rbacv1.RoleBinding](t, o)
		role := binding.RoleRef.Name
		if binding.RoleRef.Kind == "Role" {
			role = binding.Namespace + role
		}
		require.Contains(t, roles, role, key(o))
		for _, subject := range binding.Subjects {
			require.Equal(t, rbacv1.ServiceAccountKind, subject.Kind, key(o))
			if all[subject.Name] == nil {
				all[subject.Name] = map[right]bool{}
			}
			for _, r := range expand(binding.Namespace, roles[role]) {
				all[subject.Name][r] = true
			}
		}
	}
	return all
}

func expand(where string, rules []rbacv1.PolicyRule) []right {
	var out []right
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						out = append(out, right{where, group, resource, name, verb})
					}
				}
			}
		}
	}
	return out
}

// reading are verbs that change nothing.
var reading = []string{"get", "list", "watch"}

// writable is what each component may write, beside Events, its Lease and reviews of those who scrape its metrics.
var writable = map[string][]string{
	"collaset-controller": {
		"apps.kusionstack.io/collasets", "apps.kusionstack.io/collasets/finalizers", "apps.kusionstack.io/collasets/status",
		"apps.kusionstack.io/resourcecontexts", "apps/controllerrevisions", "persistentvolumeclaims", "pods", "pods/resize",
	},
	"podtransitionrule-controller": {
		"apps.kusionstack.io/podtransitionrules", "apps.kusionstack.io/podtransitionrules/status", "pods",
		"policy/poddisruptionbudgets",
	},
	"lifecycle-controller":       {"lifecycle.k8s.io/evictions/status", "pods", "pods/status"},
	"resourceconsist-controller": {"pods", "services", "services/status"},
	"operationjob-controller": {
		"apps.kusionstack.io/operationjobs", "apps.kusionstack.io/operationjobs/status", "pods", "pods/eviction",
	},
	"poddecoration-controller": {
		"apps.kusionstack.io/poddecorations",
		"apps.kusionstack.io/poddecorations/status", "apps/controllerrevisions", "pods", "pods/resize",
	},
	"webhook-server": {
		"admissionregistration.k8s.io/mutatingwebhookconfigurations",
		"admissionregistration.k8s.io/validatingwebhookconfigurations", "pods", "secrets",
	},
}

// TestWhatEachTokenCanDo goes through the rights of each ServiceAccount in each overlay, and in each with everything
// optional.
func TestWhatEachTokenCanDo(t *testing.T) {
	entries, err := os.ReadDir(deployDir("overlays"))
	require.NoError(t, err)
	variants := map[string][]unstructured.Unstructured{"with cert-manager": renderWith(t, "cert-manager"),
		"with Secrets of rule webhooks": renderWith(t, "rule-webhook-secrets")}
	for _, entry := range entries {
		variants[entry.Name()] = render(t, deployDir("overlays", entry.Name()))
	}
	for name, objects := range variants {
		t.Run(name, func(t *testing.T) {
			confined := false
			for _, o := range objects {
				confined = confined || key(o) == "ValidatingAdmissionPolicyBinding/kuperator-confinement"
			}
			require.True(t, confined, "what RBAC cannot say is said by the policy")
			rights := rightsIn(t, objects)
			for account, all := range rights {
				require.Contains(t, components, account, "nothing else has rights")
				for r := range all {
					checkRight(t, name, account, r)
				}
			}
		})
	}
}

// checkRight is what holds for every right in every overlay: no token reads what is not its own, or makes itself more
// than it is.
func checkRight(t *testing.T, overlay, account string, r right) {
	t.Helper()
	full := strings.TrimPrefix(r.group+"/"+r.resource, "/")
	say := account + ": " + r.String()
	require.NotContains(t, []string{"*", "bind", "escalate", "impersonate", "approve", "sign", "attest", "use",
		"deletecollection", "proxy", "connect"}, r.verb, say)
	require.NotEqual(t, "*", r.group, say)
	require.NotContains(t, r.resource, "*", say)
	require.NotContains(t, []string{"rbac.authorization.k8s.io", "certificates.k8s.io", "apiextensions.k8s.io",
		"apiregistration.k8s.io"}, r.group, say)
	require.False(t, full == "pods" && r.verb == "update", "%s: the policy kuperator-confinement goes by that", say)
	for _, never := range []string{
		"serviceaccounts", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "pods/ephemeralcontainers",
		"pods/log", "pods/binding",
		"bindings", "nodes/proxy", "services/proxy", "configmaps", "endpoints",
	} {
		require.False(t, full == never || strings.HasPrefix(full, never+"/"), say)
	}
	if r.group == "admissionregistration.k8s.io" {
		require.True(t, strings.HasSuffix(r.resource, "webhookconfigurations") && r.name == "webhook-server" &&
			account == "webhook-server", say)
	}
	switch {
	case full == "secrets" && account == "podtransitionrule-controller":
		require.True(t, overlay == "with Secrets of rule webhooks" && r.verb == "get", say)
	case full == "secrets":
		require.Equal(t, system, r.where, say)
		require.True(t, account == "webhook-server" && (r.name == "webhook-server-certs" || r.verb == "create"), say)
		require.NotEqual(t, "with cert-manager", overlay, say)
	case full == "coordination.k8s.io/leases":
		require.Equal(t, system, r.where, say)
		require.True(t, r.verb == "create" || r.name == account || strings.HasPrefix(r.name, account+"-shard-"), say)
	case slices.Contains(reading, r.verb):
	case full == "events", full == "events.k8s.io/events", full == "authentication.k8s.io/tokenreviews",
		full == "authorization.k8s.io/subjectaccessreviews":
		require.Contains(t, []string{"create", "patch"}, r.verb, say)
	default:
		require.Contains(t, writable[account], full, say)
	}
}

const (
	tableBegins = "<!-- rights: begin (test/integration/deploy holds this table against deploy/overlays/full) -->\n"
	tableEnds   = "<!-- rights: end -->\n"
)

// TestThePageSaysWhatEachTokenCanDo compares the table of docs/security.md with the full suite, word by word.
func TestThePageSaysWhatEachTokenCanDo(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "security.md"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), tableBegins)
	require.True(t, found)
	table, _, found := strings.Cut(rest, tableEnds)
	require.True(t, found)
	wanted := tableOf(rightsIn(t, render(t, deployDir("overlays", "full"))))
	require.Equal(t, wanted, table, "put this there:\n%s", wanted)
}

// tableOf has a row for each component and place, with the verbs of each kind of object.
func tableOf(rights map[string]map[right]bool) string {
	var b strings.Builder
	b.WriteString("| component | where | what its token can do |\n| --- | --- | --- |\n")
	for _, account := range components {
		for _, where := range []string{"", system} {
			verbs := map[string][]string{}
			for r := range rights[account] {
				what := strings.TrimPrefix(r.group+"/"+r.resource, "/")
				if r.name != "" {
					what += " `" + r.name + "`"
				}
				if r.where == where {
					verbs[what] = append(verbs[what], r.verb)
				}
			}
			objects := map[string][]string{} // that have the same verbs
			for what, some := range verbs {
				slices.Sort(some)
				joined := strings.Join(some, ", ")
				objects[joined] = append(objects[joined], what)
			}
			var cells []string
			for joined, what := range objects {
				slices.Sort(what)
				cells = append(cells, strings.Join(what, ", ")+": "+joined)
			}
			slices.Sort(cells)
			place := "`" + where + "`"
			if where == "" {
				place = "everywhere"
			}
			if len(cells) > 0 {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", account, place, strings.Join(cells, "; "))
			}
		}
	}
	return b.String()
}

// checkSelfReviews: an API server that has the full suite answers each token as the manifests are read here.
func checkSelfReviews(t *testing.T, cluster *localkube.Cluster) {
	t.Helper()
	rights := rightsIn(t, render(t, deployDir("overlays", "full")))
	admin := kubernetes.NewForConfigOrDie(cluster.RESTConfig())
	_, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "nothing"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	answer := func(c require.TestingT, namespace, name, where string) map[right]bool {
		config, err := cluster.ServiceAccountConfig(t.Context(), namespace, name)
		require.NoError(c, err)
		review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: where}}
		told, err := kubernetes.NewForConfigOrDie(config).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
			review, metav1.CreateOptions{})
		require.NoError(c, err)
		require.Empty(c, told.Status.EvaluationError)
		all := map[right]bool{}
		for _, rule := range told.Status.ResourceRules {
			for _, r := range expand("", []rbacv1.PolicyRule{{APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames, Verbs: rule.Verbs}}) {
				all[r] = true
			}
		}
		return all
	}
	for _, name := range components {
		for _, where := range []string{"default", system} {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				wanted := answer(c, "default", "nothing", where) // what every account has
				for r := range rights[name] {
					if r.where == "" || r.where == where {
						r.where = ""
						wanted[r] = true
					}
				}
				require.Equal(c, wanted, answer(c, system, name, where))
			}, deadline, tick, "%s in %s", name, where)
		}
	}
}
