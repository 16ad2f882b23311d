// Package bench measures the suite on a local cluster: six processes, a real
// API server, simulated nodes. Times on a shared machine mean little by
// themselves, so what is compared runs in the same run, in turns, and ratios are
// printed. Counts are the API server's. docs/design/0011-benchmarks.md says what
// each benchmark measures, docs/performance/measurements.md which variables set its
// sizes.
//
// Run with `make bench`; BENCH selects benchmarks. Results are JSON files in
// bin/artifacts/bench, see internal/testkit/benchresult.
package bench
