package suite

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// auditPolicy records every write, and of writes to Pods the answer as well: two
// answers with one resourceVersion show a write that changed nothing.
func auditPolicy(reads bool) []byte {
	type resources struct {
		Group     string   `json:"group"`
		Resources []string `json:"resources"`
	}
	type rule struct {
		Level             string      `json:"level"`
		Verbs             []string    `json:"verbs,omitempty"`
		Resources         []resources `json:"resources,omitempty"`
		OmitManagedFields *bool       `json:"omitManagedFields,omitempty"`
	}
	omit := true
	rules := []rule{
		{Level: "None", Verbs: []string{"get", "list", "watch"}},
		{Level: "RequestResponse", Verbs: []string{"create", "update", "patch", "delete"},
			Resources: []resources{{Resources: []string{"pods", "pods/*"}}}, OmitManagedFields: &omit},
		{Level: "Metadata"},
	}
	if reads {
		rules = rules[1:]
	}
	content, err := json.Marshal(map[string]any{
		"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
		"omitStages": []string{"RequestReceived", "Panic"}, "rules": rules,
	})
	if err != nil {
		panic(err) // strings only
	}
	return content
}

// Request is one answered request as the API server counted it; a watch counts
// when it begins.
type Request struct {
	Received time.Time
	// Took is how long the API server took to answer, admission and storage included.
	Took time.Duration
	// User is the name the API server knows the caller by; UserAgent what the
	// caller says it is.
	User, UserAgent string
	// Credential tells tokens of one user apart, "" for a user without one; see Replica.Credential and Suite.Credential.
	Credential string
	Verb       string
	// Group, Resource and Subresource as in RBAC; Resource is "" for a request
	// that is not about an object.
	Group, Resource, Subresource string
	Namespace, Name              string
	// Code is the HTTP status of the answer.
	Code int
	// Unauthorized is true if no role allows the request. Admission, which runs later, has refusals with the same code:
	// that a namespace is being deleted is one.
	Unauthorized bool
	// ResourceVersion is that of the answered object, "" if it is not recorded.
	ResourceVersion string
	// NoOp is true if the write succeeded and changed nothing. It is known for
	// Pods only.
	NoOp bool
	// DryRun reports whether nothing was stored because nothing was to be.
	DryRun bool
	URI    string
}

// Component is the component that made the request, "" if none of ours did.
func (r Request) Component() string {
	name, ok := strings.CutPrefix(r.User, "system:serviceaccount:"+Namespace+":")
	if !ok || !slices.Contains(Components(), name) {
		return ""
	}
	return name
}

// Write reports whether the request asks for a change. A dry run does not.
func (r Request) Write() bool {
	return !r.DryRun && !slices.Contains([]string{"get", "list", "watch"}, r.Verb)
}

// deletesDryly reports whether the event is a deletion whose options, which come in its body, ask for a dry run.
func (e *auditEvent) deletesDryly() bool {
	if !strings.HasPrefix(e.Verb, "delete") || len(e.RequestObject) == 0 {
		return false
	}
	var options metav1.DeleteOptions
	return json.Unmarshal(e.RequestObject, &options) == nil && slices.Contains(options.DryRun, metav1.DryRunAll)
}

// OK reports whether the request succeeded.
func (r Request) OK() bool { return r.Code >= 200 && r.Code < 300 }

func (r Request) String() string {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	return fmt.Sprintf("%s %s %s %s/%s -> %d", cmp.Or(r.Component(), r.User), r.Verb, resource, r.Namespace,
		r.Name, r.Code)
}

// auditEvent is the part of audit.k8s.io/v1 Event that is read.
type auditEvent struct {
	Stage string `json:"stage"`
	Verb  string `json:"verb"`
	User  struct {
		Username string              `json:"username"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
	UserAgent  string `json:"userAgent"`
	RequestURI string `json:"requestURI"`
	ObjectRef  struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
	} `json:"objectRef"`
	// RequestObject is the body: of a deletion its options, of other requests anything, a JSON patch too.
	RequestObject  json.RawMessage `json:"requestObject"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	ResponseObject struct {
		Metadata struct {
			UID             string `json:"uid"`
			Name            string `json:"name"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	} `json:"responseObject"`
	Annotations map[string]string `json:"annotations"`
	Received    metav1.MicroTime  `json:"requestReceivedTimestamp"`
	Answered    metav1.MicroTime  `json:"stageTimestamp"`
}

// Requests returns the requests that the API server received since a moment, by any client, in the order in which it
// answered them. It is an error on a cluster that was not started by Start.
func (s *Suite) Requests(since time.Time) ([]Request, error) {
	if s.Cluster == nil {
		return nil, errors.New("the requests of a cluster that existed before are not counted: its audit log is its own")
	}
	file, err := os.Open(s.Cluster.AuditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAudit(file, since)
}

// AuditReader reads what the API server counted, each request once.
type AuditReader struct {
	path string
	at   int64
	seen answers
}

// AuditReader begins at the start of the log. It is an error on a cluster that was not started by Start.
func (s *Suite) AuditReader() (*AuditReader, error) {
	if s.Cluster == nil {
		return nil, errors.New("the requests of a cluster that existed before are not counted: its audit log is its own")
	}
	return &AuditReader{path: s.Cluster.AuditLog(), seen: answers{}}, nil
}

// Next returns the requests that were answered since the last call, in the order of the answers.
func (r *AuditReader) Next() ([]Request, error) {
	file, err := os.Open(r.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(r.at, io.SeekStart); err != nil {
		return nil, err
	}
	requests, read, err := r.seen.read(file)
	r.at += read
	return requests, err
}

func readAudit(from io.Reader, since time.Time) ([]Request, error) {
	requests, _, err := answers{}.read(from)
	return slices.DeleteFunc(requests, func(r Request) bool { return r.Received.Before(since) }), err
}

// answers are the UIDs and resourceVersions of Pods that were answered to writes.
type answers map[string]bool

// read returns the requests of whole lines, and how many bytes these have.
func (seen answers) read(from io.Reader) (requests []Request, read int64, err error) {
	lines := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return requests, read, nil // an unfinished line is for the next time
		}
		if err != nil {
			return nil, read, err
		}
		read += int64(len(line))
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, read, fmt.Errorf("reading the audit log: %w", err)
		}
		if e.Stage == "ResponseComplete" && e.Verb == "watch" {
			continue // it was counted when it began (ResponseStarted, which only long requests have)
		}
		requests = append(requests, seen.request(&e))
	}
}

func (seen answers) request(e *auditEvent) Request {
	r := Request{
		Received: e.Received.Time, Took: e.Answered.Sub(e.Received.Time), User: e.User.Username, UserAgent: e.UserAgent,
		Verb: e.Verb, URI: e.RequestURI,
		Credential: strings.Join(e.User.Extra["authentication.kubernetes.io/credential-id"], " "),
		Group:      e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
		Namespace: e.ObjectRef.Namespace, Name: cmp.Or(e.ObjectRef.Name, e.ResponseObject.Metadata.Name),
		Code: e.ResponseStatus.Code,
		Unauthorized: e.ResponseStatus.Code == http.StatusForbidden &&
			e.Annotations["authorization.k8s.io/decision"] != "allow",
		ResourceVersion: e.ResponseObject.Metadata.ResourceVersion,
		DryRun:          strings.Contains(e.RequestURI, "dryRun=All") || e.deletesDryly(),
	}
	if meta := e.ResponseObject.Metadata; r.Resource == "pods" && r.Write() && r.OK() && meta.UID != "" &&
		r.Verb != "delete" {
		answer := meta.UID + "@" + meta.ResourceVersion
		r.NoOp = seen[answer]
		seen[answer] = true
	}
	return r
}

// Counts are one user's writes.
type Counts struct {
	// Writes are the successful ones, NoOps among them.
	Writes int
	// NoOps are those that changed nothing.
	NoOps int
	// Conflicts were refused because the object had changed (409).
	Conflicts int
	// Refused were refused for any other reason.
	Refused int
	// Trials are dry runs, which are no writes.
	Trials int
	// Kinds are all writes, whatever their end, by "<verb> <resource>[/<subresource>]".
	Kinds map[string]int
}

// Total is the number of writes, whatever their end.
func (c Counts) Total() int { return c.Writes + c.Conflicts + c.Refused }

// PodWrites counts writes to Pods and their subresources by component, and by user name for all other clients.
func PodWrites(requests []Request) map[string]Counts {
	return countWrites(requests, func(r Request) bool { return r.Group == "" && r.Resource == "pods" })
}

// Writes counts all writes the same way.
func Writes(requests []Request) map[string]Counts {
	return countWrites(requests, func(Request) bool { return true })
}

func countWrites(requests []Request, counted func(Request) bool) map[string]Counts {
	all := map[string]Counts{}
	for _, r := range requests {
		if !r.Write() && !r.DryRun || !counted(r) {
			continue
		}
		who := cmp.Or(r.Component(), r.User)
		c, ok := all[who]
		if !ok {
			c.Kinds = map[string]int{}
		}
		if r.DryRun {
			c.Trials++
			all[who] = c
			continue
		}
		kind := r.Verb + " " + r.Resource
		if r.Subresource != "" {
			kind += "/" + r.Subresource
		}
		c.Kinds[kind]++
		switch {
		case r.OK():
			c.Writes++
			if r.NoOp {
				c.NoOps++
			}
		case r.Code == 409:
			c.Conflicts++
		default:
			c.Refused++
		}
		all[who] = c
	}
	return all
}

// Sum adds up the counts of the suite's own components.
func Sum(counts map[string]Counts) Counts {
	sum := Counts{Kinds: map[string]int{}}
	for _, name := range Components() {
		c := counts[name]
		sum.Writes += c.Writes
		sum.NoOps += c.NoOps
		sum.Conflicts += c.Conflicts
		sum.Refused += c.Refused
		sum.Trials += c.Trials
		for kind, n := range c.Kinds {
			sum.Kinds[kind] += n
		}
	}
	return sum
}
