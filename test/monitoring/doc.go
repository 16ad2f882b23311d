// Package monitoring has a real Prometheus collect what the running suite publishes while a story happens in it, and
// asks every query of the dashboards and alerts. It draws what the panels show. Run it with make test-monitoring; the
// programs prometheus and promtool are those of Debian's package prometheus, and without them the tests are skipped.
package monitoring
