package e2e

import (
	"bufio"
	"bytes"
	"context"
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
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/internal/plugin"
	"kusionstack.io/kuperator/internal/testkit/browser"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// dashboard runs the command for a namespace until the test is over, and gives the page's address.
func (w *world) dashboard(t *testing.T, namespace string) string {
	t.Helper()
	out, into := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var problems bytes.Buffer
	go func() {
		defer func() { _ = into.Close() }()
		ended <- plugin.Run(ctx, []string{"dashboard", "--kubeconfig", w.AdminKubeconfig, "-n", namespace},
			genericiooptions.IOStreams{In: strings.NewReader(""), Out: into, ErrOut: &problems})
	}()
	var once sync.Once
	t.Cleanup(func() {
		stop()
		once.Do(func() { assert.Zero(t, <-ended, "Ctrl-C is a good end: %s", &problems) })
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		once.Do(func() { <-ended })
		t.Fatalf("%v: %s", err, &problems)
	}
	url := regexp.MustCompile(`^http://127\.0\.0\.1:\d+`).FindString(line)
	require.NotEmpty(t, url, line)
	require.Contains(t, line, "namespace "+namespace)
	return url
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
	url := w.dashboard(t, ns)
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
