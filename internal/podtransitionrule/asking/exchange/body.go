package exchange

import (
	"encoding/json"
	"fmt"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// MaxBody is about how many bytes of resources one POST carries; more are sent in another.
const MaxBody = 1 << 20

// Body is what is posted. Namespace, PodTransitionRule and what a Resource has of its kind are Kuperator's additions to
// the fields of Kuperator v0.7.
type Body struct {
	TraceID           string     `json:"traceId"`
	RuleName          string     `json:"ruleName"`
	Stage             string     `json:"stage,omitempty"` // as the rule sets it
	Namespace         string     `json:"namespace"`
	PodTransitionRule string     `json:"podTransitionRule"`
	Resources         []Resource `json:"resources"`
}

// Resource is one Pod that is asked about.
type Resource struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Name       string            `json:"name"`
	Parameters map[string]string `json:"parameters"`
	Namespace  string            `json:"namespace"`
	UID        string            `json:"uid"`
	Operations []Operation       `json:"operations"`
}

// Operation is an operation of the Pod that waits.
type Operation struct {
	ID   string `json:"id"`
	Type string `json:"type"`
}

// NewBody is a body without resources.
func NewBody(trace, namespace, rule string, check *appsv1alpha1.TransitionRule) Body {
	body := Body{TraceID: trace, RuleName: check.Name, Namespace: namespace, PodTransitionRule: rule,
		Resources: []Resource{}}
	if check.Stage != nil {
		body.Stage = string(*check.Stage)
	}
	return body
}

// NewResource is what is sent about a question.
func NewResource(namespace string, q grants.Question, parameters map[string]string) Resource {
	r := Resource{
		APIVersion: "core/v1", Kind: "Pod", Name: q.PodName, Namespace: namespace, UID: string(q.Pod),
		Parameters: parameters, Operations: []Operation{},
	}
	for _, o := range q.Requests {
		r.Operations = append(r.Operations, Operation{ID: o.ID, Type: o.Type})
	}
	return r
}

// Encode writes the body.
func (b Body) Encode() ([]byte, error) {
	encoded, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("writing the request: %w", err)
	}
	return encoded, nil
}
