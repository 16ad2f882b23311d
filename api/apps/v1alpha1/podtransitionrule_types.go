package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodTransitionRule says what must hold before the Pods that it selects may go from one stage of their lifecycle to the
// next. All rules that select a Pod must agree. A rule is in force as soon as it exists.
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

	// Spec is what the rule demands.
	// +optional
	Spec PodTransitionRuleSpec `json:"spec,omitempty"`

	// Status is the ledger of what was granted, and why not. Written by podtransitionrule-controller only.
	// +optional
	Status PodTransitionRuleStatus `json:"status,omitempty"`
}

// PodTransitionRuleSpec is what a PodTransitionRule demands.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector)",message="spec.selector is required: set matchLabels, or {} to select every Pod of the namespace"
type PodTransitionRuleSpec struct {
	// Selector chooses Pods of the rule's namespace. It is required; an empty one ({}) selects every Pod.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Rules are the demands. Each name occurs once. A Pod passes a stage when it passes every rule of that stage.
	// +kubebuilder:validation:MaxItems=24
	// +listType=map
	// +listMapKey=name
	// +patchStrategy=merge
	// +patchMergeKey=name
	// +optional
	Rules []TransitionRule `json:"rules,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// MirrorPodDisruptionBudget keeps a PodDisruptionBudget of the rule's name whose minAvailable is what the rule's
	// availablePolicy items demand together, so that programs that read only PodDisruptionBudgets (cluster autoscalers,
	// node upgraders) plan right. The object is owned by the rule and goes with it. Not in Kuperator v0.7.
	// +optional
	MirrorPodDisruptionBudget bool `json:"mirrorPodDisruptionBudget,omitempty"`
}

// TransitionRuleStage is a point of the Pod lifecycle at which rules are asked.
//
// +kubebuilder:validation:Enum=PreCheck;PostCheck
type TransitionRuleStage string

const (
	// StagePreCheck is before traffic is taken off the Pod for an operation.
	StagePreCheck TransitionRuleStage = "PreCheck"
	// StagePostCheck is after the operation, before traffic comes back.
	StagePostCheck TransitionRuleStage = "PostCheck"
)

// TransitionRule is one demand. Of AvailablePolicy, LabelCheck and Webhook only the first that is set is used; with none
// set the rule demands nothing.
//
// +kubebuilder:validation:XValidation:rule="size(self.name) > 0",message="name is required in every item of spec.rules: set one that no other item has"
type TransitionRule struct {
	// Name identifies the rule within its PodTransitionRule, in verdicts and in the skip annotation. Required.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Disabled ignores the rule.
	// +optional
	Disabled bool `json:"disabled,omitempty"`

	// Stage is where the rule is asked. Nil means PreCheck.
	// +optional
	Stage *TransitionRuleStage `json:"stage,omitempty"`

	// Conditions names registered conditions; the rule applies to Pods that meet one of them. None is registered, so a rule
	// with conditions applies to no Pod.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Conditions []string `json:"conditions,omitempty"`

	// Filter narrows the Pods that the rule applies to. Nil means all that the PodTransitionRule selects.
	// +optional
	Filter *TransitionRuleFilter `json:"filter,omitempty"`

	TransitionRuleDefinition `json:",inline"`
}

// TransitionRuleFilter narrows the Pods that a rule applies to.
type TransitionRuleFilter struct {
	// LabelSelector matches the Pods that the rule applies to. Nil means all.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// TransitionRuleDefinition is the kind of a rule.
type TransitionRuleDefinition struct {
	// AvailablePolicy bounds how many Pods may be out of service at once.
	// +optional
	AvailablePolicy *AvailableRule `json:"availablePolicy,omitempty"`

	// LabelCheck demands labels of the Pod.
	// +optional
	LabelCheck *LabelCheckRule `json:"labelCheck,omitempty"`

	// Webhook asks an HTTP server.
	// +optional
	Webhook *TransitionRuleWebhook `json:"webhook,omitempty"`
}

// AvailableRule bounds how many of the selected Pods may be out of service at once. At least one bound is required; all
// that are set must hold.
//
// +kubebuilder:validation:XValidation:rule="has(self.maxUnavailableValue) || has(self.minAvailableValue) || has(self.maxUnavailablePolicy) || has(self.minAvailablePolicy) || has(self.topology)",message="availablePolicy needs maxUnavailableValue or minAvailableValue: set at least one (or maxUnavailablePolicy, minAvailablePolicy, topology)"
type AvailableRule struct {
	// MaxUnavailablePolicy computes how many Pods may be out of service from the desired Pods, rounded up.
	// +optional
	MaxUnavailablePolicy *AvailableAdaptivePolicy `json:"maxUnavailablePolicy,omitempty"`

	// MaxUnavailableValue is how many Pods may be out of service: a number, or a percentage ("25%", 0 to 100) of the
	// desired Pods, rounded up.
	// +optional
	MaxUnavailableValue *intstr.IntOrString `json:"maxUnavailableValue,omitempty"`

	// MinAvailablePolicy computes how many Pods must stay in service from the desired Pods, rounded down.
	// +optional
	MinAvailablePolicy *AvailableAdaptivePolicy `json:"minAvailablePolicy,omitempty"`

	// MinAvailableValue is how many Pods must stay in service: a number, or a percentage ("75%", 0 to 100) of the desired
	// Pods, rounded down.
	// +optional
	MinAvailableValue *intstr.IntOrString `json:"minAvailableValue,omitempty"`

	// Topology bounds in how many topology domains Pods may be out of service at once. Not in Kuperator v0.7.
	// +optional
	Topology *TopologyBudget `json:"topology,omitempty"`
}

// TopologyBudget bounds how many topology domains may be disrupted at once. A domain is disrupted while one of the
// selected Pods in it is out of service.
type TopologyBudget struct {
	// TopologyKey is the node label whose values are the domains, such as topology.kubernetes.io/zone. Pods on nodes
	// without it are one domain together; Pods without a node are in none. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	TopologyKey string `json:"topologyKey"`

	// MaxDisruptedDomains is how many domains may be disrupted at once. Nil means 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxDisruptedDomains *int32 `json:"maxDisruptedDomains,omitempty"`
}

// AvailableAdaptivePolicy computes a bound from the number of desired Pods.
type AvailableAdaptivePolicy struct {
	// ExpFunc is f(x) = coeff * x^pow, x being the number of desired Pods. Nil means that the policy demands nothing.
	// +optional
	ExpFunc *ExpFunc `json:"expFunc,omitempty"`
}

// ExpFunc is f(x) = coeff * x^pow. A result below 0 counts as 0, one above x as x.
//
// +kubebuilder:validation:XValidation:rule="!has(self.coeff) || self.coeff.matches('^[0-9]{1,9}([.][0-9]{1,9})?$')",fieldPath=".coeff",message="coeff must be a decimal number from 0, such as \"0.5\""
// +kubebuilder:validation:XValidation:rule="!has(self.pow) || self.pow.matches('^[0-9]{1,3}([.][0-9]{1,9})?$')",fieldPath=".pow",message="pow must be a decimal number from 0, such as \"0.5\""
type ExpFunc struct {
	// Coeff is the coefficient, a decimal number from 0. Empty means 1.
	// +kubebuilder:validation:MaxLength=20
	// +optional
	Coeff string `json:"coeff,omitempty"`

	// Pow is the power, a decimal number from 0. Empty means 1.
	// +kubebuilder:validation:MaxLength=20
	// +optional
	Pow string `json:"pow,omitempty"`
}

// LabelCheckRule demands labels of the Pod.
type LabelCheckRule struct {
	// Requires must match the Pod's labels. Required.
	Requires *metav1.LabelSelector `json:"requires"`
}

// TransitionRuleWebhook asks an HTTP server whether Pods may go on.
//
// +kubebuilder:validation:XValidation:rule="has(self.clientConfig)",message="webhook.clientConfig is required: set its url"
type TransitionRuleWebhook struct {
	// ClientConfig says where and how to ask. Required.
	// +optional
	ClientConfig WebhookClientConfig `json:"clientConfig,omitempty"`

	// FailurePolicy says what holds when the server cannot be asked: Fail rejects, Ignore lets Pods go on.
	// +kubebuilder:default=Ignore
	// +optional
	FailurePolicy *FailurePolicyType `json:"failurePolicy,omitempty"`

	// Parameters are sent with each Pod.
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	// +optional
	Parameters []Parameter `json:"parameters,omitempty"`
}

// FailurePolicyType says what holds when a webhook cannot be asked.
//
// +kubebuilder:validation:Enum=Ignore;Fail
type FailurePolicyType string

const (
	// FailurePolicyIgnore lets Pods go on.
	FailurePolicyIgnore FailurePolicyType = "Ignore"
	// FailurePolicyFail rejects Pods.
	FailurePolicyFail FailurePolicyType = "Fail"
)

// WebhookClientConfig says where and how to ask a webhook.
//
// +kubebuilder:validation:XValidation:rule="isURL(self.url) && url(self.url).getScheme() in ['http', 'https'] && url(self.url).getHostname() != \"\"",fieldPath=".url",message="url must be http://host or https://host, with an optional port, path and query",messageExpression="'url is \"' + self.url + '\": it must be http://host or https://host, with an optional port, path and query'"
// +kubebuilder:validation:XValidation:rule="!has(self.caBundle) || self.caBundle.matches('^[A-Za-z0-9+/=[:space:]]*$')",fieldPath=".caBundle",message="caBundle is not base64: set it to the base64 of PEM certificates, or leave it out"
// +kubebuilder:validation:XValidation:rule="!isURL(self.url) || url(self.url).getPort() == \"\" || (size(url(self.url).getPort()) <= 5 && int(url(self.url).getPort()) >= 1 && int(url(self.url).getPort()) <= 65535)",fieldPath=".url",message="url has a port that is none: use one between 1 and 65535"
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^[A-Za-z]+://[^/?#]*@')",fieldPath=".url",message="url has a user name or password, which everybody who reads the rule sees: remove it"
// +kubebuilder:validation:XValidation:rule="!has(self.secretName) || self.secretName == \"\" || (self.url.startsWith('https://') && (!has(self.poll) || self.poll.url.startsWith('https://')))",fieldPath=".secretName",message="credentials are sent over https only: use https in url and poll.url, or remove secretName"
type WebhookClientConfig struct {
	// URL is where the question is posted: http or https, with a host.
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url"`

	// CABundle is PEM certificates in base64, against which the server's certificate is checked. Empty means the
	// certificates of the system.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// Poll says how to ask for the result of a task when the server answers that it needs time. Nil means that it must
	// answer at once.
	// +optional
	Poll *WebhookPoll `json:"poll,omitempty"`

	// SecretName names a Secret of the rule's namespace with credentials for both URLs: "token" is sent as a bearer
	// token, "tls.crt" and "tls.key" are the client certificate, PEM. https only. Empty means no credentials. Not in
	// Kuperator v0.7.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	// +optional
	SecretName string `json:"secretName,omitempty"`
}

// WebhookPoll says how to ask for the result of a task.
//
// +kubebuilder:validation:XValidation:rule="isURL(self.url) && url(self.url).getScheme() in ['http', 'https'] && url(self.url).getHostname() != \"\"",fieldPath=".url",message="url must be http://host or https://host, with an optional port, path and query",messageExpression="'url is \"' + self.url + '\": it must be http://host or https://host, with an optional port, path and query'"
// +kubebuilder:validation:XValidation:rule="!has(self.caBundle) || self.caBundle.matches('^[A-Za-z0-9+/=[:space:]]*$')",fieldPath=".caBundle",message="caBundle is not base64: set it to the base64 of PEM certificates, or leave it out"
// +kubebuilder:validation:XValidation:rule="!isURL(self.url) || url(self.url).getPort() == \"\" || (size(url(self.url).getPort()) <= 5 && int(url(self.url).getPort()) >= 1 && int(url(self.url).getPort()) <= 65535)",fieldPath=".url",message="url has a port that is none: use one between 1 and 65535"
// +kubebuilder:validation:XValidation:rule="!self.url.matches('^[A-Za-z]+://[^/?#]*@')",fieldPath=".url",message="url has a user name or password, which everybody who reads the rule sees: remove it"
type WebhookPoll struct {
	// URL is where the result is read: http or https, with a host. The task's ID is added as a query.
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url"`

	// RawQueryKey is the key of that query. Empty means "task-id".
	// +kubebuilder:validation:MaxLength=253
	// +optional
	RawQueryKey string `json:"rawQueryKey,omitempty"`

	// CABundle is PEM certificates in base64, against which the server's certificate is checked. Empty means the
	// certificates of the system.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// IntervalSeconds is the time between two polls, in seconds. Nil means 5.
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +optional
	IntervalSeconds *int64 `json:"intervalSeconds,omitempty"`

	// TimeoutSeconds is the life of the whole task, in seconds. Nil means 60.
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +optional
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`
}

// Parameter is one value sent to a webhook with each Pod. Value wins over ValueFrom; with neither the value is empty.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && self.key != \"\"",message="key is required in every item of webhook.parameters: set the name under which the value is sent"
type Parameter struct {
	// Key names the parameter. Required.
	// +optional
	Key string `json:"key,omitempty"`

	// Value is the value itself.
	// +optional
	Value string `json:"value,omitempty"`

	// ValueFrom takes the value from the Pod.
	// +optional
	ValueFrom *ParameterSource `json:"valueFrom,omitempty"`
}

// ParameterSource takes a value from the Pod.
type ParameterSource struct {
	// FieldRef names a field of the Pod: metadata.name, metadata.namespace, metadata.uid, metadata.labels,
	// metadata.annotations, metadata.labels['key'], metadata.annotations['key'], or any dotted path such as status.podIP.
	// +optional
	FieldRef *corev1.ObjectFieldSelector `json:"fieldRef,omitempty"`

	// Type is part of Kuperator's API and used by nobody.
	// +optional
	Type ParameterSourceType `json:"type,omitempty"`
}

// ParameterSourceType is part of Kuperator's API and used by nobody.
type ParameterSourceType string

// PodTransitionRuleStatus is the ledger of what a rule granted, and why not.
type PodTransitionRuleStatus struct {
	// UpdateTime is when the status last changed.
	// +optional
	UpdateTime *metav1.Time `json:"updateTime,omitempty"`

	// ObservedGeneration is the generation of the spec that this status answers to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Targets are the names of all Pods that the selector matches, sorted, whatever their state. It follows within some
	// seconds. Of more than 5000 Pods, or names of more than 128 KiB together, it has the first. No decision depends on it.
	// +listType=atomic
	// +optional
	Targets []string `json:"targets,omitempty"`

	// Details are the verdicts on Pods in a stage, sorted by name: up to 64 of those granted and of those blocked. Grants has
	// every grant.
	// +listType=atomic
	// +optional
	Details []TransitionDetail `json:"details,omitempty"`

	// RuleStates is the progress of webhook rules.
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

	// Desired is the number of Pods that should be there: those selected, and those that their owners still lack.
	// +optional
	Desired int32 `json:"desired,omitempty"`

	// Available is the number of selected Pods that are in service and not granted.
	// +optional
	Available int32 `json:"available,omitempty"`

	// Granted is the number of Pods with a grant.
	// +optional
	Granted int32 `json:"granted,omitempty"`

	// Blocked is the number of Pods in a stage without a grant, whether or not Details has them.
	// +optional
	Blocked int32 `json:"blocked,omitempty"`

	// Grants are what the rule lets go on. A Pod is granted by all rules that select it, or by none: lifecycle-controller acts
	// only on a set that is complete by the Rules of each. A grant is held until the Pod is back in service, gone, or the
	// request is cancelled; one that has not been used counts only under the spec that it was given under. A Pod occurs at most
	// once per stage.
	// +listType=atomic
	// +optional
	Grants []PodGrant `json:"grants,omitempty"`
}

// PodGrant lets operations on one Pod leave one stage.
type PodGrant struct {
	// PodName is the name of the Pod.
	PodName string `json:"podName"`

	// PodUID is the UID of the Pod; a Pod of the same name that comes later is not covered.
	PodUID types.UID `json:"podUID"`

	// Stage is the stage that the Pod may leave.
	Stage TransitionRuleStage `json:"stage"`

	// Operations are the requests covered. A request that is not listed must wait for its own grant.
	// +listType=map
	// +listMapKey=id
	// +optional
	Operations []GrantedOperation `json:"operations,omitempty"`

	// Rules are the PodTransitionRules that were evaluated together for this grant, this one included, sorted by name. The
	// grant counts only if each of them has it.
	// +listType=map
	// +listMapKey=uid
	// +optional
	Rules []RuleReference `json:"rules,omitempty"`

	// GrantTime is when the grant was first written.
	// +optional
	GrantTime metav1.Time `json:"grantTime,omitempty"`

	// Generation is that of the rule's spec under which the operations were granted. Once the spec is another, the grant lets
	// no operation go on that still waits, until it was given anew under that spec. If it is missing it is that of
	// status.observedGeneration.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// GrantedOperation is one request that a grant covers.
type GrantedOperation struct {
	// ID is the operation's ID on the Pod.
	ID string `json:"id"`

	// Type is the operation's type.
	// +optional
	Type string `json:"type,omitempty"`

	// Request is the value of the Pod's operating label for this ID when it was granted: another value is another request.
	// +optional
	Request string `json:"request,omitempty"`
}

// RuleReference identifies a PodTransitionRule of the same namespace.
type RuleReference struct {
	// Name is the name of the PodTransitionRule.
	Name string `json:"name"`

	// UID is its UID.
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

	// Passed says whether every rule of the stage was passed.
	Passed bool `json:"passed"`

	// PassedRules are the names of the rules passed.
	// +listType=atomic
	// +optional
	PassedRules []string `json:"passedRules,omitempty"`

	// RejectInfo says which rules were not passed, and why.
	// +listType=atomic
	// +optional
	RejectInfo []RejectInfo `json:"rejectInfo,omitempty"`
}

// RejectInfo says why a Pod did not pass a rule.
type RejectInfo struct {
	// RuleName is the name of the rule.
	// +optional
	RuleName string `json:"ruleName,omitempty"`

	// Reason is for people. It has no live counters, so it does not change while nothing else does.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// RuleState is the progress of one webhook rule.
type RuleState struct {
	// Name is the name of the rule.
	// +optional
	Name string `json:"name,omitempty"`

	// WebhookStatus is what its webhook is busy with.
	// +optional
	WebhookStatus *WebhookStatus `json:"webhookStatus,omitempty"`
}

// WebhookStatus is what a webhook is busy with.
type WebhookStatus struct {
	// TaskStates are the tasks being polled, sorted by task ID.
	// +listType=atomic
	// +optional
	TaskStates []TaskInfo `json:"taskStates,omitempty"`

	// History are tasks that finished or failed in the last ten minutes, sorted by task ID.
	// +listType=atomic
	// +optional
	History []TaskInfo `json:"history,omitempty"`
}

// TaskInfo is one task of a webhook.
type TaskInfo struct {
	// TaskID is the server's name for the task, else the trace ID of the request.
	// +optional
	TaskID string `json:"taskId,omitempty"`

	// Processing are the names of the Pods not yet approved.
	// +listType=atomic
	// +optional
	Processing []string `json:"processing,omitempty"`

	// Approved are the names of the Pods approved.
	// +listType=atomic
	// +optional
	Approved []string `json:"approved,omitempty"`

	// BeginTime is when the task was first asked for.
	// +optional
	BeginTime *metav1.Time `json:"beginTime,omitempty"`

	// LastTime is when the server last answered.
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`

	// Message is what the server last said, shortened to 256 characters.
	// +optional
	Message string `json:"message,omitempty"`

	// Subjects are the requests that the task is about. An answer counts for these alone, not for a later request on the
	// same Pod or a later Pod of the same name. Not in Kuperator v0.7.
	// +listType=atomic
	// +optional
	Subjects []TaskSubject `json:"subjects,omitempty"`
}

// TaskSubject is what a webhook was asked about: the operations of one Pod that wait at one stage.
type TaskSubject struct {
	// PodName is the name of the Pod.
	PodName string `json:"podName"`

	// PodUID is the UID of the Pod.
	PodUID types.UID `json:"podUID"`

	// Stage is the stage that the Pod wants to leave.
	// +optional
	Stage TransitionRuleStage `json:"stage,omitempty"`

	// Operations are the requests that wait.
	// +listType=atomic
	// +optional
	Operations []GrantedOperation `json:"operations,omitempty"`

	// Approved says that the server has approved it.
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
