package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/internal/dashboard"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/plugin"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/browser"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// dashboard runs the command for a namespace until the test is over, and gives the page's address and, with --actions,
// its token.
func (w *world) dashboard(t *testing.T, namespace string, flags ...string) (url, token string) {
	t.Helper()
	out, into := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var problems bytes.Buffer
	go func() {
		defer func() { _ = into.Close() }()
		ended <- plugin.Run(ctx, append([]string{"dashboard", "--kubeconfig", w.AdminKubeconfig, "-n", namespace}, flags...),
			genericiooptions.IOStreams{In: strings.NewReader(""), Out: into, ErrOut: &problems})
	}()
	var once sync.Once
	t.Cleanup(func() {
		stop()
		once.Do(func() { assert.Zero(t, <-ended, "Ctrl-C is a good end: %s", &problems) })
	})
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		once.Do(func() { <-ended })
		t.Fatalf("%v: %s", err, &problems)
	}
	go func() { _, _ = io.Copy(t.Output(), lines) }() // a terminal takes what is printed
	found := regexp.MustCompile(`^(http://127\.0\.0\.1:\d+)(?:/#token=(\w+))? shows `).FindStringSubmatch(line)
	require.NotNil(t, found, line)
	require.Contains(t, line, "namespace "+namespace)
	return found[1], found[2]
}

// TestTheLivePage: a rollout in a browser, from the real command on a real cluster.
func TestTheLivePage(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no Chromium: install Debian's package chromium")
	}
	w := together(t)
	ns, other := w.namespace(t), w.namespace(t)
	w.create(t, workload.CollaSet(ns, "web", image1, 10), workload.Rule(ns, "web", "2"), workload.Service(ns, "web"),
		workload.CollaSet(other, "hidden", image1, 1))
	w.waitServing(t, ns, "web", 10, image1)
	url, _ := w.dashboard(t, ns)
	page := browser.Open(t, url, "../..", "dashboard", "/api/why")
	page.Becomes(t, `document.querySelector("#calm-title").textContent.startsWith("1 calm workload, 10 Pods")`)
	assert.NotContains(t, browser.Value[string](t, page, `document.body.innerText`), "hidden")

	// With an image that never starts, two Pods hold the budget, and the others wait for them.
	w.setImage(t, ns, "web", "web:non-exist")
	page.Becomes(t,
		`document.querySelector(".card canvas")?.getAttribute("aria-label").includes("8 Waiting") && document.querySelector("#budgets").innerText.includes("2 of 2 out, 8 wait")`)
	card := browser.Value[string](t, page, `document.querySelector(".card").innerText`)
	assert.Contains(t, card, "→ web:non-exist, in place")
	assert.Contains(t, card, "budget web: 2 of 2 out, 8 wait")
	page.Do(t, browser.Eval(`document.querySelector(".card details").open = true`))
	page.Becomes(t, `document.querySelectorAll(".card tbody tr").length === 10`)
	page.Picture(t, "cluster-stuck")
	page.Do(t,
		browser.Eval(
			`[...document.querySelectorAll(".card tbody tr")].find((r) => r.innerText.includes("Waiting")).querySelector("button").click()`))
	page.Becomes(t,
		`document.querySelector("#why-text").innerText.includes("The budget is held by") && document.querySelectorAll("#why-text .first li").length === 2`)
	page.Picture(t, "cluster-why")

	w.setImage(t, ns, "web", image2)
	page.Becomes(t,
		`document.querySelector("#states").innerText === "Serving 10" && document.querySelector("#waits").childElementCount === 0`)

	page.Do(t, browser.Eval(`location.hash = "#/`+ns+`/web"`))
	page.Becomes(t,
		`(() => { const t = document.querySelector("#one-details").innerText; return t.includes("3 web-") && t.includes("10 Pods") && t.includes("Events"); })()`)
	page.Picture(t, "cluster-workload")

	t.Run("of another namespace nothing is told", func(t *testing.T) {
		pod := w.pods(t, other, "hidden")[0].Name
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("%s/api/why?kind=Pod&namespace=%s&name=%s", url, other, pod), nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		assert.Equal(t, http.StatusBadGateway, response.StatusCode)
	})
}

// TestThePageActs: with the rights of its user, which the API server decides on; on a real cluster the effect is there.
func TestThePageActs(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)
	w.create(t, workload.CollaSet(ns, "web", image1, 1))
	w.waitServing(t, ns, "web", 1, image1)
	w.setImage(t, ns, "web", image2)
	w.waitServing(t, ns, "web", 1, image2)
	w.kubectl(t, ns, "patch", "collaset", "web", "--type=merge", "-p",
		`{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":{"partition":1}}}}}`)
	for user, roles := range map[string][]string{"page-viewer": {"view"}, "page-editor": {"view", "edit"},
		"page-oncall": {"view", "kuperator-operate"}} {
		for _, role := range roles {
			w.create(t, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: user + "-" + role},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
			})
		}
	}
	await.Nil(t, "roles and policies to be in force", func() error {
		for user, says := range map[string]string{"page-viewer": "cannot patch", "page-oncall": "kuperator-operate",
			"page-editor": ""} {
			_, problems, code := w.kuperator(t, ns, "set", "image", "web", "main="+image1, "--dry-run=server", "--as="+user)
			if (code == 0) != (says == "") || !strings.Contains(problems, says) {
				return fmt.Errorf("%s: exit code %d: %s", user, code, problems)
			}
		}
		return nil
	})
	w.patch(t, ns, "web", `{"spec":{"paused":true}}`)

	for user, want := range map[string]map[insight.Verb]string{
		"page-viewer": {insight.VerbResume: "kuperator-edit", insight.VerbPromote: "kuperator-edit",
			insight.VerbUndo: "kuperator-edit", insight.VerbRestart: "is paused and would not restart"},
		"page-oncall": {insight.VerbResume: "", insight.VerbPromote: "", insight.VerbUndo: "the role edit does",
			insight.VerbRestart: "is paused and would not restart"},
		"page-editor": {insight.VerbResume: "", insight.VerbPromote: "", insight.VerbUndo: "",
			insight.VerbRestart: "is paused and would not restart"},
	} {
		t.Run(user, func(t *testing.T) {
			url, token := w.dashboard(t, ns, "--actions", "--as="+user)
			require.NotEmpty(t, token)
			ask := func(method, path, body string, into any) (int, string) {
				t.Helper()
				request, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
				require.NoError(t, err)
				for name, value := range map[string]string{"Kuperator-Token": token, "Origin": url,
					"Content-Type": "application/json"} {
					request.Header.Set(name, value)
				}
				response, err := http.DefaultClient.Do(request)
				require.NoError(t, err)
				defer func() { _ = response.Body.Close() }()
				text, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				if response.StatusCode == http.StatusOK {
					require.NoError(t, json.Unmarshal(text, into), string(text))
				}
				return response.StatusCode, string(text)
			}
			offer := dashboard.Offer{}
			question := "/api/actions?kind=CollaSet&namespace=" + ns + "&name=web"
			await.Nil(t, "undo, when the controller has seen the last change", func() error {
				status, text := ask(http.MethodGet, question, "", &offer)
				if status != http.StatusOK || strings.Contains(text, "has not seen") {
					return errors.New(text)
				}
				return nil
			})
			require.Len(t, offer.Actions, len(want))
			for _, a := range offer.Actions {
				says, known := want[a.Verb]
				require.True(t, known, a.Verb)
				assert.Equal(t, says == "", a.Refused == "", "%s: %s", a.Verb, a.Refused)
				assert.Contains(t, a.Refused, says, a.Verb)
			}
			order := fmt.Sprintf(`{"kind":"CollaSet","namespace":%q,"name":"web","verb":"resume","version":%q}`, ns,
				offer.Version)
			var outcome dashboard.Outcome
			status, text := ask(http.MethodPost, "/api/act", order, &outcome)
			if want[insight.VerbResume] != "" {
				assert.Equal(t, http.StatusForbidden, status)
				assert.Contains(t, text, "you may not patch collasets")
				return
			}
			require.Equal(t, http.StatusOK, status, text)
			assert.Equal(t, "collaset/web resumed", outcome.Text)
			assert.Equal(t, "", w.kubectl(t, ns, "get", "collaset", "web", "-o", "jsonpath={.spec.paused}"))
			status, text = ask(http.MethodPost, "/api/act", order, &outcome)
			assert.Equal(t, http.StatusConflict, status, text)
			w.patch(t, ns, "web", `{"spec":{"paused":true}}`) // as it was, for the next
		})
	}
}

// TestABrowserActs: a rollout is paused by two presses, and stays so.
func TestABrowserActs(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("no Chromium: install Debian's package chromium")
	}
	w := together(t)
	ns := w.namespace(t)
	w.create(t, workload.CollaSet(ns, "web", image1, 4))
	w.waitServing(t, ns, "web", 4, image1)
	url, token := w.dashboard(t, ns, "--actions")
	page := browser.Open(t, url+"/#token="+token, "../..", "dashboard")
	page.Becomes(t, `location.hash === "#/" && !document.querySelector("#all").hidden`)
	w.setImage(t, ns, "web", "web:non-exist")
	page.Do(t, browser.Eval(`location.hash = "#/`+ns+`/web"`))
	press := func(verb string) {
		page.Becomes(t, `document.querySelector('[data-id="act/`+verb+`"]:not([aria-disabled])')`)
		page.Do(t, browser.Click(`[data-id="act/`+verb+`"]`))
		page.Becomes(t, `!document.querySelector("#confirm-yes").disabled`)
		page.Picture(t, "cluster-confirm-"+verb)
		page.Do(t, browser.Click("#confirm-yes"))
	}
	press("pause")
	page.Becomes(t, `document.querySelector("#acts-result").innerText.startsWith("collaset/web paused.") &&
		document.querySelector("#one .badge")?.innerText === "paused"`)
	assert.Equal(t, "true", w.kubectl(t, ns, "get", "collaset", "web", "-o", "jsonpath={.spec.paused}"))
	press("undo")
	page.Becomes(t, `document.querySelector("#acts-result").innerText.includes("goes back to revision 1")`)
	w.waitServing(t, ns, "web", 4, image1) // those under way go back although it is paused, as the confirmation says
	press("resume")
	page.Becomes(t, `document.querySelector("#acts-result").innerText.startsWith("collaset/web resumed.")`)
	assert.Empty(t, w.kubectl(t, ns, "get", "collaset", "web", "-o", "jsonpath={.spec.paused}"))
}
