package neighbours

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// moment is when a neighbour comes.
type moment string

const (
	first  moment = "first"  // before the workload
	half   moment = "half"   // when a part of the Pods is updated, and the rest waits for a partition
	caught moment = "caught" // when Pods are out of service for an update that has not changed them yet
)

// neighbour is who acts on the same Pods as the suite.
type neighbour struct {
	name string
	// comes installs it into a run, for whom a change is new; what it returns takes it away again, and waits until it
	// is.
	comes func(r *run, c change) func()
	// refuses reports whether it refuses a write of a Pod that carries the change, if it came at that moment. Nil
	// refuses none.
	refuses func(w write, c change, m moment) bool
	// says is a part of its answer, %s the namespace.
	says string
	// moments are those at which it may come.
	moments []moment
	// leaves says what its refusal can be ended by: that it goes, or that the template is put back. Nil: both.
	leaves func(w write, c change, m moment) []ending
}

// ending is how a refusal ends.
type ending string

const (
	goes ending = "goes" // the neighbour does: nothing else is done
	back ending = "back" // the template is put back
)

// neighbours is the table of them.
var neighbours = []neighbour{
	{name: "nobody", moments: []moment{first}, comes: func(*run, change) func() { return func() {} }},
	{
		name: "no-account", says: "shop-2", moments: []moment{first}, refuses: on(create, surge),
		comes: func(r *run, _ change) func() {
			return func() {
				r.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "shop-2"}})
			}
		},
	},
	{
		name: "no-class", says: "high-%s", moments: []moment{first}, refuses: on(create, surge),
		comes: func(r *run, _ change) func() {
			return func() {
				meta := metav1.ObjectMeta{Name: "high-" + r.namespace}
				r.create(&schedulingv1.PriorityClass{ObjectMeta: meta, Value: 1000})
			}
		},
	},

	// Validating policies. What is new is refused, as by those that judge images, registries and privileges.
	refuser("refuse-new", []write{create, update, resize}),
	refuser("refuse-create", []write{create}),
	refuser("refuse-update", []write{update}),
	refuser("refuse-resize", []write{resize}),
	{
		name: "refuse-delete", says: "refuse-delete-%s", moments: []moment{first, caught}, refuses: on(remove),
		leaves: onlyUntouched,
		comes: validating(
			"refuse-delete", rule(admissionv1.Delete, "pods"),
			"!request.userInfo.username.startsWith('system:serviceaccount:')",
		),
	},
	{
		name: "refuse-eviction", moments: []moment{first, half},
		comes: validating("refuse-eviction", rule(admissionv1.Create, "pods/eviction"), "false"),
	},

	// Mutating policies.
	{
		name: "pin-each", moments: []moment{first},
		// the webhook that resolves tags, whose contents differ
		comes: mutating("pin-each", pods(admissionv1.Create, admissionv1.Update), pin(
			"(object.spec.containers[0].image.endsWith(':2') ? '"+digest("2")+"' : '"+digest("1")+"')")),
	},
	{
		name: "pin-same", moments: []moment{first}, // both tags are of the same content
		comes: mutating("pin-same", pods(admissionv1.Create, admissionv1.Update), pin("'"+digest("1")+"'")),
	},
	{
		name: "inject", moments: []moment{first, half},
		comes: mutating("inject", pods(admissionv1.Create),
			`object.spec.containers.exists(c, c.name == "mesh") ? [] : `+
				`[JSONPatch{op: "add", path: "/spec/containers/-", `+
				`value: Object.spec.containers{name: "mesh", image: "mesh:1"}}]`),
	},
	{
		name: "label", moments: []moment{first, half},
		comes: mutating(
			"label", pods(admissionv1.Create, admissionv1.Update),
			`[JSONPatch{op: "add", path: "/metadata/labels/cost-centre", value: "42"}]`,
		),
	},
	{
		name: "autoscale", moments: []moment{first}, // its own requests win, as a vertical autoscaler's
		comes: mutating("autoscale", append(pods(admissionv1.Create), rule(admissionv1.Update, "pods/resize")...),
			`[JSONPatch{op: "replace", path: "/spec/containers/0/resources/requests/cpu", value: "80m"}]`),
	},

	// Quotas and limits.
	{
		name: "quota-full", says: "exceeded quota: team", moments: []moment{first, half},
		comes: func(r *run, _ change) func() { return r.quota(0) },
		refuses: func(w write, c change, _ moment) bool {
			return w == surge || c.name == "cpu" && (w == create || w == resize)
		},
		leaves: onlyUntouched,
	},
	{
		name: "quota-lowered", says: "exceeded quota: team", moments: []moment{half, caught},
		refuses: on(create, surge), leaves: onlyUntouched,
		comes: func(r *run, _ change) func() { return r.quota(-2) },
	},
	{
		name: "limits-default", says: "120m", moments: []moment{first},
		comes: limits(
			corev1.LimitRangeItem{
				Type:    corev1.LimitTypeContainer,
				Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("120m")},
			},
		),
		refuses: func(w write, c change, _ moment) bool {
			return c.name == "cpu" && (w == create || w == surge || w == resize)
		},
		leaves: func(w write, _ change, _ moment) []ending {
			if w == resize { // the Pods keep the limit that they came with
				return []ending{back}
			}
			return []ending{goes, back}
		},
	},
	{
		name: "limits-max", says: "120m", moments: []moment{half},
		comes: limits(
			corev1.LimitRangeItem{
				Type: corev1.LimitTypeContainer,
				Max:  corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("120m")},
			},
		),
		refuses: func(w write, c change, _ moment) bool {
			return c.name == "cpu" && (w == create || w == surge || w == resize)
		},
		leaves: func(write, change, moment) []ending {
			return []ending{goes}
		}, // it refuses the way back too: those Pods have no limit
	},
	{
		name: "pod-security", says: "PodSecurity", moments: []moment{first}, comes: podSecurity,
		refuses: on(create, surge),
	},
}

func neighbourOf(name string) neighbour {
	return neighbours[slices.IndexFunc(neighbours, func(n neighbour) bool { return n.name == name })]
}

// on is what refuses some writes, whatever they carry.
func on(refused ...write) func(write, change, moment) bool {
	return func(w write, _ change, _ moment) bool { return slices.Contains(refused, w) }
}

// onlyUntouched is for what refuses the way back as well: the template may be put back while no Pod has left it.
func onlyUntouched(w write, _ change, m moment) []ending {
	if m == half || w == remove {
		return []ending{goes}
	}
	return []ending{goes, back}
}

// refuser refuses writes that bring a change to a Pod that did not have it.
func refuser(name string, writes []write) neighbour {
	var rules []admissionv1.NamedRuleWithOperations
	for _, w := range writes {
		switch w {
		case create:
			rules = append(rules, pods(admissionv1.Create)...)
		case update:
			rules = append(rules, pods(admissionv1.Update)...)
		case resize:
			rules = append(rules, rule(admissionv1.Update, "pods/resize")...)
		default:
			panic("no rule is for " + w)
		}
	}
	return neighbour{
		name: name, says: name + "-%s", moments: []moment{first, half, caught},
		refuses: func(w write, _ change, _ moment) bool {
			return slices.Contains(writes, w) || w == surge && slices.Contains(writes, create)
		},
		comes: func(r *run, c change) func() {
			expression := fmt.Sprintf(
				"!(%s) || (oldObject != null && (%s))", fmt.Sprintf(c.marker, "object"),
				fmt.Sprintf(c.marker, "oldObject"),
			)
			return validating(name, rules, expression)(r, c)
		},
	}
}

func pods(operations ...admissionv1.OperationType) (rules []admissionv1.NamedRuleWithOperations) {
	for _, o := range operations {
		rules = append(rules, rule(o, "pods")...)
	}
	return rules
}

func rule(operation admissionv1.OperationType, resources ...string) []admissionv1.NamedRuleWithOperations {
	return []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{operation}, Rule: admissionv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: resources,
		},
	}}}
}

// constraints are those of a policy in the run's namespace. It judges a ConfigMap named probe too, which shows whether
// it is in force.
func (r *run) constraints(rules []admissionv1.NamedRuleWithOperations) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.namespace}},
		ResourceRules:     append(slices.Clone(rules), rule(admissionv1.Create, "configmaps")...),
	}
}

const isProbe = "request.resource.resource == 'configmaps'"

// validating is a ValidatingAdmissionPolicy.
func validating(name string, rules []admissionv1.NamedRuleWithOperations, expression string) func(*run, change) func() {
	return func(r *run, _ change) func() {
		full := metav1.ObjectMeta{Name: name + "-" + r.namespace}
		policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: full,
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy: ptr.To(admissionv1.Fail), MatchConstraints: r.constraints(rules),
				Validations: []admissionv1.Validation{
					{Expression: fmt.Sprintf(
						"%s ? request.name != 'probe' : %s", isProbe, expression,
					), Message: "not here"},
				},
			}}
		binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: full,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: full.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			}}
		return r.install(func(_ *corev1.ConfigMap, err error) bool {
			return err != nil && strings.Contains(err.Error(), full.Name)
		}, policy, binding)
	}
}

// mutating is a MutatingAdmissionPolicy of JSON patches.
func mutating(name string, rules []admissionv1.NamedRuleWithOperations, expression string) func(*run, change) func() {
	return func(r *run, _ change) func() {
		full := metav1.ObjectMeta{Name: name + "-" + r.namespace}
		r.mutated = true
		policy := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: full, Spec: admissionv1.MutatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionv1.Fail), MatchConstraints: r.constraints(rules),
			ReinvocationPolicy: admissionv1.IfNeededReinvocationPolicy,
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{
					Expression: fmt.Sprintf(
						`%s ? [JSONPatch{op: "add", path: "/data", value: {"seen": "yes"}}] : %s`, isProbe, expression,
					),
				}}},
		}}
		binding := &admissionv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: full, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: full.Name},
		}
		return r.install(func(probe *corev1.ConfigMap, err error) bool {
			return err == nil && probe.Data["seen"] == "yes"
		}, policy, binding)
	}
}

// install creates a policy and its binding, and waits until the API server heeds them. What it returns undoes that.
func (r *run) install(inForce func(*corev1.ConfigMap, error) bool, policy, binding client.Object) func() {
	r.Helper()
	r.create(policy, binding)
	wait := func(wanted bool) {
		r.Helper()
		r.await(fmt.Sprintf("policy %s in force: %t", policy.GetName(), wanted), func() error {
			probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "probe"}}
			err := r.client.Create(r.Context(), probe, client.DryRunAll)
			if inForce(probe, err) != wanted {
				return fmt.Errorf("the API server answers: %w", err)
			}
			return nil
		})
	}
	wait(true)
	return func() {
		r.Helper()
		r.remove(binding, policy)
		wait(false)
	}
}

// pin is the patch that gives the first container an image by digest, once.
func pin(to string) string {
	return `object.spec.containers.all(c, c.image.contains("@sha256:")) ? [] : ` +
		`[JSONPatch{op: "replace", path: "/spec/containers/0/image", value: ` + to + `}]`
}

func digest(digit string) string { return "web@sha256:" + strings.Repeat(digit, 64) }

// quota is a ResourceQuota that is used up by what is there, or with fewer Pods lowered below it. It goes by being
// raised.
func (r *run) quota(pods int64) func() {
	r.Helper()
	hard := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(podsOfARun+pods, resource.DecimalSI)}
	if pods == 0 {
		hard[corev1.ResourceRequestsCPU] = resource.MustParse(fmt.Sprintf("%dm", 100*podsOfARun))
		hard[corev1.ResourceRequestsMemory] = resource.MustParse(fmt.Sprintf("%dMi", 64*podsOfARun))
		var cpu resource.Quantity
		for _, p := range r.podsNow() {
			cpu.Add(*p.Spec.Containers[0].Resources.Requests.Cpu())
		}
		if !cpu.IsZero() {
			hard[corev1.ResourceRequestsCPU] = cpu
		}
	}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "team"},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard},
	}
	r.create(quota)
	wait := func(wanted int64) {
		r.Helper()
		r.await("the quota to be counted", func() error {
			err := r.client.Get(r.Context(), client.ObjectKeyFromObject(quota), quota)
			if err == nil && quota.Status.Hard.Pods().Value() != wanted {
				return fmt.Errorf("%v", quota.Status)
			}
			return err
		})
	}
	wait(podsOfARun + pods)
	return func() {
		r.Helper()
		r.merge(quota, `{"spec":{"hard":{"pods":"100","requests.cpu":"100","requests.memory":"100Gi"}}}`)
		wait(100)
	}
}

// limits is a LimitRange that bounds cpu at 120m.
func limits(item corev1.LimitRangeItem) func(*run, change) func() {
	return func(r *run, _ change) func() {
		r.Helper()
		limit := &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "team"},
			Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}},
		}
		r.create(limit)
		wait := func(wanted bool) {
			r.Helper()
			r.await(fmt.Sprintf("the LimitRange in force: %t", wanted), func() error {
				probe := r.bare("probe")
				err := r.client.Create(r.Context(), probe, client.DryRunAll)
				if err == nil && probe.Spec.Containers[0].Resources.Limits.Cpu().IsZero() == wanted {
					err = errors.New("not yet")
				}
				return err
			})
		}
		wait(true)
		return func() { r.Helper(); r.remove(limit); wait(false) }
	}
}

// bare is a Pod that no controller made.
func (r *run) bare(podName string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: podName},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
}

// podSecurity enforces the baseline of Pod security.
func podSecurity(r *run, _ change) func() {
	const key = "pod-security.kubernetes.io/enforce"
	enforce := func(level string) {
		r.Helper()
		r.merge(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}},
			fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, level),
		)
		r.await("the level "+level, func() error {
			probe := r.bare("probe")
			probe.Spec.HostPID = true
			if err := r.client.Create(r.Context(), probe, client.DryRunAll); (err == nil) != (level == "privileged") {
				return fmt.Errorf("the API server answers: %w", err)
			}
			return nil
		})
	}
	enforce("baseline")
	return func() { r.Helper(); enforce("privileged") }
}
