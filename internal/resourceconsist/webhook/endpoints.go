package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/callout"
)

const (
	// defaultTimeout and mostTimeout are those of one request.
	defaultTimeout = 5 * time.Second
	mostTimeout    = 30 * time.Second
	// maxName is what api.Placer leaves for the name of an endpoint.
	maxName = 62 - len(Name)
	// everywhere, as the one namespace of an endpoint, stands for all.
	everywhere = "*"
)

// endpoint is a server that the platform team has configured.
type endpoint struct {
	// Name is what Services choose it by: a DNS label.
	Name string `json:"name"`
	// URL is where requests are sent. http is for loopback only.
	URL string `json:"url"`
	// CABundle is PEM certificates that alone are trusted, CAFile a file of such. At most one of them; with none the
	// system's certificates are trusted.
	CABundle string `json:"caBundle,omitempty"`
	CAFile   string `json:"caFile,omitempty"`
	// TokenFile has a token that is sent as a bearer token.
	TokenFile string `json:"tokenFile,omitempty"`
	// CertificateFile and KeyFile have a client certificate and its key, as PEM; both or none.
	CertificateFile string `json:"certificateFile,omitempty"`
	KeyFile         string `json:"keyFile,omitempty"`
	// Timeout bounds one request. Zero means 5 s; at most 30 s.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// Namespaces are those whose Services may choose it; "*" alone means all. At least one.
	Namespaces []string `json:"namespaces"`
}

// endpoints are what a file configures. The file is read again for each call, so that a change counts at once. It is
// safe for concurrent use.
type endpoints struct {
	path string

	mu sync.Mutex
	// raw is what was read last, known what was last valid.
	raw   []byte
	known map[string]endpoint
	told  string // the last problem that was logged
}

// openEndpoints reads the file, which must be valid the first time.
func openEndpoints(path string) (*endpoints, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	known, err := parseEndpoints(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &endpoints{path: path, raw: raw, known: known}, nil
}

// errNotOffered is the error of an endpoint that a Service may not use, or of which there is none.
var errNotOffered = errors.New("the endpoint is not offered")

// notOffered is an errNotOffered that says why.
type notOffered string

func (e notOffered) Error() string        { return string(e) }
func (e notOffered) Is(target error) bool { return target == errNotOffered }

// of returns the endpoint that a Service in the namespace chose.
func (e *endpoints) of(ctx context.Context, namespace, name string) (endpoint, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if problem := e.refresh(); problem != e.told {
		e.told = problem
		if problem != "" {
			log.FromContext(ctx).Error(errors.New(problem),
				"The file of webhook endpoints cannot be used; what it said before counts.", "file", e.path)
		}
	}
	found, ok := e.known[name]
	if !ok {
		return endpoint{}, notOffered(fmt.Sprintf(
			"annotation %s: there is no endpoint %q; choose another, or have it configured with --webhook-endpoints of resourceconsist-controller",
			EndpointAnnotation, name))
	}
	if !slices.Contains(found.Namespaces, namespace) && found.Namespaces[0] != everywhere {
		return endpoint{}, notOffered(fmt.Sprintf(
			"annotation %s: Services of namespace %s may not use endpoint %q; choose another, or have the namespace listed with --webhook-endpoints of resourceconsist-controller",
			EndpointAnnotation, namespace, name))
	}
	return found, nil
}

// refresh takes in a change of the file and returns what is wrong with it, empty for nothing.
func (e *endpoints) refresh() string {
	raw, err := os.ReadFile(e.path)
	if err != nil {
		return err.Error()
	}
	if bytes.Equal(raw, e.raw) {
		return e.told
	}
	e.raw = raw
	known, err := parseEndpoints(raw)
	if err != nil {
		return err.Error()
	}
	e.known = known
	return ""
}

// parseEndpoints reads and checks a file, and says everything that is wrong at once.
func parseEndpoints(raw []byte) (map[string]endpoint, error) {
	var file struct {
		Endpoints []endpoint `json:"endpoints"`
	}
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		return nil, err
	}
	var errs []error
	known := map[string]endpoint{}
	for i, e := range file.Endpoints {
		where := fmt.Sprintf("endpoints[%d] (%s)", i, e.Name)
		if _, twice := known[e.Name]; twice {
			errs = append(errs, fmt.Errorf("%s: there are two of this name: rename one", where))
		}
		for _, err := range e.check() {
			errs = append(errs, fmt.Errorf("%s: %w", where, err))
		}
		if e.Timeout.Duration == 0 {
			e.Timeout.Duration = defaultTimeout
		}
		known[e.Name] = e
	}
	return known, errors.Join(errs...)
}

func (e endpoint) check() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if problems := validation.IsDNS1123Label(e.Name); len(problems) > 0 {
		wrong("name: %s", problems[0])
	}
	if len(e.Name) > maxName {
		wrong("name: at most %d characters", maxName)
	}
	u, err := callout.ParseURL(e.URL)
	if err != nil {
		wrong("url: %w", err)
	} else if u.Scheme != "https" && !isLoopback(u.Hostname()) {
		wrong("url: it has to be https; http is for loopback addresses only")
	} else if u.Scheme != "https" && e.TokenFile+e.CertificateFile != "" {
		wrong("url: credentials are sent over https only")
	}
	if e.CABundle != "" && e.CAFile != "" {
		wrong("caBundle and caFile: give one of them")
	}
	if e.CABundle != "" {
		if _, err := callout.ParseRoots([]byte(e.CABundle)); err != nil {
			wrong("%w: give certificates as PEM", err)
		}
	}
	if (e.CertificateFile == "") != (e.KeyFile == "") {
		wrong("certificateFile and keyFile: give both or none")
	}
	if e.Timeout.Duration < 0 || e.Timeout.Duration > mostTimeout {
		wrong("timeout: give more than 0s, and at most %s", mostTimeout)
	}
	if len(e.Namespaces) == 0 {
		wrong("namespaces: give at least one, or %q alone for all", everywhere)
	}
	for _, n := range e.Namespaces {
		switch {
		case n == everywhere && len(e.Namespaces) > 1:
			wrong("namespaces: %q stands for all; give it alone", everywhere)
		case n != everywhere && len(validation.IsDNS1123Label(n)) > 0:
			wrong("namespaces: %q is no name of a namespace", n)
		}
	}
	return errs
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// call is what a request to the endpoint needs. Files are read each time, so that a certificate or token that was
// renewed counts at once.
func (e endpoint) call(method string, body []byte) (callout.Call, error) {
	q := callout.Call{Method: method, URL: e.URL, Body: body, Roots: []byte(e.CABundle), Timeout: e.Timeout.Duration}
	var err error
	if e.CAFile != "" {
		if q.Roots, err = os.ReadFile(e.CAFile); err != nil {
			return q, fmt.Errorf("reading the certificates to trust: %w", err)
		}
		if _, err := callout.ParseRoots(q.Roots); err != nil { // an empty file must not mean the system's
			return q, fmt.Errorf("%s: %w", e.CAFile, err)
		}
	}
	if e.TokenFile == "" && e.CertificateFile == "" {
		return q, nil
	}
	q.Credentials = &callout.Credentials{Of: "endpoint " + e.Name}
	if e.TokenFile != "" {
		if q.Credentials.Token, err = readToken(e.TokenFile); err != nil {
			return q, err
		}
	}
	if e.CertificateFile != "" {
		if q.Credentials.Certificate, q.Credentials.Key, err = readPair(e.CertificateFile, e.KeyFile); err != nil {
			return q, err
		}
	}
	return q, nil
}

func readToken(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsAny(token, "\r\n\x00") {
		return "", fmt.Errorf("%s: a token is one line of text", path)
	}
	return token, nil
}

// readPair reads a certificate and its key, twice if the first time they do not belong together: they may have been
// renewed in between.
func readPair(certificateFile, keyFile string) (certificate, key []byte, err error) {
	for range 2 {
		if certificate, err = os.ReadFile(certificateFile); err != nil {
			return nil, nil, fmt.Errorf("reading the client certificate: %w", err)
		}
		if key, err = os.ReadFile(keyFile); err != nil {
			return nil, nil, fmt.Errorf("reading the client certificate's key: %w", err)
		}
		if _, err = tls.X509KeyPair(certificate, key); err == nil {
			return certificate, key, nil
		}
	}
	return nil, nil, fmt.Errorf("%s and %s cannot be used: %w", certificateFile, keyFile, err)
}
