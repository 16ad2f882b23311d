// Package versions runs the whole suite on every Kubernetes version that there is a recipe for, and shows what works
// there and what falls back: docs/operations/compatibility.md. It builds control planes, so only "make test-versions"
// runs it; that runs the user stories of test/e2e on the oldest version too.
package versions
