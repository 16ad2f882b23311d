package controlplane

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testca"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestWebhookServer is down, half of it, hangs, or shows a certificate that the API server does not trust, while Pods
// that are not ours are created and changed and a rollout goes on. An expired certificate is in
// test/integration/webhook.
func TestWebhookServer(t *testing.T) {
	for _, fault := range []struct {
		name string
		// begin returns what ends it.
		begin func(*story.Plan) (end func() error)
	}{
		{"down", func(p *story.Plan) func() error {
			require.NoError(p, p.Kill(suite.Webhook))
			return func() error { return p.Restart(p.Context(), suite.Webhook) }
		}},
		{"hangs", func(p *story.Plan) func() error {
			require.NoError(p, p.Pause(suite.Webhook))
			return func() error { return p.Resume(suite.Webhook) }
		}},
		{"shows a certificate that nobody trusts", func(p *story.Plan) func() error {
			require.NoError(p, p.Kill(suite.Webhook))
			certificate, key := testca.New(p.T).Issue(p.T)
			pair, err := tls.X509KeyPair(certificate, key)
			require.NoError(p, err)
			listener, err := tls.Listen("tcp", p.WebhookAddress(suite.Webhook),
				&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
			require.NoError(p, err)
			go answerNothing(listener)
			return func() error {
				if err := listener.Close(); err != nil {
					return err
				}
				return p.Restart(p.Context(), suite.Webhook)
			}
		}},
		{"has one of two replicas away", oneOfTwoAway},
	} {
		if !story.All() && fault.name != "hangs" {
			continue
		}
		plan(t, fault.name, "webhook-server "+fault.name+" in a rollout", func(p *story.Plan) {
			p.WithRules("web", image1, 6, "2")
			foreign := func(name string) *corev1.Pod {
				return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image1}}}}
			}
			end := fault.begin(p)
			ended := false
			p.Cleanup(func() {
				if !ended {
					_ = end()
				}
			})
			p.Fault("webhook-server " + fault.name)
			began := time.Now()
			pod := foreign("foreign")
			require.NoError(p, p.Client.Create(p.Context(), pod))
			require.NoError(p, p.Client.Patch(p.Context(), pod,
				client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"changed":"true"}}}`))))
			p.Eventually("the kubelet's report on it", func() error {
				if err := p.Client.Get(p.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
					return err
				}
				if pod.Status.Phase != corev1.PodRunning {
					return fmt.Errorf("it is %s", pod.Status.Phase)
				}
				return nil
			})
			require.NoError(p, p.Client.Delete(p.Context(), pod))
			p.Logf("FIGURE a Pod that is not managed came, changed, ran and went in %s",
				time.Since(began).Round(time.Millisecond))

			p.SetImage("web", image2)
			p.WaitAtRest("web", 6, image2)
			slowest := map[string]time.Duration{}
			requests, err := p.Requests(began)
			require.NoError(p, err)
			for _, r := range requests {
				if r.Resource != "pods" || r.Namespace != p.Namespace || !r.Write() {
					continue
				}
				what := r.Verb + " pods/" + r.Subresource
				slowest[what] = max(slowest[what], r.Took)
				if r.Subresource == "status" {
					require.Contains(p, []int{200, 404, 409}, r.Code, "a kubelet's status write: %s", r)
				}
			}
			p.Logf("FIGURE the slowest writes to Pods meanwhile: %v", slowest)
			p.Checked("writes to Pods are not held up")
			require.NoError(p, end())
			ended = true
			p.SetImage("web", image3)
			p.WaitAtRest("web", 6, image3)
		})
	}
}

// oneOfTwoAway has the API server call two replicas by one address, of which one is killed: until a Service has
// noticed, every other connection fails.
func oneOfTwoAway(p *story.Plan) func() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(p, err)
	p.Cleanup(func() { _ = listener.Close() })
	url := "--advertise-url=https://" + listener.Addr().String()
	other, err := p.StartReplica(p.Context(), suite.Webhook, "other", url)
	require.NoError(p, err)
	p.Cleanup(func() { _ = other.Kill() })
	go inTurn(listener, p.WebhookAddress(suite.Webhook), other.WebhookAddress())
	require.NoError(p, p.Restart(p.Context(), suite.Webhook, url))
	p.Eventually("both replicas", func() error { return other.Ready(p.Context()) })
	require.NoError(p, other.Kill())
	return func() error {
		if err := p.Restart(p.Context(), suite.Webhook, ""); err != nil { // where it was
			return err
		}
		return listener.Close()
	}
}

// inTurn passes each connection on to the next of the addresses, and closes those that cannot be.
func inTurn(listener net.Listener, addresses ...string) {
	for n := 0; ; n++ {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			onward, err := net.Dial("tcp", addresses[n%len(addresses)])
			if err != nil {
				return
			}
			defer onward.Close()
			go func() {
				_, _ = io.Copy(onward, connection)
				_ = onward.Close()
			}()
			_, _ = io.Copy(connection, onward)
		}()
	}
}

// answerNothing takes connections, shows its certificate and says no more.
func answerNothing(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			_, _ = io.Copy(io.Discard, connection)
		}()
	}
}

// TestAWrongCertificateAuthority is written into the webhook configurations by a user: webhook-server puts its own
// back.
func TestAWrongCertificateAuthority(t *testing.T) {
	if !story.All() {
		t.Skip("FAULTS=all runs it")
	}
	plan(t, "overwritten", "wrong caBundle in the webhook configurations", func(p *story.Plan) {
		p.WithRules("web", image1, 4, "1")
		wrong := base64.StdEncoding.EncodeToString(testca.New(p.T).PEM())
		for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
			_, err := p.Kubectl(p.Context(), "patch", kind, suite.Webhook, "--type=json", "-p",
				fmt.Sprintf(`[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":%q}]`, wrong))
			require.NoError(p, err)
		}
		p.Fault("caBundle overwritten")
		p.SetImage("web", image2)
		p.WaitAtRest("web", 4, image2)
		p.Eventually("its own bundle", func() error {
			for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
				out, err := p.Kubectl(p.Context(), "get", kind, suite.Webhook, "-o",
					"jsonpath={.webhooks[*].clientConfig.caBundle}")
				if err != nil {
					return err
				}
				if strings.Contains(out, wrong) {
					return fmt.Errorf("%s has the wrong one", kind)
				}
			}
			return nil
		})
	})
}

// TestNoEvents has an API server that refuses every event, as one does whose disk for events is full. Events tell;
// nothing waits for one.
func TestNoEvents(t *testing.T) {
	plan(t, "refused", "all events refused in a rollout", func(p *story.Plan) {
		const policy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-events}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: ["", events.k8s.io], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [events]}
  validations:
  - {expression: "false", message: "no space left on device"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-events}
spec: {policyName: no-events, validationActions: [Deny]}
`
		_, err := p.KubectlWith(p.Context(), policy, "apply", "-f", "-")
		require.NoError(p, err)
		p.Cleanup(func() {
			_, _ = p.Kubectl(p.Context(), "delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "no-events",
				"--ignore-not-found")
		})
		p.Eventually("events to be refused", func() error {
			event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: "e-"},
				InvolvedObject: corev1.ObjectReference{Namespace: p.Namespace}}
			if p.Client.Create(p.Context(), event) == nil {
				return fmt.Errorf("one was taken")
			}
			return nil
		})
		began := time.Now()
		p.WithRules("web", image1, 6, "2")
		p.SetImage("web", image2)
		p.WaitAtRest("web", 6, image2)
		p.Scale("web", 3)
		p.WaitAtRest("web", 3, image2)
		requests, err := p.Requests(began)
		require.NoError(p, err)
		refused := 0
		for _, r := range requests {
			if r.Resource == "events" && r.Component() != "" && !r.OK() {
				refused++
			}
		}
		require.Positive(p, refused, "the suite says something in a rollout")
		p.Fault("events refused")
		p.Logf("%d events of the suite were refused", refused)
		_, err = p.Kubectl(p.Context(), "delete", "validatingadmissionpolicybinding", "no-events")
		require.NoError(p, err)
	})
}

// TestTheNamespaceGoes deletes the namespace midway through each operation: all that is in it goes, nothing is created
// again, and no finalizer is left behind.
func TestTheNamespaceGoes(t *testing.T) {
	operations := map[string]func(*story.Plan){
		"creation": func(p *story.Plan) {
			p.Create(workload.Service(p.Namespace, "web"), workload.Rule(p.Namespace, "web", "2"),
				workload.CollaSet(p.Namespace, "web", image1, 8))
			p.Eventually("a Pod", func() error { return p.Updated("web", 1, image1) })
		},
		"rollout in place": func(p *story.Plan) { rolling(p) },
		"rollout by recreation": func(p *story.Plan) {
			p.WithRules("web", image1, 6, "2")
			p.Patch("web", `{"spec":{"updateStrategy":{"podUpdatePolicy":"ReCreate"}}}`)
			p.SetImage("web", image2)
			p.Eventually("the rollout", func() error { return p.Updated("web", 1, image2) })
		},
		"rollout by replacement": func(p *story.Plan) {
			p.WithRules("web", image1, 6, "2")
			p.Patch("web", `{"spec":{"updateStrategy":{"podUpdatePolicy":"Replace"}}}`)
			p.SetImage("web", image2)
			p.Eventually("the rollout", func() error { return p.Updated("web", 1, image2) })
		},
		"scale-in": func(p *story.Plan) {
			p.WithRules("web", image1, 8, "2")
			p.Scale("web", 1)
		},
		"graceful deletion of Pods": func(p *story.Plan) {
			p.WithRules("web", image1, 4, "1")
			pods, err := p.Pods("web")
			require.NoError(p, err)
			for i := range pods {
				_ = p.Client.Delete(p.Context(), &pods[i]) // refused until it is out of service
			}
		},
	}
	names := make([]string, 0, len(operations))
	for name := range operations {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !story.All() && name != "rollout by recreation" {
			continue
		}
		for range story.Times(2) {
			plan(t, name, "namespace deleted in a "+name, func(p *story.Plan) {
				operations[name](p)
				require.NoError(p, p.StopObserver()) // the deletion of a namespace asks no rule
				p.Within(500 * time.Millisecond)
				deleted := time.Now()
				namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}}
				require.NoError(p, p.Client.Delete(p.Context(), namespace))
				p.Fault("namespace deleted")
				p.Eventually("the namespace to be gone", func() error {
					err := p.Client.Get(p.Context(), client.ObjectKeyFromObject(namespace), namespace)
					if err == nil {
						return fmt.Errorf("%v", namespace.Status.Conditions)
					}
					return client.IgnoreNotFound(err)
				})
				p.Logf("FIGURE the namespace was gone after %s", time.Since(deleted).Round(time.Millisecond))
				requests, err := p.Requests(deleted)
				require.NoError(p, err)
				for _, r := range requests {
					if r.Component() != "" && r.Namespace == p.Namespace && r.Verb == "create" && r.Resource != "events" &&
						r.Subresource == "" && r.Received.After(deleted.Add(5*time.Second)) {
						require.False(p, r.OK(), "made anew in a namespace that is going: %s", r)
					}
				}
				var sets appsv1alpha1.CollaSetList
				require.NoError(p, p.Client.List(p.Context(), &sets, client.InNamespace(p.Namespace)))
				require.Empty(p, sets.Items)
				p.Checked("nothing is left")
			})
		}
	}
}
