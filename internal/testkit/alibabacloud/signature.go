package alibabacloud

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// input is one call, read.
type input struct {
	action string
	values url.Values
	body   []byte
}

// version is the version of the API that has the action.
var version = map[string]string{
	"DescribeHealthStatus": "2014-05-15", "DescribeVServerGroupAttribute": "2014-05-15",
	"AddVServerGroupBackendServers": "2014-05-15",
	"SetVServerGroupAttribute":      "2014-05-15", "RemoveVServerGroupBackendServers": "2014-05-15",
	"DescribeNetworkInterfaces": "2014-05-26", "AssumeRoleWithOIDC": "2015-04-01",
}

// read reads a call of the RPC style: parameters in the query, or in a form.
func read(r *http.Request) (input, *refusal) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return input{}, refuse(http.StatusBadRequest, "InvalidBody", "%s", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err := r.ParseForm(); err != nil {
		return input{}, refuse(http.StatusBadRequest, "InvalidParameter", "%s", err)
	}
	in := input{action: r.Header.Get("x-acs-action"), values: r.Form, body: body}
	asked := r.Header.Get("x-acs-version")
	if in.action == "" {
		in.action, asked = r.Form.Get("Action"), r.Form.Get("Version")
	}
	if version[in.action] == "" || version[in.action] != asked {
		return in, refuse(http.StatusNotFound, "InvalidVersion", "Specified parameter Version is not valid.")
	}
	return in, nil
}

const (
	algorithm = "ACS3-HMAC-SHA256"
	dateForm  = "2006-01-02T15:04:05Z"
	maxSkew   = 15 * time.Minute
)

// checkSignature follows "Request syntax and signature method V3" of the OpenAPI documentation: the signature is an
// HMAC of the digest of a canonical request, whose payload's digest, host and x-acs headers must all be signed.
func (c *Cloud) checkSignature(r *http.Request, in input) *refusal {
	fields := map[string]string{}
	kind, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(part, "=")
		fields[name] = value
	}
	if kind != algorithm || fields["Credential"] == "" || fields["Signature"] == "" {
		return refuse(http.StatusBadRequest, "IncompleteSignature",
			"The request signature does not conform to Aliyun standards.")
	}
	k, known := c.keys[fields["Credential"]]
	if !known {
		return refuse(http.StatusNotFound, "InvalidAccessKeyId.NotFound", "Specified access key is not found.")
	}
	if no := c.checkFreshness(r, k); no != nil {
		return no
	}
	digest := sha256.Sum256(in.body)
	if r.Header.Get("x-acs-content-sha256") != hex.EncodeToString(digest[:]) {
		return refuse(http.StatusBadRequest, "IncompleteSignature", "The digest of the body is wrong.")
	}
	signed := strings.Split(fields["SignedHeaders"], ";")
	for name := range r.Header {
		if lower := strings.ToLower(name); (strings.HasPrefix(lower, "x-acs-") || lower == "content-type") &&
			!slices.Contains(signed, lower) {
			return refuse(http.StatusBadRequest, "IncompleteSignature", "Header %s is not signed.", lower)
		}
	}
	if !slices.Contains(signed, "host") || !slices.IsSorted(signed) {
		return refuse(http.StatusBadRequest, "IncompleteSignature",
			"The host is not signed, or the signed headers are not in order.")
	}
	want := sign(r, signed, hex.EncodeToString(digest[:]), k.secret)
	if !hmac.Equal([]byte(want), []byte(fields["Signature"])) {
		return refuse(http.StatusBadRequest, "SignatureDoesNotMatch", "Specified signature does not match our calculation.")
	}
	c.nonces[r.Header.Get("x-acs-signature-nonce")] = true
	return nil
}

func (c *Cloud) checkFreshness(r *http.Request, k key) *refusal {
	date, err := time.Parse(dateForm, r.Header.Get("x-acs-date"))
	if err != nil || c.now().Sub(date).Abs() > maxSkew {
		return refuse(http.StatusBadRequest, "InvalidTimeStamp.Expired", "Specified time stamp or date value is expired.")
	}
	nonce := r.Header.Get("x-acs-signature-nonce")
	if nonce == "" || c.nonces[nonce] {
		return refuse(http.StatusBadRequest, "SignatureNonceUsed", "Specified signature nonce was used already.")
	}
	token := r.Header.Get("x-acs-security-token")
	switch {
	case k.token != "" && token == "":
		return refuse(http.StatusBadRequest, "MissingSecurityToken", "SecurityToken is mandatory for this action.")
	case token != k.token:
		return refuse(http.StatusBadRequest, "InvalidSecurityToken.Malformed", "Specified SecurityToken is malformed.")
	case k.token != "" && c.now().After(k.expires):
		return refuse(http.StatusBadRequest, "InvalidSecurityToken.Expired", "Specified SecurityToken is expired.")
	}
	return nil
}

func sign(r *http.Request, signed []string, digest, secret string) string {
	var headers strings.Builder
	for _, name := range signed {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		headers.WriteString(name + ":" + strings.TrimSpace(value) + "\n")
	}
	canonical := strings.Join([]string{r.Method, "/", canonicalQuery(r.URL.Query()), headers.String(),
		strings.Join(signed, ";"), digest}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(algorithm + "\n" + hex.EncodeToString(sum[:])))
	return hex.EncodeToString(mac.Sum(nil))
}

// canonicalQuery sorts the parameters by name and encodes them by RFC 3986.
func canonicalQuery(values url.Values) string {
	pairs := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		pairs = append(pairs, encode(name)+"="+encode(values.Get(name)))
	}
	return strings.Join(pairs, "&")
}

func encode(s string) string {
	return strings.NewReplacer("+", "%20", "*", "%2A", "%7E", "~").Replace(url.QueryEscape(s))
}
