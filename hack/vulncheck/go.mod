// Looks for known vulnerabilities; a module of its own so that its tools raise no version of what it looks at.
module kusionstack.io/kuperator/hack/vulncheck

go 1.26.0

require golang.org/x/vuln v1.1.4

require (
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/telemetry v0.0.0-20260924152758-ed294f943157 // indirect
	golang.org/x/tools v0.51.0 // indirect
	golang.org/x/tools/go/packages/packagestest v0.1.1-deprecated // indirect
)
