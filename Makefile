# Everything that CI runs, a person can run: `make help`. Needs Go, make and git; nothing else is installed.
SHELL := bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := help

# Plans of the fault suite to run instead of all, one a line.
PLAN ?=
export PLAN
# What the tests run on, and which of them: make test PKG=./api/... RUN=TestAdvance
PKG ?= ./...
RUN ?=
# Names and sizes for cluster-up and cluster-down. PORT=0 takes a free one.
NAME ?= kuperator
NODES ?= 3
PORT ?= 0
# How long each fuzz target runs.
FUZZTIME ?= 30s
# Benchmarks to run, a regular expression; case does not matter.
BENCH ?= .
# Build tags, such as nocloud.
TAGS ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

LDFLAGS := -s -w -X kusionstack.io/kuperator/internal/bootstrap.version=$(VERSION) -X kusionstack.io/kuperator/internal/plugin.version=$(VERSION)
GOLANGCI_LINT := bin/golangci-lint
# The race detector needs a C compiler on most systems; without one the tests run without it and say so.
RACE := $(shell command -v $$(go env CC) >/dev/null 2>&1 && echo -race)
# What is built does not depend on the folder, so that Go finds it in its cache in every clone.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath)
# Programs ship without cgo. Tests are built alike, so that what they share is compiled once.
export CGO_ENABLED := 0
# client-go ends a program under test that changes what its cache holds. At night tests run in another order each time,
# and anew; else Go does not repeat one of which nothing has changed.
GO_TEST := KUBE_CACHE_MUTATION_DETECTOR=true go test $(if $(KUPERATOR_NIGHTLY),-shuffle=on -count=1) -timeout 40m $(if $(RUN),-run '$(RUN)')
WITH_RACE := CGO_ENABLED=1
TEST := $(if $(RACE),$(WITH_RACE) )$(GO_TEST) $(RACE)
# The packages below test/ drive clusters and programs, or search for long: without the race detector, which would be what takes the
# time. It is on for everything else. make test-nightly has it on everywhere.
STORIES_RACE ?=
# These wait most of the time: so many packages run at a time, and so many stories of each that lets them. Garbage is
# collected rarely: a machine has memory for four control planes, and not too many cores.
STORIES := $(if $(STORIES_RACE),$(WITH_RACE) )GOGC=400 $(GO_TEST) -count=1 -shuffle=on $(STORIES_RACE) -p 3 -parallel 6
BELOW_TEST := ^kusionstack.io/kuperator/test/
# Of these, packages that are long and guard what rarely changes. make test leaves them out unless PKG names them;
# .ci/run runs each for a change to what it guards, and make test-nightly runs all.
GUARDED := ^kusionstack.io/kuperator/test/(install|neighbours|fault/(controlplane|leadership|schema|shards)|integration/(configuration|operationjob|poddecoration|podtransitionrule|resourceconsist|rules|security|shard|takeover|webhook))$$
LEFT_OUT := $(if $(KUPERATOR_NIGHTLY),,$(if $(filter ./...,$(PKG)),$(GUARDED)))
# Those that take longest begin first, so that no core waits for the last.
LONGEST := /test/(e2e|integration/collaset|fault)$$
# The packages of the fast part: all but those. Decisions are pure functions, and these packages start no goroutine:
# the race detector finds little there and makes their properties take four times as long. It is on at night.
UNIT = $(shell go list -e ./... | grep -v '$(BELOW_TEST)')
PURE := ^kusionstack.io/kuperator/(api/podops|internal/(collaset/setplan|decoration|imagename|insight|lifecycle/podphase|monitoring|operationjob/jobplan|poddecoration/decoplan|podtransitionrule/(grants|asking/exchange)|resourceconsist/traffic|revision|shard/placement|testkit/crdgen))$$

# How many cases make test-properties draws for each property, and the packages that have any. make test draws 100.
DRAWS ?= 2000
PROPERTIES = $(shell go list -f '{{range .TestImports}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}} {{range .XTestImports}}{{if eq . "pgregory.net/rapid"}}{{$$.ImportPath}}{{end}}{{end}}' $(PKG))

.PHONY: help
help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make <target>"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z][a-z0-9-]*:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##@ Build

.PHONY: generate
generate: ## Write all generated code, CRDs, roles and reference pages
	./hack/generate/generate.sh

.PHONY: build
build: ## Build all programs into bin/, the plugin kubectl-kuperator too (TAGS=)
	@mkdir -p bin
	go build -trimpath $(if $(TAGS),-tags '$(TAGS)') -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

# Where go install puts programs, or bin/ of PREFIX.
PLUGIN_DIR = $(if $(PREFIX),$(PREFIX)/bin,$(or $(shell go env GOBIN),$(firstword $(subst :, ,$(shell go env GOPATH)))/bin))

.PHONY: install-plugin
install-plugin: ## Install kubectl kuperator and its completion where go install does, or into PREFIX/bin (PREFIX=)
	@mkdir -p bin '$(PLUGIN_DIR)'
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/kubectl-kuperator
	install -m 0755 bin/kubectl-kuperator cmd/kubectl-kuperator/kubectl_complete-kuperator '$(PLUGIN_DIR)'
	@echo 'kubectl finds it if this folder is in PATH: $(PLUGIN_DIR)'

# The commit and its time are in the images, so they are the same for everybody who builds that commit.
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)$(if $(shell git status --porcelain 2>/dev/null),-dirty)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)

.PHONY: images
images: ## Build all images and their SBOMs into bin/images, without Docker (VERSION=, TAGS=, PUSH=registry/repository)
	$(IMAGES) -out ../../bin/images $(if $(PUSH),-push '$(PUSH)')

# Without VERSION= it is the version that deploy/ installs.
NAMED_VERSION := $(if $(filter-out file,$(origin VERSION)),-version '$(VERSION)')
IMAGES = SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)' go run -C hack/images . -root ../.. -revision '$(REVISION)' \
	$(if $(TAGS),-tags '$(TAGS)') $(NAMED_VERSION)

.PHONY: clean
clean: ## Remove bin/
	rm -rf bin

##@ Check

.PHONY: test
test: race-note $(if $(filter ./...,$(PKG)),test-examples test-hack) ## Run the tests, those on a real API server too (PKG=, RUN=)
	assets="$$(go run ./hack/localkube assets)"; \
	export KUBEBUILDER_ASSETS="$$assets"; \
	packages="$$(go list -e $(PKG))"; \
	units="$$(grep -v '$(BELOW_TEST)' <<<"$$packages" || true)"; \
	stories="$$(grep '$(BELOW_TEST)' <<<"$$packages" | grep -vE '$(or $(LEFT_OUT),^$$)' || true)"; \
	stories="$$(grep -E '$(LONGEST)' <<<"$$stories" || true; grep -vE '$(LONGEST)' <<<"$$stories" || true)"; \
	pure="$$(grep -E '$(PURE)' <<<"$$units" || true)"; \
	units="$$(grep -vE '$(PURE)' <<<"$$units" || true)"; \
	if [ -n "$$pure" ]; then $(if $(KUPERATOR_NIGHTLY),$(TEST),$(GO_TEST)) $$pure; fi; \
	if [ -n "$$units" ]; then $(TEST) $$units; fi; \
	if [ -n "$$stories" ]; then $(STORIES) $$stories; fi; \
	$(if $(LEFT_OUT),echo "left out: test/install and other long stories; docs/contributing/tests.md says what runs them")

# What takes hours and rarely finds anything: docs/contributing/tests.md has the list.
.PHONY: test-nightly
test-nightly: ## Run everything, what make test leaves out too; hours; prints a report (FAULT_PLANS=)
	./.ci/nightly

.PHONY: test-unit
test-unit: race-note ## Run the fast tests: everything outside test/ (RUN=)
	$(TEST) -short $(UNIT)

.PHONY: test-integration
test-integration: ## Run the tests on a real API server (RUN=)
	@$(MAKE) --no-print-directory test PKG=./test/integration/...

.PHONY: test-e2e
test-e2e: ## Run the user stories on a whole local cluster (RUN=)
	@$(MAKE) --no-print-directory test PKG=./test/e2e/...

# What breaks when: every write of every component, in every scenario. PLAN runs chosen plans, one a line, as a failure prints them.
.PHONY: test-faults
test-faults: ## Break the suite at every write, and more; an hour or two; prints a report (RUN=, PLAN=, FAULT_CELLS=)
	rm -rf "$${KUPERATOR_ARTIFACTS:-bin/artifacts}/faults"
	assets="$$(go run ./hack/localkube assets)" && FAULTS=all KUBEBUILDER_ASSETS="$$assets" go test -count=1 -v -p 1 -timeout 6h $(if $(RUN),-run '$(RUN)') $(if $(filter ./...,$(PKG)),./test/fault/...,$(PKG)) || failed=1; \
	go run ./hack/faultreport && [ -z "$$failed" ]

# The suite beside policies, quotas, autoscalers, backup tools and people. make test runs the named runs and a few generated ones.
.PHONY: test-neighbours
test-neighbours: ## Let policies, quotas, autoscalers and people act on the Pods, in 240 generated runs; minutes (RUN=, NEIGHBOURS_SEED=)
	assets="$$(go run ./hack/localkube assets)" && NEIGHBOURS=all KUBEBUILDER_ASSETS="$$assets" go test -count=1 -v -timeout 90m $(if $(RUN),-run '$(RUN)') ./test/neighbours/...

.PHONY: test-properties
test-properties: ## Draw far more cases for the property tests than make test does, minutes a package (PKG=, RUN=, DRAWS=)
	go test -count=1 -shuffle=on -timeout 3h $(if $(RUN),-run '$(RUN)') $(PROPERTIES) -rapid.checks=$(DRAWS)

.PHONY: test-install
test-install: ## Install, upgrade and uninstall every overlay and every variant of the Helm chart (RUN=)
	assets="$$(go run ./hack/localkube assets)" && INSTALL=all KUBEBUILDER_ASSETS="$$assets" go test -count=1 -v -timeout 60m $(if $(RUN),-run '$(RUN)') ./test/install/...

.PHONY: test-foreign
test-foreign: ## Run cert-manager, Flux, the Prometheus operator on what deploy/ has; compiles them once (RUN=)
	assets="$$(go run ./hack/localkube assets)" && KUPERATOR_FOREIGN_TESTS=1 KUBEBUILDER_ASSETS="$$assets" \
		go test -count=1 -v -timeout 90m -run '$(or $(RUN),^Test(CertManager|Flux|PrometheusOperator)$$)' ./test/install

.PHONY: test-node
test-node: ## Run the suite under load on two real nodes; root on Linux (RUN=)
	@if ! why="$$(go run ./hack/localkube real-nodes 2>&1)"; then echo "real-node tests skipped: $$why"; exit 0; fi; \
	go run ./hack/localkube assets >/dev/null; \
	go run ./hack/localkube assets --kubelet >/dev/null; \
	go build -o /dev/null ./cmd/... ./hack/webserver; \
	for sample in action operator; do go build -C examples/$$sample -o /dev/null .; done; \
	go run -C hack/images . -root ../.. -platforms "linux/$$(go env GOARCH)" -out ../../bin/images/node; \
	KUPERATOR_NODE_TESTS=1 go test -count=1 -v -timeout 40m $(if $(RUN),-run '$(RUN)') ./test/node/...

# The oldest Kubernetes that is supported, and the user stories that run on it. More of them, one by one:
# KUPERATOR_KUBERNETES=1.30 make test PKG=./test/e2e/... RUN=...
OLDEST := 1.30
OLDEST_STORIES := ^(TestRollout|TestDrain|TestReplacement|TestGracefulDeletion|TestGracefulDeletionWithoutAComponent|TestKubectlKnowsCollaSets)$$

.PHONY: test-versions
test-versions: ## Run the suite on older versions of Kubernetes, each of which is built once (minutes)
	go run ./hack/localkube assets >/dev/null
	assets="$$(go run ./hack/localkube assets --kubernetes $(OLDEST))"; \
	KUPERATOR_VERSION_TESTS=1 go test -count=1 -v -timeout 30m ./test/versions/...; \
	export KUPERATOR_KUBERNETES=$(OLDEST) KUBEBUILDER_ASSETS="$$assets"; \
	go test -count=1 -timeout 30m ./test/integration/api/...; \
	go test -count=1 -parallel 6 -timeout 60m -run '$(OLDEST_STORIES)' ./test/e2e/...

.PHONY: test-monitoring
test-monitoring: ## Have a real Prometheus ask what dashboards and alerts ask; draws bin/artifacts/monitoring (RUN=)
	assets="$$(go run ./hack/localkube assets)" && KUBEBUILDER_ASSETS="$$assets" KUPERATOR_MONITORING_TESTS=1 $(STORIES) -count=1 -v ./test/monitoring/...

.PHONY: test-examples
test-examples: race-note ## Run the tests of examples/, which are modules of their own (RUN=)
	cd examples/adapter && $(TEST) ./...
	cd examples/action && $(TEST) ./...
	cd examples/operator && $(TEST) ./...

.PHONY: test-images
test-images: ## Build all images twice, from two folders, and compare; their SBOMs and a push too (RUN=)
	cd hack/images && KUPERATOR_IMAGES=all go test -count=1 -v -timeout 60m $(if $(RUN),-run '$(RUN)') ./...

.PHONY: test-hack
test-hack: race-note
	cd hack/images && $(TEST) ./...
	cd hack/tools/plots && $(TEST) ./...
	cd hack/vulncheck && $(TEST) ./...

.PHONY: test-docs
test-docs: ## Hold all docs against the running suite: samples, commands, names; minutes (RUN=)
	@$(MAKE) --no-print-directory verify-imports
	assets="$$(go run ./hack/localkube assets)" && KUPERATOR_DOCS=all KUBEBUILDER_ASSETS="$$assets" go test -count=1 -v -timeout 60m $(if $(RUN),-run '$(RUN)') ./test/docs/...

.PHONY: race-note
race-note:
	@$(if $(RACE),true,echo "no C compiler found: the tests run without the race detector")

.PHONY: explore
explore: ## Search all interleavings of the protocol, some minutes; prints the states searched (RUN=)
	EXPLORE=all go test -count=1 -timeout 4h -v $(if $(RUN),-run '$(RUN)') ./test/protocol/...

.PHONY: fuzz
fuzz: ## Fuzz each target for a while (FUZZTIME=, PKG=)
	@for package in $(if $(filter ./...,$(PKG)),$(UNIT),$$(go list $(PKG))); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

.PHONY: bench
bench: ## Measure, most of it against a local cluster, and print the table of goals (BENCH=, such as rollout; two hours)
	assets="$$(go run ./hack/localkube assets)" && KUBEBUILDER_ASSETS="$$assets" go run ./hack/bench --run '$(BENCH)'

.PHONY: bench-goals
bench-goals: ## Print the table of goals from what make bench measured before
	@go run ./hack/bench --table

.PHONY: plots
plots: ## Keep what make bench measured in docs/performance/results; draw it, and put the table of goals into docs/performance/goals.md
	mkdir -p docs/performance/results
	cp '$(abspath $(or $(KUPERATOR_ARTIFACTS),bin/artifacts))'/bench/*.json docs/performance/results/
	go run -C hack/tools/plots . -from ../../../docs/performance/results -to ../../../docs/performance -page ../../../docs/performance/measurements.md
	go run ./hack/bench --table --from docs/performance/results --docs docs/performance/goals.md >/dev/null

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run the linters, import rules among them
	$(GOLANGCI_LINT) run ./...

# Built by the Go at hand, from the versions that hack/tools/go.sum pins. The first build takes some minutes.
$(GOLANGCI_LINT): hack/tools/go.mod hack/tools/go.sum
	@mkdir -p bin
	go build -C hack/tools -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: verify
verify: verify-generated verify-format verify-modules verify-imports verify-planted vet lint verify-vulnerabilities ## Check that what is generated is current, formats, modules, imports, links, planted bugs, vet, lint, known vulnerabilities

# Every file that git knows or would add, with the hash of its content: works on a tree with uncommitted changes.
tree = git ls-files -co --exclude-standard | sort | while IFS= read -r f; do if [ -f "$$f" ]; then printf '%s %s\n' "$$(git hash-object -- "$$f")" "$$f"; fi; done

.PHONY: verify-generated
verify-generated:
	@before="$$($(tree))"; \
	$(MAKE) --no-print-directory generate; \
	after="$$($(tree))"; \
	if ! diff <(echo "$$before") <(echo "$$after"); then echo "make generate changed the files above: run it and keep the result"; exit 1; fi

.PHONY: verify-format
verify-format:
	@files="$$(gofmt -l $$(git ls-files -co --exclude-standard -- '*.go' | while IFS= read -r f; do if [ -f "$$f" ]; then echo "$$f"; fi; done))"; \
	if [ -n "$$files" ]; then echo "not formatted, run gofmt -w on:"; echo "$$files"; exit 1; fi

# Modules of their own beside the main one: what is tidy in them, and of those with code of ours what vet finds.
VETTED := examples/action examples/adapter examples/operator hack/images hack/tools/monitoring hack/tools/plots \
	hack/vulncheck
MODULES := $(VETTED) hack/certmanager hack/flux hack/helm hack/krew hack/prometheusoperator hack/refdocs hack/tools

.PHONY: verify-modules
verify-modules:
	@for module in . $(MODULES); do echo "$$module: go mod tidy -diff, go mod verify"; (cd $$module && go mod tidy -diff && go mod verify); done

.PHONY: verify-imports
verify-imports: ## Check the import rules, and that links in docs lead somewhere
	go test -count=1 ./internal/testkit/archtest

# Defects that the fault suite plants replace texts of sources: a change of those is noticed here, long before the suite runs.
.PHONY: verify-planted
verify-planted:
	go test -count=1 -run '^TestPlantedBugsFitTheSources$$' ./test/fault

# In ../shared/vulndb if there is a copy of the database, else online, else it says that it was skipped.
.PHONY: verify-vulnerabilities
verify-vulnerabilities:
	go run -C hack/vulncheck . -root ../..

.PHONY: vet
vet:
	@for module in . $(VETTED); do echo "$$module: go vet ./..."; (cd $$module && go vet ./...); done

##@ Release

# Where the images are to be pulled from, and the URLs at which docs/ and the folder itself are published.
REPOSITORY ?=
DOCS ?=
DOWNLOAD ?=

.PHONY: release
release: ## Make all that is published in bin/release; its README.md says how (VERSION=, REPOSITORY=, DOCS=, DOWNLOAD=)
	rm -rf bin/release
	$(IMAGES) -out ../../bin/release -plugin $(if $(REPOSITORY),-repository '$(REPOSITORY)')
	go run ./hack/release -out bin/release $(NAMED_VERSION) $(if $(REPOSITORY),-repository '$(REPOSITORY)') \
		$(if $(DOCS),-docs '$(DOCS)') $(if $(DOWNLOAD),-download '$(DOWNLOAD)')

.PHONY: test-release
test-release: ## Make the release in two clones and compare; install its plugin with krew; minutes (RUN=)
	KUPERATOR_RELEASE=all go test -count=1 -v -timeout 60m $(if $(RUN),-run '$(RUN)') ./hack/release

##@ Run

# Compiles with the flags of the control plane, so that what is in both is compiled once; tells how far it is.
PREPARE := go run ./hack/prepare

.PHONY: demo
demo: ## Show the suite at work on a local cluster (SLOW=1 pauses; KEEP=1 leaves it running; KUBECONFIG= another cluster)
	@echo "make demo: compiling what finds out what is to be compiled; half a minute, the first time"
	@assets="$$($(PREPARE) ./hack/demo ./cmd/...)"; \
	KUPERATOR_ASSETS="$$assets" go run ./hack/demo $(if $(SLOW),--slow) $(if $(KEEP),--keep) $(if $(filter command,$(firstword $(origin KUBECONFIG))),--kubeconfig '$(KUBECONFIG)')

.PHONY: demo-stop
demo-stop: ## Stop what make demo KEEP=1 left running
	@go run ./hack/demo --stop

.PHONY: cluster-up
cluster-up: ## Start a local cluster with simulated nodes (NAME=, NODES=, PORT=)
	@assets="$$($(PREPARE) ./hack/localkube)"; \
	KUPERATOR_ASSETS="$$assets" go run ./hack/localkube up --name '$(NAME)' --nodes '$(NODES)' --port '$(PORT)'

.PHONY: cluster-down
cluster-down: ## Stop it and remove what it left (NAME=)
	@go run ./hack/localkube down --name '$(NAME)'
