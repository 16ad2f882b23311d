package dashboard

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/testkit/browser"
)

// webActions are what may be done to web of busyFleet by who may not undo.
func webActions() []insight.Action {
	action := func(verb insight.Verb, happens string) insight.Action {
		return insight.Action{Verb: verb, Happens: happens, Command: "kubectl kuperator " + string(verb) +
			" collaset/web -n shop"}
	}
	all := []insight.Action{
		action(insight.VerbPause, "Pause web: no further Pod is added, removed or updated. 13 of 40 Pods have the new "+
			"revision web-2 and keep it. The operation on 3 Pods has begun and is finished."),
		action(insight.VerbPromote, "Promote web: the partition (20) is removed, and no Pod is kept back."),
		action(insight.VerbUndo, ""),
		action(insight.VerbRestart, "Restart web: all 40 Pods are re-created as an update, as fast as rules and "+
			"maxUnavailable allow."),
	}
	all[2].Refused = "you may not patch collasets.apps.kusionstack.io in namespace shop; the role edit has that right"
	all[3].Warnings = []string{"Pods of template.spec.hostNetwork are re-created, 3 at a time"}
	return all
}

// TestActionsInABrowser: nothing is done without a confirmation that says what it does.
func TestActionsInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	source := &told{fleets: make(chan insight.Fleet), details: webDetails()}
	actor := &obedient{offers: webActions()}
	url := serveFor(t, source, actor)
	page := browser.Open(t, url, "../..", "dashboard", "/api/act")
	source.fleets <- busyFleet(40)
	page.Becomes(t, `location.hash === "#/" && document.querySelectorAll(".card").length === 1`)
	page.Do(t, browser.Eval(`location.hash = "#/shop/web"`))
	page.Becomes(t, `document.querySelectorAll("#acts button").length === 4`)
	value := func(expression string) string { return browser.Value[string](t, page, expression) }
	press := func(verb string) {
		t.Helper()
		page.Do(t, browser.Click(`[data-id="act/`+verb+`"]`))
		page.Becomes(t, `document.querySelector("#confirm").open && !document.querySelector("#confirm-yes").disabled`)
	}
	const closed = `!document.querySelector("#confirm").open`

	t.Run("what may not be done is disabled, and says why", func(t *testing.T) {
		assert.Equal(t, "Pause Promote Undo Restart", value(
			`[...document.querySelectorAll("#acts button")].map((b) => b.textContent).join(" ")`))
		assert.Equal(t, "Undo", value(
			`[...document.querySelectorAll("#acts button[aria-disabled=true]")].map((b) => b.textContent).join(" ")`))
		assert.Equal(t, "Undo: you may not patch collasets.apps.kusionstack.io in namespace shop; "+
			"the role edit has that right.", value(`document.querySelector("#acts-refused").innerText`))
		page.Do(t, browser.Click(`[data-id="act/undo"]`))
		assert.True(t, browser.Value[bool](t, page, closed))
	})

	t.Run("by the keyboard, and Escape", func(t *testing.T) {
		page.Do(t, browser.Eval(`document.querySelector('[data-id="act/pause"]').focus()`), chromedp.KeyEvent(kb.Enter))
		page.Becomes(t, `document.querySelector("#confirm").open && !document.querySelector("#confirm-yes").disabled`)
		assert.Equal(t, "confirm-no", value(`document.activeElement.id`), "who presses Enter twice has done nothing")
		dialog := value(`document.querySelector("#confirm").innerText`)
		for _, words := range []string{"Pause shop/web?", "no further Pod is added, removed or updated. 13 of 40 Pods",
			"kubectl kuperator pause collaset/web -n shop --context=kind-prod", "Cancel"} {
			assert.Contains(t, dialog, words)
		}
		reached := map[string]bool{}
		for range 8 {
			page.Do(t, chromedp.KeyEvent(kb.Tab))
			assert.True(t, browser.Value[bool](t, page,
				`document.activeElement === document.body || document.querySelector("#confirm").contains(document.activeElement)`),
				"the focus stays in the dialog")
			reached[value(`document.activeElement.id`)] = true
		}
		assert.True(t, reached["confirm-yes"] && reached["confirm-no"], reached)
		page.Do(t, chromedp.KeyEvent(kb.Escape))
		page.Becomes(t, closed)
		assert.Equal(t, "act/pause", value(`document.activeElement.dataset.id`), "back where it came from")
		assert.Empty(t, actor.obeyed())
	})

	t.Run("Cancel", func(t *testing.T) {
		press("restart")
		assert.Contains(t, value(`document.querySelector("#confirm-more").innerText`), "re-created, 3 at a time",
			"what admission warns of")
		page.Do(t, browser.Click("#confirm-no"))
		page.Becomes(t, closed)
		assert.Empty(t, actor.obeyed())
	})

	t.Run("light, dark, and on a phone", func(t *testing.T) {
		for name, width := range map[string]int64{"phone": 390, "desk": 1400} {
			page.Do(t, emulation.SetDeviceMetricsOverride(width, 900, 1, width < 500))
			for _, scheme := range []string{"light", "dark"} {
				prefer(t, page, scheme)
				page.Picture(t, "actions-"+name+"-"+scheme)
				press("restart")
				page.Picture(t, "confirm-"+name+"-"+scheme)
				assert.True(t, browser.Value[bool](t, page,
					`(() => { const b = document.querySelector("#confirm").getBoundingClientRect(); return b.left >= 0 &&
					b.right <= innerWidth && b.top >= 0 && b.bottom <= innerHeight; })()`), "%s, %s", name, scheme)
				assert.LessOrEqual(t, browser.Value[int64](t, page, `document.documentElement.scrollWidth`), width)
				for _, id := range []string{"confirm-yes", "confirm-no", "confirm-text", "confirm-title"} {
					colours := browser.Value[[2]string](t, page, `(() => { const s = getComputedStyle(document.querySelector("#`+id+
						`")), hex = (c) => "#" + c.match(/\d+/g).slice(0, 3).map((n) => (+n).toString(16).padStart(2, "0")).join("");
						return [hex(s.color), hex(s.backgroundColor === "rgba(0, 0, 0, 0)" ?
						getComputedStyle(document.querySelector("#confirm")).backgroundColor : s.backgroundColor)]; })()`)
					assert.GreaterOrEqual(t, contrast(rgb(t, colours[0]), rgb(t, colours[1])), 4.5, "%s, %s", id, scheme)
				}
				page.Do(t, browser.Click("#confirm-no"))
				page.Becomes(t, closed)
			}
		}
		page.Do(t, emulation.SetDeviceMetricsOverride(1400, 1000, 1, false))
	})

	t.Run("what is confirmed is done, and told", func(t *testing.T) {
		actor.set(func() {
			actor.done = func(Order) {
				fleet := busyFleet(40)
				fleet.Workloads[0].Paused = true
				source.fleets <- fleet
				actor.offers = []insight.Action{{Verb: insight.VerbResume, Happens: "Resume web: it goes on."}}
			}
		})
		press("pause")
		page.Do(t, browser.Eval(`document.querySelector("#confirm-yes").focus()`), chromedp.KeyEvent(kb.Enter))
		page.Becomes(t, closed+` && document.querySelector("#acts-result").innerText.includes("collaset/web pause.")`)
		page.Becomes(t, `document.querySelector("#one .badge")?.innerText === "paused" &&
			[...document.querySelectorAll("#acts button")].map((b) => b.textContent).join() === "Resume"`)
		assert.Equal(t, []Order{{Ref: insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: "web"},
			Verb: insight.VerbPause, Version: "uid/2"}}, actor.obeyed())
		assert.Equal(t, "act/resume", value(`document.activeElement.dataset.id || document.activeElement.outerHTML`),
			"the focus is not lost with its button")
		assert.Equal(t, "status", value(`document.querySelector("#acts-result").getAttribute("role")`), "it is read out")
		page.Picture(t, "acted")
	})

	t.Run("what fails is told as well", func(t *testing.T) {
		actor.set(func() {
			actor.err = &Refusal{Status: http.StatusConflict, Reason: "nothing was written: see what is there now",
				Answer: "the server says 409"}
		})
		press("resume")
		page.Do(t, browser.Click("#confirm-yes"))
		page.Becomes(t, closed+` && document.querySelector("#acts-result").classList.contains("bad")`)
		assert.Equal(t, "Resume failed. Nothing was written: see what is there now.\nthe server says 409",
			value(`document.querySelector("#acts-result").innerText`))
		actor.set(func() { actor.err, actor.done, actor.offers = nil, nil, webActions() })
		source.fleets <- busyFleet(40)
		page.Becomes(t, `document.querySelectorAll("#acts button").length === 4`)
	})

	t.Run("what has become impossible meanwhile is not done", func(t *testing.T) {
		actor.set(func() { actor.offers[0].Refused = "the API server has changed its mind" })
		page.Do(t, browser.Click(`[data-id="act/pause"]`))
		page.Becomes(t, `document.querySelector("#confirm").innerText.includes("The API server has changed its mind.")`)
		assert.True(t, browser.Value[bool](t, page, `document.querySelector("#confirm-yes").disabled`))
		page.Do(t, browser.Click("#confirm-no"))
		page.Becomes(t, closed)
		actor.set(func() { actor.offers = actor.offers[1:] })
		page.Do(t, browser.Click(`[data-id="act/pause"]`))
		page.Becomes(t, `document.querySelector("#confirm-text").innerText.includes("there is nothing to do any more")`)
		page.Do(t, browser.Click("#confirm-no"))
		assert.Len(t, actor.obeyed(), 2)
		actor.set(func() { actor.offers = webActions() })
	})

	t.Run("everything has a name", func(t *testing.T) {
		press("pause")
		assert.Empty(t, browser.Value[[]string](t, page, `[...document.querySelectorAll("#acts button, #confirm button")]
			.filter((e) => !(e.getAttribute("aria-label") || e.textContent)).map((e) => e.outerHTML)`))
		assert.Equal(t, "Pause shop/web?", value(
			`document.getElementById(document.querySelector("#confirm").getAttribute("aria-labelledby")).textContent`))
		page.Do(t, browser.Click("#confirm-no"))
		page.Becomes(t, closed)
	})

	t.Run("the tab keeps the token when it is loaded again", func(t *testing.T) {
		page.Do(t, chromedp.Reload())
		page.Becomes(t, `location.hash === "#/shop/web" && document.querySelectorAll("#acts button").length === 4`)
	})

	t.Run("another workload has no result of this one", func(t *testing.T) {
		page.Do(t, browser.Eval(`location.hash = "#/shop/db"`))
		page.Becomes(t, `document.querySelector("#one-title").textContent === "CollaSet shop/db" &&
			document.querySelectorAll("#acts button").length === 4`)
		assert.Empty(t, value(`document.querySelector("#acts-result").innerText`))
	})

	t.Run("without the token it only shows", func(t *testing.T) {
		address, _, found := strings.Cut(url, "#")
		require.True(t, found)
		other := browser.Open(t, address+"#/shop/web", "../..", "dashboard")
		other.Becomes(t, `document.querySelector("#acts-refused").innerText.includes("open the address that the terminal")`)
		assert.Equal(t, 0, browser.Value[int](t, other, `document.querySelectorAll("#acts button").length`))
		wrong := browser.Open(t, address+"#token=WRONG", "../..", "dashboard", "/api/act")
		wrong.Do(t, browser.Eval(`location.hash = "#/shop/web"`))
		wrong.Becomes(t, `document.querySelector("#acts-refused").innerText.startsWith("What may be done is not known. To `+
			`act, open the address that the terminal")`)
	})
}

// TestAPageThatOnlyReads has no actions, not even disabled ones.
func TestAPageThatOnlyReads(t *testing.T) {
	source := &told{fleets: make(chan insight.Fleet), details: webDetails()}
	page := browse(t, serve(t, source))
	source.fleets <- busyFleet(40)
	page.Do(t, browser.Eval(`location.hash = "#/shop/web"`))
	page.Becomes(t, `document.querySelectorAll("#one-details section").length === 7`)
	assert.True(t, browser.Value[bool](t, page, `document.querySelector("#acts").hidden`))
}
