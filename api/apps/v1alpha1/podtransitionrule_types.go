package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodTransitionRule defines what must hold before the Pods that it selects may leave a stage of their lifecycle. All
// rules that select a Pod must agree. A rule is in force as soon as it exists.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=podtransitionrules,singular=podtransitionrule,shortName=ptr,categories=kuperator,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="DESIRED",type=integer,JSONPath=`.status.desired`,description="The number of Pods that should be there."
// +kubebuilder:printcolumn:name="AVAILABLE",type=integer,JSONPath=`.status.available`,description="The number of Pods in service and not granted."
// +kubebuilder:printcolumn:name="GRANTED",type=integer,JSONPath=`.status.granted`,description="The number of Pods that may go on."
// +kubebuilder:printcolumn:name="BLOCKED",type=integer,JSONPath=`.status.blocked`,description="The number of Pods that wait for this rule."
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the rule can be evaluated."
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec)",message="spec is missing: give it a selector and rules"
type PodTransitionRule struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the rule requires.
	// +optional
	Spec PodTransitionRuleSpec `json:"spec,omitempty"`

	// Status is the ledger of grants, and the reasons of refusals. Only podtransitionrule-controller writes it.
	// Before that its observedGeneration is -1: kstatus takes an object without it for one that is ready.
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status PodTransitionRuleStatus `json:"status,omitempty"`
}

// PodTransitionRuleSpec is what a PodTransitionRule requires.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector)",message="spec.selector is required: set matchLabels, or {} to select every Pod of the namespace"
type PodTransitionRuleSpec struct {
	// Selector matches Pods in the rule's namespace. It is required; an empty one ({}) selects every Pod.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Rules are the requirements, with unique names. A Pod passes a stage when it passes every rule of that stage.
	// +kubebuilder:validation:MaxItems=24
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Rules []TransitionRule `json:"rules,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// MirrorPodDisruptionBudget is whether to maintain a PodDisruptionBudget of the rule's name. Its minAvailable is
	// what the availablePolicy items of the rule require together, so that programs that respect PodDisruptionBudgets
	// only (cluster autoscalers, node upgraders) plan accordingly. The object is owned by the rule and is deleted with
	// it. Not in Kuperator v0.7.
	// +optional
	MirrorPodDisruptionBudget bool `json:"mirrorPodDisruptionBudget,omitempty"`
}

// TransitionRuleStage is a point of the Pod lifecycle at which rules are evaluated.
//
// +kubebuilder:validation:Enum=PreCheck;PostCheck
type TransitionRuleStage string

const (
	// StagePreCheck is before a Pod is taken out of traffic for an operation.
	StagePreCheck TransitionRuleStage = "PreCheck"
	// StagePostCheck is after the operation, before the Pod is brought back into traffic.
	StagePostCheck TransitionRuleStage = "PostCheck"
)

// TransitionRule is one requirement. Of AvailablePolicy, LabelCheck and Webhook only the first that is set applies. If
// none is set, the rule requires nothing.
//
// +kubebuilder:validation:XValidation:rule="size(self.name) > 0",message="name is required in every item of spec.rules: set one that no other item has"
type TransitionRule struct {
	// Name identifies the rule within its PodTransitionRule, in verdicts and in the annotation that skips rules.
	// Required.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Disabled is whether the rule is ignored.
	// +optional
	Disabled bool `json:"disabled,omitempty"`

	// Stage is the stage at which the rule is evaluated. Nil means PreCheck.
	// +optional
	Stage *TransitionRuleStage `json:"stage,omitempty"`

	// Conditions are the names of registered conditions. The rule applies to Pods that meet one of them. No condition
	// is registered, so a rule with conditions applies to no Pod.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Conditions []string `json:"conditions,omitempty"`

	// Filter restricts the rule to some of the Pods that the PodTransitionRule selects. Nil means all of them.
	// +optional
	Filter *TransitionRuleFilter `json:"filter,omitempty"`

	TransitionRuleDefinition `json:",inline"`
}

// TransitionRuleFilter restricts a rule to some Pods.
type TransitionRuleFilter struct {
	// LabelSelector matches the Pods to which the rule applies. Nil means all.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// TransitionRuleDefinition is the kind of a rule.
type TransitionRuleDefinition struct {
	// AvailablePolicy limits how many Pods may be out of service at the same time.
	// +optional
	AvailablePolicy *AvailableRule `json:"availablePolicy,omitempty"`

	// LabelCheck requires labels on the Pod.
	// +optional
	LabelCheck *LabelCheckRule `json:"labelCheck,omitempty"`

	// Webhook asks an HTTP server.
	// +optional
	Webhook *TransitionRuleWebhook `json:"webhook,omitempty"`
}

// AvailableRule limits how many of the selected Pods may be out of service at the same time. At least one limit is
// required. All limits that are set must hold.
//
// +kubebuilder:validation:XValidation:rule="has(self.maxUnavailableValue) || has(self.minAvailableValue) || has(self.maxUnavailablePolicy) || has(self.minAvailablePolicy) || has(self.topology) || has(self.groups)",message="availablePolicy needs maxUnavailableValue or minAvailableValue: set at least one (or maxUnavailablePolicy, minAvailablePolicy, topology, groups)"
type AvailableRule struct {
	// MaxUnavailablePolicy computes the maximum number of Pods out of service from the number of desired Pods, rounded
	// up.
	// +optional
	MaxUnavailablePolicy *AvailableAdaptivePolicy `json:"maxUnavailablePolicy,omitempty"`

	// MaxUnavailableValue is the maximum number of Pods out of service: a number, or a percentage ("25%", 0 to 100) of
	// the desired Pods, rounded up.
	// +optional
	MaxUnavailableValue *intstr.IntOrString `json:"maxUnavailableValue,omitempty"`

	// MinAvailablePolicy computes the minimum number of Pods in service from the number of desired Pods, rounded down.
	// +optional
	MinAvailablePolicy *AvailableAdaptivePolicy `json:"minAvailablePolicy,omitempty"`

	// MinAvailableValue is the minimum number of Pods in service: a number, or a percentage ("75%", 0 to 100) of the
	// desired Pods, rounded down.
	// +optional
	MinAvailableValue *intstr.IntOrString `json:"minAvailableValue,omitempty"`

	// Topology limits in how many topology domains Pods may be out of service at the same time. Not in Kuperator v0.7.
	// +optional
	Topology *TopologyBudget `json:"topology,omitempty"`

	// Groups limits in how many groups of Pods some may be out of service at the same time. Not in Kuperator v0.7.
	// +optional
	Groups *GroupBudget `json:"groups,omitempty"`
}

// TopologyBudget limits how many topology domains may be disrupted at the same time. A domain is disrupted while a
// selected Pod in it is out of service.
type TopologyBudget struct {
	// TopologyKey is the node label whose values are the domains, such as topology.kubernetes.io/zone. Pods on nodes
	// without the label form one domain together; Pods without a node are in no domain. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	TopologyKey string `json:"topologyKey"`

	// MaxDisruptedDomains is the maximum number of domains disrupted at the same time. Nil means 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxDisruptedDomains *int32 `json:"maxDisruptedDomains,omitempty"`
}

// GroupBudget limits how many groups of Pods may be disrupted at the same time: Pods that work as one, such as a leader
// and its workers. A group is disrupted while a selected Pod of it is out of service. Pods that are missing have no
// group.
type GroupBudget struct {
	// GroupKey is the Pod label whose values are the groups, such as leaderworkerset.sigs.k8s.io/group-index. A Pod
	// without the label is a group of its own. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	GroupKey string `json:"groupKey"`

	// SetKey is a second Pod label, such as leaderworkerset.sigs.k8s.io/name. Pods are of one group only if they have the
	// same values of both labels, so that a rule over several sets does not mix their groups; a Pod without this label
	// has the empty value. Empty means that groupKey alone tells groups apart.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^(([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`
	// +optional
	SetKey string `json:"setKey,omitempty"`

	// MaxDisruptedGroups is the maximum number of groups disrupted at the same time, over all Pods of the rule. Nil
	// means 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxDisruptedGroups *int32 `json:"maxDisruptedGroups,omitempty"`
}

// AvailableAdaptivePolicy computes a limit from the number of desired Pods.
type AvailableAdaptivePolicy struct {
	// ExpFunc is f(x) = coeff * x^pow, where x is the number of desired Pods. Nil means no limit.
	// +optional
	ExpFunc *ExpFunc `json:"expFunc,omitempty"`
}

// ExpFunc is f(x) = coeff * x^pow. A result below 0 counts as 0, a result above x as x.
//
// +kubebuilder:validation:XValidation:rule="!has(self.coeff) || self.coeff.matches('^[0-9]{1,9}([.][0-9]{1,9})?$')",fieldPath=".coeff",message="coeff must be a decimal number from 0, such as \"0.5\""
// +kubebuilder:validation:XValidation:rule="!has(self.pow) || self.pow.matches('^[0-9]{1,3}([.][0-9]{1,9})?$')",fieldPath=".pow",message="pow must be a decimal number from 0, such as \"0.5\""
type ExpFunc struct {
	// Coeff is the coefficient, a decimal number of at least 0. Empty means 1.
	// +kubebuilder:validation:MaxLength=20
	// +optional
	Coeff string `json:"coeff,omitempty"`

	// Pow is the exponent, a decimal number of at least 0. Empty means 1.
	// +kubebuilder:validation:MaxLength=20
	// +optional
	Pow string `json:"pow,omitempty"`
}

// LabelCheckRule requires labels on the Pod.
type LabelCheckRule struct {
	// Requires must match the Pod's labels. Required.
	Requires *metav1.LabelSelector `json:"requires"`
}

// TransitionRuleWebhook asks an HTTP server whether Pods may proceed.
//
// +kubebuilder:validation:XValidation:rule="has(self.clientConfig)",message="webhook.clientConfig is required: set its url"
type TransitionRuleWebhook struct {
	// ClientConfig is the server to ask, and how to connect to it. Required.
	// +optional
	ClientConfig WebhookClientConfig `json:"clientConfig,omitempty"`

	// FailurePolicy is the verdict when the server cannot be reached or fails: Fail refuses the Pods, Ignore lets them
	// proceed.
	// +kubebuilder:default=Ignore
	// +optional
	FailurePolicy *FailurePolicyType `json:"failurePolicy,omitempty"`

	// Parameters are sent with each Pod.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Parameters []Parameter `json:"parameters,omitempty"`
}

// FailurePolicyType is the verdict when a webhook cannot be reached or fails.
//
// +kubebuilder:validation:Enum=Ignore;Fail
type FailurePolicyType string

const (
	// FailurePolicyIgnore lets Pods proceed.
	FailurePolicyIgnore FailurePolicyType = "Ignore"
	// FailurePolicyFail refuses Pods.
	FailurePolicyFail FailurePolicyType = "Fail"
)

// WebhookClientConfig is the server of a webhook, and how to connect to it.
//
// +kubebuilder:validation:XValidation:rule="isURL(self.url) && url(self.url).getScheme() in ['http', 'https'] && url(self.url).getHostname() != \"\"",fieldPath=".url",message="url must be http://host or https://host, with an optional port, path and query",messageExpression="'url is \"' + self.url + '\": it must be http://host or https://host, with an optional port, path and query'"
// +kubebuilder:validation:XValidation:rule="!has(self.caBundle) || self.caBundle.matches('^[A-Za-z0-9+/=[:space:]]*$')",fieldPath=".caBundle",message="caBundle is not base64: set it to the base64 of PEM certificates, or leave it out"
// +kubebuilder:validation:XValidation:rule="!isURL(self.url) || url(self.url).getPort() == \"\" || (size(url(self.url).getPort()) <= 5 && int(url(self.url).getPort()) >= 1 && int(url(self.url).getPort()) <= 65535)",fieldPath=".url",message="url has a port that is none: use one between 1 and 65535"
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^[A-Za-z]+://[^/?#]*@')",fieldPath=".url",message="url has a user name or password, which every reader of the rule sees: remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.secretName) || self.secretName == \"\" || (self.url.startsWith('https://') && (!has(self.poll) || self.poll.url.startsWith('https://')))",fieldPath=".secretName",message="credentials are sent over https only: use https in url and poll.url, or remove secretName"
type WebhookClientConfig struct {
	// URL is where the request is posted: http or https, with a host.
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url"`

	// CABundle is the base64 of PEM certificates that the server's certificate is verified against. Empty means the
	// system's trust roots.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// Poll configures how to fetch the result of a task when the server answers that it needs time. Nil means that the
	// server must answer at once.
	// +optional
	Poll *WebhookPoll `json:"poll,omitempty"`

	// SecretName is the name of a Secret in the rule's namespace with credentials for both URLs: "token" is sent as a
	// bearer token; "tls.crt" and "tls.key" are the client certificate and its key, in PEM. It requires https. Empty
	// means no credentials. Not in Kuperator v0.7.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	// +optional
	SecretName string `json:"secretName,omitempty"`
}

// WebhookPoll configures how to fetch the result of a task.
//
// +kubebuilder:validation:XValidation:rule="isURL(self.url) && url(self.url).getScheme() in ['http', 'https'] && url(self.url).getHostname() != \"\"",fieldPath=".url",message="url must be http://host or https://host, with an optional port, path and query",messageExpression="'url is \"' + self.url + '\": it must be http://host or https://host, with an optional port, path and query'"
// +kubebuilder:validation:XValidation:rule="!has(self.caBundle) || self.caBundle.matches('^[A-Za-z0-9+/=[:space:]]*$')",fieldPath=".caBundle",message="caBundle is not base64: set it to the base64 of PEM certificates, or leave it out"
// +kubebuilder:validation:XValidation:rule="!isURL(self.url) || url(self.url).getPort() == \"\" || (size(url(self.url).getPort()) <= 5 && int(url(self.url).getPort()) >= 1 && int(url(self.url).getPort()) <= 65535)",fieldPath=".url",message="url has a port that is none: use one between 1 and 65535"
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^[A-Za-z]+://[^/?#]*@')",fieldPath=".url",message="url has a user name or password, which every reader of the rule sees: remove it"
type WebhookPoll struct {
	// URL is where the result is read: http or https, with a host. The task's ID is added as a query parameter.
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url"`

	// RawQueryKey is the key of that query parameter. Empty means "task-id".
	// +kubebuilder:validation:MaxLength=253
	// +optional
	RawQueryKey string `json:"rawQueryKey,omitempty"`

	// CABundle is the base64 of PEM certificates that the server's certificate is verified against. Empty means the
	// system's trust roots.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// IntervalSeconds is the interval between polls, in seconds. Nil means 5.
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +optional
	IntervalSeconds *int64 `json:"intervalSeconds,omitempty"`

	// TimeoutSeconds is the maximum duration of the whole task, in seconds. Nil means 60.
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +optional
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
}

// Parameter is a value that is sent to a webhook with each Pod. Value takes precedence over ValueFrom. If neither is
// set, the value is empty.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && self.key != \"\"",message="key is required in every item of webhook.parameters: set the name under which the value is sent"
type Parameter struct {
	// Key is the name of the parameter. Required.
	// +optional
	Key string `json:"key,omitempty"`

	// Value is the literal value.
	// +optional
	Value string `json:"value,omitempty"`

	// ValueFrom takes the value from the Pod.
	// +optional
	ValueFrom *ParameterSource `json:"valueFrom,omitempty"`
}

// ParameterSource takes a value from the Pod.
type ParameterSource struct {
	// FieldRef is a field of the Pod: metadata.name, metadata.namespace, metadata.uid, metadata.labels,
	// metadata.annotations, metadata.labels['key'], metadata.annotations['key'], or any dotted path such as
	// status.podIP.
	// +optional
	FieldRef *corev1.ObjectFieldSelector `json:"fieldRef,omitempty"`

	// Type is ignored. It exists for compatibility with Kuperator v0.7.
	// +optional
	Type ParameterSourceType `json:"type,omitempty"`
}

// ParameterSourceType is ignored. It exists for compatibility with Kuperator v0.7.
type ParameterSourceType string

// PodTransitionRuleStatus is the ledger of a rule's grants, and the reasons of refusals.
type PodTransitionRuleStatus struct {
	// UpdateTime is when the status last changed.
	// +optional
	UpdateTime *metav1.Time `json:"updateTime,omitempty"`

	// ObservedGeneration is the generation of the spec to which this status refers.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Targets are the names of all Pods that the selector matches, in any state, sorted. It is updated within some
	// seconds, and is truncated to 5000 Pods and to 128 KiB of names. No decision depends on it.
	// +listType=atomic
	// +optional
	Targets []string `json:"targets,omitempty"`

	// Details are the verdicts on Pods in a stage, sorted by Pod name: at most 64 on granted Pods and 64 on blocked
	// Pods. Every grant is in Grants.
	// +listType=atomic
	// +optional
	Details []TransitionDetail `json:"details,omitempty"`

	// RuleStates are the tasks of webhook rules.
	// +listType=atomic
	// +optional
	RuleStates []RuleState `json:"ruleStates,omitempty"`

	// Conditions are of the types RuleReady, RuleReconciling and RuleStalled.
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// Desired is the number of desired Pods: the selected Pods, and those that their owners have yet to create.
	// +kubebuilder:default=0
	// +optional
	Desired int32 `json:"desired,omitempty"`

	// Available is the number of selected Pods that are in service and not granted.
	// +kubebuilder:default=0
	// +optional
	Available int32 `json:"available,omitempty"`

	// Granted is the number of Pods with a grant.
	// +kubebuilder:default=0
	// +optional
	Granted int32 `json:"granted,omitempty"`

	// Blocked is the number of Pods in a stage without a grant, including those that are not in Details.
	// +kubebuilder:default=0
	// +optional
	Blocked int32 `json:"blocked,omitempty"`

	// Grants are the operations that the rule permits. A Pod is granted by all rules that select it, or by none:
	// lifecycle-controller acts only on a grant that each rule in its Rules has as well. A grant is held until the Pod
	// is back in service or gone, or until the request is cancelled. A grant that is not used yet is valid only under
	// the generation of the spec for which it was given. A Pod has at most one grant per stage.
	// +listType=atomic
	// +optional
	Grants []PodGrant `json:"grants,omitempty"`
}

// PodGrant permits operations on one Pod to leave one stage.
type PodGrant struct {
	// PodName is the name of the Pod.
	PodName string `json:"podName"`

	// PodUID is the UID of the Pod. A later Pod of the same name is not covered.
	PodUID types.UID `json:"podUID"`

	// Stage is the stage that the Pod may leave.
	Stage TransitionRuleStage `json:"stage"`

	// Operations are the requests covered. Any other request needs its own grant.
	// +listType=map
	// +listMapKey=id
	// +optional
	Operations []GrantedOperation `json:"operations,omitempty"`

	// Rules are the PodTransitionRules that were evaluated together for this grant, including this one, sorted by name.
	// The grant is valid only if each of them has it.
	// +listType=map
	// +listMapKey=uid
	// +optional
	Rules []RuleReference `json:"rules,omitempty"`

	// GrantTime is when the grant was first written.
	// +optional
	GrantTime metav1.Time `json:"grantTime,omitempty"`

	// Generation is the generation of the rule's spec under which the operations were granted. Under another generation
	// the grant permits no operation that still waits, until it is renewed. 0 means status.observedGeneration.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// GrantedOperation is one request that a grant covers.
type GrantedOperation struct {
	// ID is the ID of the operation on the Pod.
	ID string `json:"id"`

	// Type is the type of the operation.
	// +optional
	Type string `json:"type,omitempty"`

	// Request is the value of the Pod's operating label for this ID when it was granted. Another value is another
	// request.
	// +optional
	Request string `json:"request,omitempty"`
}

// RuleReference identifies a PodTransitionRule of the same namespace.
type RuleReference struct {
	// Name is the name of the PodTransitionRule.
	Name string `json:"name"`

	// UID is the UID of the PodTransitionRule.
	UID types.UID `json:"uid"`
}

// TransitionDetail is the verdict on one Pod in a stage.
type TransitionDetail struct {
	// Name is the name of the Pod.
	// +optional
	Name string `json:"name,omitempty"`

	// Stage is the stage that the Pod is in.
	// +optional
	Stage TransitionRuleStage `json:"stage,omitempty"`

	// Passed is whether the Pod passed every rule of the stage.
	Passed bool `json:"passed"`

	// PassedRules are the names of the rules that the Pod passed.
	// +listType=atomic
	// +optional
	PassedRules []string `json:"passedRules,omitempty"`

	// RejectInfo are the rules that the Pod did not pass, with the reasons.
	// +listType=atomic
	// +optional
	RejectInfo []RejectInfo `json:"rejectInfo,omitempty"`
}

// RejectInfo is the reason why a Pod did not pass a rule.
type RejectInfo struct {
	// RuleName is the name of the rule.
	// +optional
	RuleName string `json:"ruleName,omitempty"`

	// Reason is the human-readable reason. It has no live counters, so it changes only with the verdict.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// RuleState are the tasks of one webhook rule.
type RuleState struct {
	// Name is the name of the rule.
	// +optional
	Name string `json:"name,omitempty"`

	// WebhookStatus are the tasks of its webhook.
	// +optional
	WebhookStatus *WebhookStatus `json:"webhookStatus,omitempty"`
}

// WebhookStatus are the tasks of a webhook.
type WebhookStatus struct {
	// TaskStates are the tasks that are being polled, sorted by task ID.
	// +listType=atomic
	// +optional
	TaskStates []TaskInfo `json:"taskStates,omitempty"`

	// History are the tasks that finished or failed in the last ten minutes, sorted by task ID.
	// +listType=atomic
	// +optional
	History []TaskInfo `json:"history,omitempty"`
}

// TaskInfo is one task of a webhook.
type TaskInfo struct {
	// TaskID is the ID that the server gave the task, or else the trace ID of the request.
	// +optional
	TaskID string `json:"taskId,omitempty"`

	// Processing are the names of the Pods that are not approved yet.
	// +listType=atomic
	// +optional
	Processing []string `json:"processing,omitempty"`

	// Approved are the names of the Pods that are approved.
	// +listType=atomic
	// +optional
	Approved []string `json:"approved,omitempty"`

	// BeginTime is when the task was first requested.
	// +optional
	BeginTime *metav1.Time `json:"beginTime,omitempty"`

	// LastTime is when the server last answered.
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`

	// Message is the server's last message, truncated to 256 characters.
	// +optional
	Message string `json:"message,omitempty"`

	// Subjects are the requests that the task is about. An answer applies to these only, and not to a later request on
	// the same Pod or to a later Pod of the same name. Not in Kuperator v0.7.
	// +listType=atomic
	// +optional
	Subjects []TaskSubject `json:"subjects,omitempty"`
}

// TaskSubject is what a webhook was asked about: the operations on one Pod that wait at one stage.
type TaskSubject struct {
	// PodName is the name of the Pod.
	PodName string `json:"podName"`

	// PodUID is the UID of the Pod.
	PodUID types.UID `json:"podUID"`

	// Stage is the stage that the Pod waits to leave.
	// +optional
	Stage TransitionRuleStage `json:"stage,omitempty"`

	// Operations are the requests that wait.
	// +listType=atomic
	// +optional
	Operations []GrantedOperation `json:"operations,omitempty"`

	// Approved is whether the server has approved it.
	// +optional
	Approved bool `json:"approved,omitempty"`
}

// PodTransitionRuleList is a list of PodTransitionRules.
//
// +kubebuilder:object:root=true
type PodTransitionRuleList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodTransitionRule `json:"items"`
}
