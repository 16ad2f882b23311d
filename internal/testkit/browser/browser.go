// Package browser drives a real browser, Debian's Chromium, for tests of pages.
package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience bounds a wait for the browser, on a busy machine.
const patience = 3 * time.Minute

// Page is an open page. Its methods end the test when they fail.
type Page struct {
	ctx    context.Context //nolint:containedctx // chromedp keeps the browser in it
	folder string
}

// Open opens a page, and skips the test where there is no Chromium. The test fails for everything that the browser
// complains about, except about addresses that contain one of mayFail. Pictures go to a folder of that name below
// KUPERATOR_ARTIFACTS, or bin/artifacts of the project at root.
func Open(t *testing.T, url, root, folder string, mayFail ...string) *Page {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("no Chromium: install Debian's package chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.WindowSize(1400, 1000),
		chromedp.WSURLReadTimeout(patience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has none for root
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	allowed := func(url string) bool {
		for _, part := range mayFail {
			if strings.Contains(url, part) {
				return true
			}
		}
		return false
	}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *cdpruntime.EventExceptionThrown:
			t.Errorf("the page threw: %s", e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && !allowed(e.Entry.URL) {
				t.Errorf("the browser says: %s (%s)", e.Entry.Text, e.Entry.URL)
			}
		}
	})
	artifacts := os.Getenv("KUPERATOR_ARTIFACTS")
	if artifacts == "" {
		artifacts = filepath.Join(root, "bin", "artifacts")
	}
	p := &Page{ctx, filepath.Join(artifacts, folder)}
	p.Do(t, log.Enable(), chromedp.Navigate(url))
	return p
}

// Do takes steps.
func (p *Page) Do(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	require.NoError(t, chromedp.Run(p.ctx, actions...))
}

// Becomes waits until a JavaScript expression is true.
func (p *Page) Becomes(t *testing.T, expression string) {
	t.Helper()
	waiting, cancel := context.WithTimeout(p.ctx, patience/3)
	defer cancel()
	if err := chromedp.Run(waiting, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond),
		chromedp.WithPollingTimeout(0))); err != nil {
		var text string
		// the page as it is, for the reader of the failure
		_ = chromedp.Run(p.ctx, chromedp.Evaluate(`document.body.innerText`, &text))
		t.Fatalf("%s: %v\n%s", expression, err, text)
	}
}

// Value is what a JavaScript expression gives.
func Value[T any](t *testing.T, p *Page, expression string) T {
	t.Helper()
	var v T
	p.Do(t, chromedp.Evaluate(expression, &v))
	return v
}

// Eval evaluates a JavaScript expression for what it does.
func Eval(expression string) chromedp.Action { return chromedp.Evaluate(expression, nil) }

// Click presses a button in one go, because a page may replace it at any time.
func Click(selector string) chromedp.Action {
	return Eval("document.querySelector(`" + selector + "`).click()")
}

// Picture keeps a screenshot for people to look at.
func (p *Page) Picture(t *testing.T, name string) {
	t.Helper()
	var image []byte
	p.keep(t, name, &image, chromedp.CaptureScreenshot(&image))
}

// Whole is Picture with what is below the window.
func (p *Page) Whole(t *testing.T, name string) {
	t.Helper()
	var image []byte
	p.keep(t, name, &image, chromedp.FullScreenshot(&image, 100))
}

func (p *Page) keep(t *testing.T, name string, image *[]byte, take chromedp.Action) {
	t.Helper()
	p.Do(t, take)
	require.NoError(t, os.MkdirAll(p.folder, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(p.folder, name+".png"), *image, 0o600))
}
