package dashboard

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/testkit/browser"
)

// browse opens the page.
func browse(t *testing.T, url string) *browser.Page {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	return browser.Open(t, url+"/", "../..", "dashboard", "/api/why")
}

// busyFleet is n Pods in the middle of a rollout under a budget.
func busyFleet(n int) insight.Fleet {
	since := noon.Add(-90 * time.Second)
	blocked := insight.Reason{Code: "BudgetSpent", Message: "rule web: 20% of 40 Pods may be out of service, and 8 are",
		On: &insight.Ref{Kind: "PodTransitionRule", Namespace: "shop", Name: "web"}, Since: &since,
		Next: "wait, or raise maxUnavailableValue"}
	var pods []insight.Pod
	for i := range n {
		p := pod(fmt.Sprintf("web-%d", i), insight.StateServing)
		p.Since = &since
		operation := insight.Operation{ID: "collaset", Type: "update", Since: &since}
		switch i % 40 {
		case 1:
			p.State, operation.Phase, operation.Reasons = insight.StateWaiting, "PreCheck", []insight.Reason{blocked}
			p.Operations = []insight.Operation{operation}
		case 2:
			p.State, operation.Phase = insight.StateOperating, "Operate"
			operation.Reasons = []insight.Reason{{Code: "ImagePull", Message: "image web:3 cannot be pulled: not found",
				Since: &since}}
			p.Operations = []insight.Operation{operation}
		case 3:
			p.State, operation.Phase = insight.StateReturning, "PostCheck"
			operation.Reasons = []insight.Reason{{Code: "ReadinessGate", Message: "waits for its readiness gate"}}
			p.Operations = []insight.Operation{operation}
		case 4:
			p.State, p.Reasons = insight.StateDown,
				[]insight.Reason{{Code: "ContainerCrashing", Message: "container main restarted 7 times", Since: &since}}
		}
		pods = append(pods, p)
	}
	web := workload("web", pods...)
	desired := int32(n)
	web.Desired, web.CurrentRevision, web.UpdatedRevision, web.Updated = &desired, "web-1", "web-2", n/4
	db := workload("db", pod("db-0", insight.StateServing), pod("db-1", insight.StateServing))
	fleet := fleetOf(web, db)
	fleet.Components = []insight.Component{{Name: "collaset-controller", State: insight.ComponentRunning},
		{Name: "lifecycle-controller", State: insight.ComponentStale, Renewed: &since}}
	fleet.Budgets = []insight.Budget{{
		Namespace: "shop", Name: "web", Bounds: []string{"at most 20% unavailable"}, Desired: desired,
		Available: desired * 4 / 5, Granted: desired / 5, Blocked: int32(web.Counts[insight.StateWaiting]),
		Holders: []insight.Holder{{Pod: "web-2", Granted: true, Operation: "update (collaset)", Since: &since}},
	}}
	fleet.Jobs = []insight.Job{
		{Namespace: "shop", Name: "restart-db", Action: "Restart", Progress: "Succeeded", Total: 2, Succeeded: 2,
			Created: &since, Ended: &since},
		{Namespace: "shop", Name: "replace-web", Action: "Replace", Progress: "Processing", Total: 8, Succeeded: 3, Failed: 1,
			UnderWay: 2, Created: &since, Reasons: []insight.Reason{blocked}},
	}
	fleet.Decorations = []insight.Decoration{
		{Namespace: "shop", Name: "agent", UpdatedRevision: "agent-1", Matched: 4, Updated: 4, Available: 4},
		{Namespace: "shop", Name: "proxy", UpdatedRevision: "proxy-2", Matched: 8, Updated: 2, Available: 1,
			Reasons: []insight.Reason{blocked}},
	}
	return fleet
}

func TestInABrowser(t *testing.T) {
	source := &told{fleets: make(chan insight.Fleet), answer: insight.Answer{
		Summary: "Pod web-2 waits in Operate for its image.",
		Blocker: &insight.Reason{Code: "ImagePull", Message: "image web:3 cannot be pulled", Next: "put the image right"},
		Reasons: []insight.Reason{{Code: "ImagePull", Message: "image web:3 cannot be pulled", Next: "put the image right"},
			{Code: "BudgetSpent", Message: "<b>not markup</b>", Holders: []insight.Holder{{Pod: "web-4"}}}},
	}}
	url := serve(t, source)
	page := browse(t, url)
	source.fleets <- busyFleet(40)
	page.Becomes(t,
		`document.querySelector("#link").textContent === "live" && document.querySelectorAll(".card").length === 2`)
	text := func() string { return browser.Value[string](t, page, `document.body.innerText`) }

	t.Run("it says what is going on", func(t *testing.T) {
		for _, words := range []string{"namespace shop", "Serving 38", "Waiting 1", "Operating 1", "Down 1",
			"BudgetSpent 1 Pod", "ContainerCrashing", "shop/web at most 20% unavailable",
			"32 of 40 available, 8 granted, 1 waiting", "lifecycle-controller nobody leads", "10 of 40 at web-2",
			"4 of 8 targets done, 1 failed, 2 under way", "2 of 2 targets done"} {
			assert.Contains(t, text(), words)
		}
		assert.Equal(t, "(4) Kuperator", browser.Value[string](t, page, `document.title`))
		assert.Contains(t, browser.Value[string](t, page,
			`document.querySelector(".card canvas").getAttribute("aria-label")`),
			"Pods of shop/web: 1 Down, 1 Operating, 1 Returning, 1 Waiting, 36 Serving")
		page.Picture(t, "rollout")
	})

	t.Run("jobs have a bar, those that run first", func(t *testing.T) {
		assert.Equal(t, []string{"4/8", "2/2"}, browser.Value[[]string](t, page,
			`[...document.querySelectorAll("#jobs .meter")].map((m) => m.ariaValueNow + "/" + m.ariaValueMax)`))
		assert.Equal(t, "50%", browser.Value[string](t, page, `document.querySelector("#jobs .meter > div").style.width`))
		page.Do(t, browser.Eval(`document.querySelector("#jobs button").click()`))
		page.Becomes(t, `document.querySelector("#why-title").textContent === "OperationJob shop/replace-web"`)
		page.Do(t, browser.Click("#why-close"))
	})

	t.Run("decorations have a bar, those that wait first", func(t *testing.T) {
		assert.Equal(t, []string{"2/8", "4/4"}, browser.Value[[]string](t, page,
			`[...document.querySelectorAll("#decorations .meter")].map((m) => m.ariaValueNow + "/" + m.ariaValueMax)`))
		assert.Contains(t, text(), "2 of 8 Pods have proxy-2, 1 serve")
		page.Do(t, browser.Eval(`document.querySelector("#decorations button").click()`))
		page.Becomes(t, `document.querySelector("#why-title").textContent === "PodDecoration shop/proxy"`)
		page.Do(t, browser.Click("#why-close"))
	})

	t.Run("the picture has every Pod in the colour of its state", func(t *testing.T) {
		// The first cell's corner, and the cell of the Pod that is down.
		assert.Equal(t, browser.Value[string](t, page,
			`getComputedStyle(document.documentElement).getPropertyValue("--Serving").trim()`), pixel(t, page, 0, 2, 2))
		assert.Equal(t, browser.Value[string](t, page,
			`getComputedStyle(document.documentElement).getPropertyValue("--Down").trim()`), pixel(t, page, 4, 2, 2))
	})

	t.Run("changes arrive by themselves", func(t *testing.T) {
		fleet := busyFleet(40)
		fleet.Workloads[0].Paused = true
		fleet.Workloads = append(fleet.Workloads, workload("cache", pod("cache-0", insight.StateStarting)))
		fleet.Freezes = []insight.Freeze{{Namespace: "shop", Why: "audit"}}
		source.fleets <- fleet
		page.Becomes(t,
			`document.querySelectorAll(".card").length === 3 && document.body.innerText.includes("Namespace shop is frozen: audit")`)
		assert.Contains(t, text(), "paused")
		source.fleets <- busyFleet(40)
		page.Becomes(t, `document.querySelectorAll(".card").length === 2 && document.querySelector("#alarms").hidden`)
	})

	t.Run("why, by the keyboard alone", func(t *testing.T) {
		page.Do(t, browser.Eval(`document.querySelector(".card details summary").focus()`), chromedp.KeyEvent(kb.Enter))
		page.Becomes(t, `document.querySelectorAll(".card tbody tr").length === 4`)
		page.Do(t,
			browser.Eval(`[...document.querySelectorAll(".card tbody button")].find((b) => b.textContent === "web-2").focus()`),
			chromedp.KeyEvent(kb.Enter))
		page.Becomes(t, `document.querySelector("#why-text").innerText.includes("What to do: put the image right")`)
		assert.Equal(t, "Pod shop/web-2", browser.Value[string](t, page, `document.activeElement.textContent`))
		why := browser.Value[string](t, page, `document.querySelector("#why").innerText`)
		assert.Contains(t, why, "Pod web-2 waits in Operate for its image.")
		assert.Contains(t, why, "<b>not markup</b>", "what objects say is text")
		assert.Contains(t, why, "kubectl kuperator why pod/web-2 -n shop")
		page.Picture(t, "why")
		page.Do(t, chromedp.KeyEvent(kb.Escape))
		page.Becomes(t, `document.querySelector("#why").hidden`)
		assert.Equal(t, "web-2", browser.Value[string](t, page, `document.activeElement.textContent`),
			"back where it came from")
	})

	t.Run("why, by a click on the picture", func(t *testing.T) {
		cell := browser.Value[[]float64](t, page,
			`(() => { const b = document.querySelector(".card canvas").getBoundingClientRect(); return [b.left + 4 * 16 + 6, b.top + 6]; })()`)
		page.Do(t, chromedp.MouseClickXY(cell[0], cell[1]))
		page.Becomes(t, `document.querySelector("#why-title").textContent === "Pod shop/web-4"`)
		page.Do(t, browser.Click("#why-close"))
	})

	t.Run("the focus stays where it is while things change", func(t *testing.T) {
		focus := `[...document.querySelectorAll(".card tbody button")].find((b) => b.textContent === "web-3").focus()`
		page.Do(t, browser.Eval(focus), browser.Eval(`window.old = document.activeElement`))
		source.fleets <- busyFleet(41)
		page.Becomes(t, `!window.old.isConnected && document.activeElement.textContent === "web-3"`)
		source.fleets <- busyFleet(40)
	})

	t.Run("nothing moves under a finger", func(t *testing.T) {
		page.Do(t,
			browser.Eval(
				`dispatchEvent(new PointerEvent("pointerdown")); window.old = document.querySelector('[data-id="state/Serving"]')`))
		source.fleets <- busyFleet(42)
		page.Do(t,
			chromedp.Evaluate(
				`new Promise((seen) => { let n = 0; const f = () => (++n > 20 ? seen(true) : requestAnimationFrame(f)); f(); })`,
				nil,
				func(p *cdpruntime.EvaluateParams) *cdpruntime.EvaluateParams { return p.WithAwaitPromise(true) }))
		assert.True(t, browser.Value[bool](t, page, `window.old.isConnected`))
		page.Do(t, browser.Eval(`dispatchEvent(new PointerEvent("pointerup"))`))
		page.Becomes(t, `!window.old.isConnected && document.querySelector("#pods-total").textContent === "44"`)
		source.fleets <- busyFleet(40)
		page.Becomes(t, `document.querySelector("#pods-total").textContent === "42"`)
	})

	t.Run("found by name, state and reason", func(t *testing.T) {
		page.Do(t, chromedp.SendKeys("#find", "db-1"))
		page.Becomes(t,
			`document.querySelectorAll(".card").length === 1 && document.querySelector(".card h3").innerText.includes("shop/db")`)
		page.Do(t, chromedp.SendKeys("#find", " is nowhere"))
		page.Becomes(t, `!document.querySelector("#workloads-none").hidden`)
		page.Do(t,
			browser.Eval(`const f = document.querySelector("#find"); f.value = ""; f.dispatchEvent(new Event("input"))`),
			browser.Click(`[data-id="code/BudgetSpent"]`))
		page.Becomes(t,
			`document.querySelectorAll(".card").length === 1 && document.querySelectorAll(".card tbody tr").length === 1`)
		assert.Equal(t, "true", browser.Value[string](t, page,
			`document.querySelector('[data-id="code/BudgetSpent"]').getAttribute("aria-pressed")`))
		page.Do(t, browser.Click(`[data-id="code/BudgetSpent"]`), browser.Click(`[data-id="state/Down"]`))
		page.Becomes(t,
			`document.querySelectorAll(".card tbody tr").length === 1 && document.querySelector(".card tbody").innerText.includes("web-4")`)
		page.Do(t, browser.Click(`[data-id="state/Down"]`))
	})

	t.Run("everything that can be used has a name, and every text enough contrast", func(t *testing.T) {
		assert.Empty(t, browser.Value[[]string](t, page,
			`[...document.querySelectorAll("button, input, select, summary, canvas[role=img], [role=meter]")].filter((e) => !e.closest("[hidden]") &&
			!(e.getAttribute("aria-label") || e.textContent || e.labels?.[0]?.textContent || e.getAttribute("title"))).map((e) => e.outerHTML)`))
		for _, scheme := range []string{"light", "dark"} {
			page.Do(t, emulation.SetEmulatedMedia().WithFeatures(
				[]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
			colour := func(name string) [3]float64 {
				return rgb(t, browser.Value[string](t, page, `getComputedStyle(document.documentElement).getPropertyValue("--`+name+
					`").trim()`))
			}
			for _, page := range []string{"card", "page"} {
				for _, name := range []string{"text", "quiet", "link", "bad"} {
					assert.GreaterOrEqual(t, contrast(colour(name), colour(page)), 4.5, "%s on %s, %s (WCAG 2.2, 1.4.3)", name,
						page, scheme)
				}
			}
			for _, state := range insight.States() {
				assert.GreaterOrEqual(t, contrast(colour(string(state)), colour("card")), 3.0, "%s, %s (WCAG 2.2, 1.4.11)",
					state, scheme)
			}
			page.Picture(t, scheme)
		}
	})

	t.Run("it says that it is out of date", func(t *testing.T) {
		close(source.fleets)
		page.Becomes(t, `document.querySelector("#link").textContent.includes("the API server is gone")`)
	})
}

// pixel is the colour "#rrggbb" of the picture of the first workload, in cell i, dx and dy from its corner.
func pixel(t *testing.T, page *browser.Page, i, dx, dy int) string {
	t.Helper()
	return browser.Value[string](t, page,
		fmt.Sprintf(`(() => { const c = document.querySelector(".card canvas"), r = devicePixelRatio;
		const d = c.getContext("2d").getImageData((%d * 16 + %d) * r, %d * r, 1, 1).data; return "#" + [...d].slice(0, 3).map((n) => n.toString(16).padStart(2, "0")).join(""); })()`, i, dx, dy))
}

var hex = regexp.MustCompile(`^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$`)

func rgb(t *testing.T, colour string) (out [3]float64) {
	t.Helper()
	m := hex.FindStringSubmatch(colour)
	require.Len(t, m, 4, colour)
	for i := range out {
		n, err := strconv.ParseUint(m[i+1], 16, 8)
		require.NoError(t, err)
		out[i] = float64(n) / 255
	}
	return out
}

// contrast is the contrast ratio of WCAG 2.2.
func contrast(a, b [3]float64) float64 {
	luminance := func(c [3]float64) float64 {
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			v := c[i]
			if v <= 0.04045 {
				v /= 12.92
			} else {
				v = math.Pow((v+0.055)/1.055, 2.4)
			}
			sum += weight * v
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// TestTenThousandPods: the page holds them all, stays small and follows changes. Times are told, not judged.
func TestTenThousandPods(t *testing.T) {
	source := &told{fleets: make(chan insight.Fleet)}
	url := serve(t, source)
	page := browse(t, url)
	fleet := busyFleet(10_000)
	for i := range 1000 {
		fleet.Workloads = append(fleet.Workloads,
			workload(fmt.Sprintf("small-%d", i), pod(fmt.Sprintf("small-%d-0", i), insight.StateServing)))
	}
	source.fleets <- fleet
	page.Becomes(t,
		`document.querySelector("#workloads-total").textContent === "1,002" && document.querySelector(".card canvas").height > 100`)
	t.Logf("10,000 Pods and 1,000 workloads: %d elements; first picture after %.0f ms",
		browser.Value[int](t, page, `document.querySelectorAll("*").length`),
		browser.Value[float64](t, page, `performance.now()`))
	assert.Less(t, browser.Value[int](t, page, `document.querySelectorAll("*").length`), 6000,
		"what is not looked at is not built")
	page.Picture(t, "ten-thousand")

	fleet = busyFleet(10_000)
	fleet.Workloads[0].Pods[0].State = insight.StateDown
	page.Do(t, browser.Eval(`performance.mark("sent")`))
	source.fleets <- fleet
	page.Becomes(t, `document.querySelector("#workloads-total").textContent === "2"`)
	t.Logf("a change that takes 1,000 workloads away is seen after %.0f ms",
		browser.Value[float64](t, page, `performance.measure("seen", "sent").duration`))
	page.Do(t, browser.Eval(`document.querySelector(".card details summary").click()`))
	page.Becomes(t, `document.querySelectorAll(".card tbody tr").length === 100`)
	page.Do(t, chromedp.SendKeys("#find", "web-9999"))
	page.Becomes(t, `document.querySelectorAll(".card").length === 1`)
}
