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

// busyFleet is n Pods in the middle of a rollout under a budget, beside a calm workload.
func busyFleet(n int) insight.Fleet {
	since := noon.Add(-90 * time.Second)
	out := max(3*int32(n)/40, 3)
	blocked := insight.Reason{Code: "BudgetSpent", Since: &since,
		Message: fmt.Sprintf("rule web, check budget: at most %d unavailable; %d desired, %d available", out, n, int32(n)-out),
		On:      &insight.Ref{Kind: "PodTransitionRule", Namespace: "shop", Name: "web"},
		Next:    "it goes on when one of those that are out of service is back: see why they are not"}
	var pods []insight.Pod
	for i := range n {
		p := pod(fmt.Sprintf("web-%d", i), insight.StateServing)
		p.Since = &since
		if i%40 > 1 && i%40 < 15 {
			p.Revision = "web-2"
		}
		operation := insight.Operation{ID: "collaset", Type: "update", Since: &since}
		switch i % 40 {
		case 1:
			p.State, operation.Phase, operation.Reasons = insight.StateWaiting, "PreCheck", []insight.Reason{blocked}
			p.Operations = []insight.Operation{operation}
		case 2:
			p.State, operation.Phase = insight.StateOperating, "Operate"
			operation.Reasons = []insight.Reason{{Code: "ImagePull", Message: "image web:2 cannot be pulled: not found",
				Since: &since, Next: "correct the image, or let the node reach the registry"}}
			p.Operations = []insight.Operation{operation}
		case 3:
			p.State, operation.Phase = insight.StateReturning, "PostCheck"
			operation.Reasons = []insight.Reason{{Code: "ReadinessGate", Message: "waits for its readiness gate"}}
			p.Operations = []insight.Operation{operation}
		case 4:
			p.State, p.Reasons = insight.StateDown,
				[]insight.Reason{{Code: "ContainerCrashing", Message: "container main restarted 7 times", Since: &since,
					Next: "kubectl -n shop logs web-4 -c main --previous"}}
		}
		pods = append(pods, p)
	}
	web := workload("web", pods...)
	desired, inPlace, expected := int32(n), true, noon.Add(4*time.Minute+30*time.Second)
	web.Desired, web.CurrentRevision, web.UpdatedRevision, web.Updated = &desired, "web-1", "web-2", 13*n/40
	web.Rules = []string{"web"}
	web.Course = &insight.Course{State: insight.RolloutWaits, InPlace: &inPlace, Expected: &expected,
		Images: []insight.CourseImage{{Container: "main", Image: "registry.example.com/shop/web:2",
			Before: "registry.example.com/shop/web:1"}, {Container: "proxy", Image: "proxy:7"}}}
	db := workload("db", pod("db-0", insight.StateServing), pod("db-1", insight.StateServing))
	fleet := fleetOf(web, db)
	fleet.Components = []insight.Component{{Name: "collaset-controller", State: insight.ComponentRunning},
		{Name: "lifecycle-controller", State: insight.ComponentRunning}}
	fleet.Budgets = []insight.Budget{{
		Namespace: "shop", Name: "web", Bounds: []string{fmt.Sprintf("budget: at most %d unavailable", out)},
		Desired: desired, Available: desired - out, Granted: out, Allowed: &out,
		Blocked: int32(web.Counts[insight.StateWaiting]),
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

// webDetails are what the page asks about CollaSet web.
func webDetails() insight.Details {
	inPlace, created := true, noon.Add(-time.Hour)
	return insight.Details{
		Answer: insight.Answer{Summary: "CollaSet web: 40 of 40 Pods", Events: []insight.Event{
			{Normal: true, Reason: "RolloutStarted", Message: "to revision web-2", Count: 1, Last: &created}}},
		Revisions: []insight.Revision{
			{Revision: 1, Name: "web-1", Created: created, Current: true, Pods: 27, Images: []string{"main=web:1"}},
			{Revision: 2, Name: "web-2", Created: noon, Updated: true, Pods: 13, Images: []string{"main=web:2"},
				InPlace: &inPlace}},
		PodEvents: []insight.PodEvent{{Pod: "web-2", Event: insight.Event{Reason: "BackOff", Count: 7, Last: &created,
			Message: "Back-off pulling image web:2"}}},
		Jobs: []string{"replace-web"}, Decorations: []string{"proxy"},
		Drains: []insight.Leaving{{Pod: "web-7", Node: "node-1", Cordoned: true, Asked: "replaced"}},
	}
}

func TestInABrowser(t *testing.T) {
	source := &told{fleets: make(chan insight.Fleet), answer: insight.Answer{
		Summary: "Pod web-2 waits in Operate for its image.",
		Blocker: &insight.Reason{Code: "ImagePull", Message: "image web:3 cannot be pulled", Next: "put the image right"},
		Reasons: []insight.Reason{{Code: "ImagePull", Message: "image web:3 cannot be pulled", Next: "put the image right"},
			{Code: "BudgetSpent", Message: "<b>not markup</b>", Holders: []insight.Holder{{Pod: "web-4"}}}},
		Pod: &insight.Pod{Namespace: "shop", Name: "web-2", State: insight.StateOperating,
			Operations: []insight.Operation{{ID: "collaset", Type: "update", Phase: "Operate"}}},
	}, details: webDetails()}
	url := serve(t, source)
	page := browse(t, url)
	page.Becomes(t, `!document.querySelector("#reading").hidden && document.querySelector("#all").hidden`)
	source.fleets <- busyFleet(40)
	page.Becomes(t,
		`document.querySelector("#link").textContent === "live" && document.querySelectorAll(".card").length === 1`)
	text := func() string { return browser.Value[string](t, page, `document.body.innerText`) }

	t.Run("a card has the rollout", func(t *testing.T) {
		card := browser.Value[string](t, page, `document.querySelector(".card").innerText`)
		for _, words := range []string{"shop/web", "web:1 → web:2, in place", "10 updated", "3 moving", "27 old", "of 40 Pods",
			"budget web: 3 of 3 out, 1 waits", "about 4 min left", "36 Serving", "1 Operating", "cut corner: old revision",
			"container main restarted 7 times", "rule web, check budget: at most 3 unavailable"} {
			assert.Contains(t, card, words)
		}
		assert.Equal(t, "shop/web: 10 updated, 3 moving, 27 old", browser.Value[string](t, page,
			`document.querySelector(".card .bar").getAttribute("aria-label")`))
		assert.Equal(t, []string{"10", "3", "27"}, browser.Value[[]string](t, page,
			`[...document.querySelectorAll(".card .bar > span")].map((s) => s.style.flexGrow)`))
		assert.Equal(t, "3/3", browser.Value[string](t, page,
			`(() => { const m = document.querySelector(".card .budget .meter"); return m.ariaValueNow + "/" + m.ariaValueMax; })()`))
		assert.Contains(t, browser.Value[string](t, page,
			`document.querySelector(".card canvas").getAttribute("aria-label")`),
			"Pods of shop/web: 1 Down, 1 Operating, 1 Returning, 1 Waiting, 36 Serving")
		page.Picture(t, "rollout")
	})

	t.Run("it says what is going on", func(t *testing.T) {
		for _, words := range []string{"kind-prod · namespace shop", "1 workload moves", "1 calm workload, 2 Pods", "Serving 38",
			"Waiting 1", "BudgetSpent 1 Pod", "ContainerCrashing", "shop/web budget: at most 3 unavailable",
			"37 of 40 available, 3 granted", "4 of 8 targets done, 1 failed, 2 under way", "2 of 2 targets done"} {
			assert.Contains(t, text(), words)
		}
		assert.Equal(t, "(4) Kuperator · kind-prod", browser.Value[string](t, page, `document.title`))
	})

	t.Run("calm workloads are folded", func(t *testing.T) {
		page.Do(t, browser.Eval(`document.querySelector("#calm").open = true`))
		page.Becomes(t, `document.querySelector("#calm-list").innerText.includes("shop/db 2 Pods")`)
		page.Do(t, browser.Eval(`document.querySelector("#calm").open = false`))
	})

	t.Run("a controller that does not run, and a freeze, are at the top", func(t *testing.T) {
		assert.True(t, browser.Value[bool](t, page, `document.querySelector("#alarms").hidden`), "waiting is no alarm")
		fleet := busyFleet(40)
		renewed := noon.Add(-time.Minute)
		fleet.Components[1] = insight.Component{Name: "lifecycle-controller", State: insight.ComponentStale, Holder: "pod-1",
			Renewed: &renewed}
		fleet.Freezes = []insight.Freeze{{Namespace: "shop", Why: "audit"}}
		source.fleets <- fleet
		page.Becomes(t, `!document.querySelector("#alarms").hidden`)
		alarms := browser.Value[string](t, page, `document.querySelector("#alarms").innerText`)
		for _, words := range []string{"Namespace shop is frozen: audit",
			"kubectl kuperator unfreeze shop --context=kind-prod", "lifecycle-controller is not running: pod-1 has stopped",
			"get deployment,pods -l app.kubernetes.io/name=lifecycle-controller --context=kind-prod"} {
			assert.Contains(t, alarms, words)
		}
		assert.Equal(t, rgb(t, browser.Value[string](t, page,
			`getComputedStyle(document.documentElement).getPropertyValue("--alarm").trim()`)),
			rgb(t, browser.Value[string](t, page,
				`"#" + getComputedStyle(document.querySelector("#alarms")).backgroundColor.match(/\d+/g)
				.map((n) => (+n).toString(16).padStart(2, "0")).join("")`)))
		page.Picture(t, "alarms")
		source.fleets <- busyFleet(40)
		page.Becomes(t, `document.querySelector("#alarms").hidden`)
	})

	t.Run("every problem has a command to copy", func(t *testing.T) {
		commands := browser.Value[[]string](t, page,
			`[...document.querySelectorAll(".card .reason")].map((r) => r.querySelector(".command code").textContent)`)
		assert.ElementsMatch(t, []string{"kubectl kuperator why pod/web-1 -n shop --context=kind-prod",
			"kubectl kuperator why pod/web-2 -n shop --context=kind-prod",
			"kubectl kuperator why pod/web-3 -n shop --context=kind-prod",
			"kubectl -n shop logs web-4 -c main --previous --context=kind-prod"}, commands)
		for next, want := range map[string][2]string{
			"see its log: kubectl -n shop logs --previous web-4": {"see its log", "kubectl -n shop logs --previous web-4"},
			"kubectl kuperator -n shop resume collaset/web":      {"", "kubectl kuperator -n shop resume collaset/web"},
			"ask alice, or end it: kubectl kuperator unfreeze --cluster. It was meant to end at 12:00": {
				"ask alice, or end it. It was meant to end at 12:00", "kubectl kuperator unfreeze --cluster"},
			"wait; then see whether it runs: kubectl kuperator doctor": {"wait; then see whether it runs", "kubectl kuperator doctor"},
			"find its writer (kubectl kuperator doctor lists those that are gone); remove it": {
				"find its writer (kubectl kuperator doctor lists those that are gone); remove it", ""},
			"": {"", ""},
		} {
			page.Do(t, browser.Eval(fmt.Sprintf(`window.split = null;
				import("./dom.js").then((m) => { window.split = m.splitNext(%q); })`, next)))
			page.Becomes(t, `window.split !== null`)
			assert.Equal(t, want, browser.Value[[2]string](t, page, `[window.split.words, window.split.command]`), next)
		}
		page.Do(t,
			browser.Eval(`navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }`),
			browser.Click(".card .command button"))
		page.Becomes(t, `window.copied === document.querySelector(".card .command code").textContent`)
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
		source.fleets <- fleet
		page.Becomes(t, `document.querySelectorAll(".card").length === 2`)
		assert.Contains(t, text(), "paused")
		source.fleets <- busyFleet(40)
		page.Becomes(t, `document.querySelectorAll(".card").length === 1`)
	})

	t.Run("a workload has an address", func(t *testing.T) {
		page.Do(t, browser.Eval(`document.querySelector('[data-id="open/CollaSet/shop/web"]').click()`))
		page.Becomes(t, `location.hash === "#/shop/web" && document.querySelectorAll("#one-details section").length === 7`)
		page.Becomes(t, `document.activeElement.id === "one-title"`)
		one := browser.Value[string](t, page, `document.querySelector("#one").innerText`)
		for _, words := range []string{"CollaSet shop/web", "40 Pods", "PreCheck", "old revision", "27 Pods", "main web:2",
			"no partition: all Pods are updated", "shop/replace-web Replace", "2 of 8 Pods have proxy-2",
			"web-7 on node-1, which is cordoned: evicted, is to be replaced", "kubectl kuperator drain-check node-1",
			"RolloutStarted to revision web-2", "web-2: BackOff ×7 Back-off pulling image web:2 60 min ago",
			"kubectl kuperator history collaset/web -n shop"} {
			assert.Contains(t, one, words)
		}
		assert.Equal(t, "Operate", browser.Value[string](t, page,
			`[...document.querySelectorAll("#one tbody tr")].find((r) => r.innerText.startsWith("web-2"))
			.querySelector("[aria-current=step]").textContent`))
		assert.Equal(t, "(4) web · kind-prod · Kuperator", browser.Value[string](t, page, `document.title`))
		page.Picture(t, "workload")
		page.Do(t, browser.Click("#back"))
		page.Becomes(t, `document.querySelector("#one").hidden && !document.querySelector("#all").hidden`)
		page.Do(t, browser.Eval(`location.hash = "#/shop/nowhere"`))
		page.Becomes(t, `!document.querySelector("#one-none").hidden`)
		page.Do(t, browser.Eval(`location.hash = "#/"`))
		page.Becomes(t, `!document.querySelector("#all").hidden`)
	})

	t.Run("the link for keyboards leads past the header, and nowhere else", func(t *testing.T) {
		page.Do(t, browser.Click(".skip"))
		assert.Equal(t, "main", browser.Value[string](t, page, `document.activeElement.id`))
		assert.Equal(t, "#/", browser.Value[string](t, page, `location.hash`))
	})

	t.Run("one namespace of several", func(t *testing.T) {
		fleet := busyFleet(40)
		other := workload("api", pod("api-0", insight.StateStarting))
		other.Namespace, other.Pods[0].Namespace = "pay", "pay"
		fleet.Workloads = append(fleet.Workloads, other)
		source.fleets <- fleet
		page.Becomes(t, `!document.querySelector("#namespace-label").hidden`)
		page.Do(t, browser.Eval(
			`const s = document.querySelector("#namespace"); s.value = "pay"; s.dispatchEvent(new Event("input"))`))
		page.Becomes(t, `location.hash === "#/pay" && document.querySelectorAll(".card").length === 1`)
		assert.Equal(t, "(1) pay · kind-prod · Kuperator", browser.Value[string](t, page, `document.title`))
		assert.NotContains(t, text(), "shop/web")
		page.Do(t, browser.Eval(`location.hash = "#/"`))
		source.fleets <- busyFleet(40)
		page.Becomes(t, `document.querySelector("#namespace-label").hidden && document.body.innerText.includes("shop/web")`)
	})

	t.Run("light, dark, or as the system has it", func(t *testing.T) {
		choose := func(theme string) {
			page.Do(t, browser.Eval(
				`{ const s = document.querySelector("#theme"); s.value = "`+theme+`"; s.dispatchEvent(new Event("input")); }`))
		}
		choose("dark")
		page.Becomes(t, `getComputedStyle(document.body).backgroundColor === "rgb(20, 23, 27)"`)
		choose("light")
		page.Becomes(t, `getComputedStyle(document.body).backgroundColor === "rgb(246, 247, 249)"`)
		choose("system")
	})

	t.Run("a finger gets the legend of a cell", func(t *testing.T) {
		page.Do(t, browser.Eval(`(() => { const c = document.querySelector('[data-key="workload/CollaSet/shop/web"] canvas'),
			b = c.getBoundingClientRect(); c.dispatchEvent(new PointerEvent("click", { pointerType: "touch", bubbles: true,
			clientX: b.left + 1 * 16 + 6, clientY: b.top + 6 })); })()`))
		tip := browser.Value[string](t, page, `document.querySelector("#tip").innerText`)
		assert.Contains(t, tip, "web-1\nWaiting: in service, an operation waits for permission\nrevision web-1, old")
		page.Do(t, browser.Click("#tip button"))
		page.Becomes(t,
			`document.querySelector("#why-title").textContent === "Pod shop/web-1" && document.querySelector("#tip").hidden`)
		page.Do(t, browser.Click("#why-close"))
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
		assert.Equal(t, "Operate",
			browser.Value[string](t, page, `document.querySelector("#why [aria-current=step]").textContent`))
		page.Picture(t, "why")
		page.Do(t, chromedp.KeyEvent(kb.Escape))
		page.Becomes(t, `document.querySelector("#why").hidden`)
		assert.Equal(t, "web-2", browser.Value[string](t, page, `document.activeElement.textContent`),
			"back where it came from")
	})

	t.Run("why, by a click on the picture", func(t *testing.T) {
		cell := browser.Value[[]float64](t, page,
			`(() => { const c = document.querySelector(".card canvas"); c.scrollIntoView({ block: "center" });
			const b = c.getBoundingClientRect(); return [b.left + 4 * 16 + 6, b.top + 6]; })()`)
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
		page.Becomes(t,
			`!window.old.isConnected && document.querySelector('[data-id="state/Serving"]').textContent === "Serving 39"`)
		source.fleets <- busyFleet(40)
		page.Becomes(t, `document.querySelector('[data-id="state/Serving"]').textContent === "Serving 38"`)
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
			`[...document.querySelectorAll("a, button, input, select, summary, canvas[role=img], [role=meter], [role=img]")]
			.filter((e) => !e.closest("[hidden]") &&
			!(e.getAttribute("aria-label") || e.textContent || e.labels?.[0]?.textContent || e.getAttribute("title"))).map((e) => e.outerHTML)`))
		for _, scheme := range []string{"light", "dark"} {
			prefer(t, page, scheme)
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
			assert.GreaterOrEqual(t, contrast(colour("on-alarm"), colour("alarm")), 4.5, "alarms, %s", scheme)
			assert.GreaterOrEqual(t, contrast(colour("old"), colour("card")), 3.0, "old in bars, %s", scheme)
			for _, state := range insight.States() {
				assert.GreaterOrEqual(t, contrast(colour(string(state)), colour("card")), 3.0, "%s, %s (WCAG 2.2, 1.4.11)",
					state, scheme)
			}
			page.Picture(t, scheme)
		}
	})

	t.Run("what is done stays for a while", func(t *testing.T) {
		fleet := busyFleet(40)
		db := &fleet.Workloads[1]
		db.Pods[0].State = insight.StateStarting
		db.Counts = map[insight.State]int{insight.StateStarting: 1, insight.StateServing: 1}
		db.Course = &insight.Course{State: insight.RolloutWaits}
		source.fleets <- fleet
		page.Becomes(t, `document.querySelectorAll(".card").length === 2`)
		fleet = busyFleet(40)
		fleet.Workloads[1].Course = &insight.Course{State: insight.RolloutDone}
		source.fleets <- fleet
		page.Becomes(t, `document.querySelector(".badge.done")?.innerText === "done"`)
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

// prefer has the reader's system prefer a colour scheme, light or dark, and waits until the page has it.
func prefer(t *testing.T, page *browser.Page, scheme string) {
	t.Helper()
	page.Do(t, emulation.SetEmulatedMedia().WithFeatures(
		[]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
	page.Becomes(t, `document.documentElement.dataset.theme === "`+scheme+`"`)
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
		`document.querySelector("#calm-title").textContent.startsWith("1,001 calm workloads") &&
		document.querySelector(".card canvas").height > 100`)
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
	page.Becomes(t, `document.querySelector("#calm-title").textContent.startsWith("1 calm workload,")`)
	t.Logf("a change that takes 1,000 workloads away is seen after %.0f ms",
		browser.Value[float64](t, page, `performance.measure("seen", "sent").duration`))
	page.Do(t, browser.Eval(`document.querySelector(".card details summary").click()`))
	page.Becomes(t, `document.querySelectorAll(".card tbody tr").length === 100`)
	page.Do(t, chromedp.SendKeys("#find", "web-9999"))
	page.Becomes(t, `document.querySelectorAll(".card").length === 1`)
}

// TestItFitsTheScreen: nothing sticks out, and nothing changes its place when it is scrolled to.
func TestItFitsTheScreen(t *testing.T) {
	for _, n := range []int{10, 500, 10_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			source := &told{fleets: make(chan insight.Fleet), details: webDetails()}
			url := serve(t, source)
			page := browse(t, url)
			source.fleets <- busyFleet(n)
			page.Becomes(t, `document.querySelectorAll(".card").length === 1`)
			for name, width := range map[string]int64{"phone": 390, "desk": 1400} {
				page.Do(t, emulation.SetDeviceMetricsOverride(width, 900, 1, width < 500))
				for _, theme := range []string{"light", "dark"} {
					prefer(t, page, theme)
					for view, hash := range map[string]string{"all": "#/", "one": "#/shop/web"} {
						page.Do(t, browser.Eval(`location.hash = "`+hash+`"`))
						page.Becomes(t, `document.querySelector("#one").hidden === (location.hash === "#/") &&
							(location.hash === "#/" || document.querySelectorAll("#one-details section").length === 7)`)
						assert.LessOrEqual(t, browser.Value[int64](t, page, `document.documentElement.scrollWidth`), width)
						page.Whole(t, fmt.Sprintf("%s-%d-%s-%s", view, n, name, theme))
					}
				}
			}
		})
	}
	t.Run("many that move", func(t *testing.T) {
		source := &told{fleets: make(chan insight.Fleet)}
		url := serve(t, source)
		page := browse(t, url)
		fleet := busyFleet(40)
		for i := range 60 {
			w := busyFleet(40).Workloads[0]
			w.Name = fmt.Sprintf("web-%d", i)
			for j := range w.Pods {
				w.Pods[j].Name = fmt.Sprintf("%s-%d", w.Name, j)
			}
			fleet.Workloads = append(fleet.Workloads, w)
		}
		source.fleets <- fleet
		page.Becomes(t, `document.querySelectorAll(".card").length === 12`)
		assert.True(t, browser.Value[bool](t, page,
			`[...document.querySelectorAll(".card canvas")].filter((c) => c.getBoundingClientRect().top < innerHeight)
			.every((c) => c.getContext("2d").getImageData(2, 2, 1, 1).data[3] === 255)`), "what is in sight is drawn at once")
		page.Picture(t, "many")
		height := browser.Value[int](t, page, `document.documentElement.scrollHeight`)
		page.Do(t, browser.Eval(`scrollTo(0, document.documentElement.scrollHeight)`))
		page.Becomes(t, `[...document.querySelectorAll(".card canvas")].at(-1).height > 15`)
		assert.Equal(t, height, browser.Value[int](t, page, `document.documentElement.scrollHeight`))
		page.Do(t, browser.Click("#more"))
		page.Becomes(t, `document.querySelectorAll(".card").length === 24`)
	})
}
