// Package e2e holds user stories, told to the whole suite on a local cluster:
// six processes, each with its own rights, and an observer that judges every
// event. Run it with `make test-e2e`.
package e2e
