package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
)

// Version is the apiVersion of requests and answers.
const Version = "webhook.resource-consist.kusionstack.io/v1"

// action says what a request asks for.
type action string

const (
	// actionRead: say what is held. With members, of those; without, of all.
	actionRead action = "read"
	// actionApply: put these members into traffic, or take them out.
	actionApply action = "apply"
)

// request is what a server gets. Its fields are documented in docs/adapters/webhook.md.
type request struct {
	APIVersion string          `json:"apiVersion"`
	Action     action          `json:"action"`
	Employer   employer        `json:"employer"`
	Members    []requestMember `json:"members,omitempty"`
	Continue   string          `json:"continue,omitempty"`
}

type employer struct {
	Kind       string            `json:"kind"`
	Namespace  string            `json:"namespace"`
	Name       string            `json:"name"`
	UID        types.UID         `json:"uid"`
	Parameters map[string]string `json:"parameters,omitempty"`
}

type requestMember struct {
	ID        string   `json:"id"`
	Pod       podRef   `json:"pod"`
	Serve     *bool    `json:"serve,omitempty"` // nil in a read
	Addresses []string `json:"addresses,omitempty"`
	Revision  string   `json:"revision,omitempty"`
}

type podRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// answer is what a server says. Fields that it does not know are ignored.
type answer struct {
	APIVersion string         `json:"apiVersion"`
	Members    []answerMember `json:"members"`
	Errors     []answerError  `json:"errors"`
	Continue   string         `json:"continue"`
}

type answerMember struct {
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"`
	Serve     bool     `json:"serve"`
	Revision  string   `json:"revision"`
	Serving   *bool    `json:"serving"`
	Message   string   `json:"message"`
}

type answerError struct {
	ID      string `json:"id"`
	Message string `json:"message"`
}

// state is what the answer says is set of the member.
func (m answerMember) state() State {
	return State{Addresses: joined(m.Addresses), Revision: m.Revision, Serve: m.Serve}
}

// readAnswer decodes an answer and checks that it is one. An empty object, a page of a portal, or an answer of another
// version must never pass for "no Pod is in traffic".
func readAnswer(body []byte, a action) (*answer, error) {
	said := &answer{}
	if err := json.Unmarshal(body, said); err != nil {
		return nil, errors.New("the answer is not the JSON that it should be: " + cut(err.Error()))
	}
	if said.APIVersion != Version {
		return nil, fmt.Errorf("the answer's apiVersion is %q: it has to be %q", cut(said.APIVersion), Version)
	}
	if a == actionRead && said.Members == nil {
		return nil, errors.New("the answer to a read has no members: an empty list says that there are none")
	}
	seen := map[string]bool{}
	for i := range said.Members {
		m := &said.Members[i]
		switch {
		case m.ID == "":
			return nil, errors.New("the answer has a member without id")
		case seen[m.ID]:
			return nil, fmt.Errorf("the answer has member %s twice", cut(m.ID))
		case a == actionRead && m.Serving == nil:
			return nil, fmt.Errorf("the answer does not say whether member %s is serving", cut(m.ID))
		}
		seen[m.ID] = true
	}
	return said, nil
}

// explained is the error about a member in words that can stand in a status.
func (e answerError) explained() error {
	if text := cut(e.Message); text != "" {
		return errors.New(text)
	}
	return errors.New("the server gives no reason")
}

// cut makes a server's words short and printable: they go into conditions and events.
func cut(text string) string {
	const most = 256
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text))
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// memberID names a Pod: "<name>/<uid>", so that a Pod of the same name that comes later is another member.
func memberID(name string, uid types.UID) string { return name + "/" + string(uid) }

// podOf is the Pod that a member ID names.
func podOf(namespace, id string) podRef {
	name, uid, _ := strings.Cut(id, "/")
	return podRef{Namespace: namespace, Name: name, UID: uid}
}

// joined are addresses as a State has them; a server may repeat them in another order.
func joined(addresses []string) string {
	return strings.Join(slices.Sorted(slices.Values(addresses)), ",")
}

// addresses are the addresses of a state.
func (s State) addresses() []string {
	return slices.DeleteFunc(strings.Split(s.Addresses, ","), func(a string) bool { return a == "" })
}
