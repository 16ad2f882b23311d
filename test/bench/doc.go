// Package bench measures the suite on a local cluster: five processes, a real
// API server, simulated nodes. Times on a shared machine mean little by
// themselves, so each benchmark runs its own yardstick in the same run and
// prints the ratio. Counts are the API server's.
//
// Run with `make bench`; BENCH selects benchmarks. BENCH_PODS sets the number of
// Pods of BenchmarkInPlaceUpdate (default 50), BENCH_SIZES those of
// BenchmarkCollaSet (default 1000). BenchmarkRules takes numbers of Pods,
// separated by commas, in BENCH_SIZES (time out of service; default 500,1000)
// and BENCH_SCALE (cost of rules; default 500,5000), empty for none, and in
// BENCH_WINDOW how long one measurement of the latter may take (default 10m):
// what is not finished by then is extrapolated, and the table says so.
// BenchmarkConsist takes numbers of Pods in BENCH_SIZES (default 10,100,1000) and
// BENCH_SCALE (default 100,5000).
package bench
