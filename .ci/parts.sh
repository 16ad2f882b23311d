# Parts of a run, how long each took, and what changed: for .ci/run and .ci/nightly, in the folder above this one.

summary=()
failed=0

# Runs a part. Returns its exit code.
part() { # part <title> <command...>
	local title=$1 started=$SECONDS code=0 verdict=passed
	shift
	echo
	echo "=== $title"
	"$@" || code=$?
	if ((code != 0)); then
		verdict="FAILED (exit $code)"
		failed=1
	fi
	summary+=("$(printf '%-42s %5d s  %s' "$title" $((SECONDS - started)) "$verdict")")
	return "$code"
}

# Tells what is not run, and why.
skip() { # skip <title> <reason>
	echo
	echo "=== $1"
	echo "skipped: $2"
	summary+=("$(printf '%-42s %7s  skipped: %s' "$1" - "$2")")
}

# Prints what took how long, and ends.
finish() {
	echo
	echo "=== Time taken"
	printf '%s\n' "${summary[@]}"
	printf '%-42s %5d s\n' "All" "$SECONDS"
	exit "$failed"
}

# What real nodes need of Debian.
node_packages=(containerd runc containernetworking-plugins haproxy iproute2)

# What other tests run where it is there; without it they skip and say so.
test_packages=(haproxy chromium prometheus)

can_install() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

install() { # install <package...>
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

install_test_packages() {
	if ! can_install || dpkg -s "${test_packages[@]}" >/dev/null 2>&1; then return; fi
	local had_prometheus
	had_prometheus=$(command -v prometheus || true)
	install "${test_packages[@]}" || echo "not all of ${test_packages[*]} could be installed: tests that need them are skipped"
	# Only the program is wanted, not the service that Debian starts with it.
	if [[ -z $had_prometheus && -d /run/systemd/system ]]; then systemctl disable --now prometheus || true; fi
}

# The flag of the race detector where there is the C compiler that it needs, else nothing.
race=
if command -v "$(go env CC)" >/dev/null; then race=-race; fi

# What is built does not depend on the folder: Go finds it in its cache in every clone.
export GOFLAGS="${GOFLAGS-$(go env GOFLAGS)} -trimpath"
# As make has it: programs ship without cgo, and tests are built alike, but for the race detector.
export CGO_ENABLED=0

compile() { # all at once what other parts would compile one package at a time
	go build ./... || return
	if [[ -n $race ]]; then CGO_ENABLED=1 go build "$race" ./internal/... ./api/... ./cmd/...; fi
}

# Runs the tests on real nodes where that can be had, after installing what they need.
node_tests() {
	local title="Real nodes (make test-node)" why
	if [[ $(uname -s) != Linux || $(id -u) != 0 ]]; then
		skip "$title" "they need root on Linux"
		return
	fi
	if can_install && ! dpkg -s "${node_packages[@]}" >/dev/null 2>&1; then
		install "${node_packages[@]}" || echo "not all of ${node_packages[*]} could be installed"
	fi
	if ! why="$(go run ./hack/localkube real-nodes 2>&1)"; then
		skip "$title" "$why"
		return
	fi
	part "Kubelet (built once)" go run ./hack/localkube assets --kubelet || return
	part "$title" env KUPERATOR_NODE_REFUSAL=20s make test-node # two minutes of it by default
}

monitoring_tests() {
	local title="Monitoring (make test-monitoring)"
	if ! command -v prometheus >/dev/null; then
		skip "$title" "prometheus is not installed"
		return
	fi
	part "$title" make test-monitoring
}

version_tests() { part "Older versions of Kubernetes (make test-versions)" make test-versions; }

image_tests() { part "Images (make test-images)" make test-images; }

more_faults() { part "More plans of test/fault" env KUPERATOR_NIGHTLY=1 make test PKG=./test/fault; }

exploration() { part "Exploration (make explore)" make explore; }

# The commit to compare with: where the branch left the main one or, on that, the commit before. Fails if neither
# is known.
base() {
	local ref found head
	head=$(git rev-parse -q --verify HEAD 2>/dev/null) || return 1
	for ref in origin/HEAD origin/main origin/master main master; do
		if found=$(git merge-base HEAD "$ref" 2>/dev/null) && [[ $found != "$head" ]]; then
			echo "$found"
			return
		fi
	done
	git rev-parse -q --verify 'HEAD^1' 2>/dev/null
}

# The files that differ from a commit, those that are not committed among them.
changes() { # changes <commit>
	git diff --name-only "$1" && git ls-files --others --exclude-standard
}
