#!/usr/bin/env bash
# Regenerates what is generated: deepcopy functions, deploy/crd and api/client from api/, roles from the code, the Helm chart from
# deploy/. Running it twice changes nothing.
# Needs only the go command; the generators are the tools of go.mod.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
module=$(go list -m)
types=$module/api/apps/v1alpha1
client=$module/api/client

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/header.txt" # files carry no licence header

# replace FROM TO puts a folder in the place of another, and leaves the other alone if they are the same.
replace() {
	if ! diff -rq "$1" "$2" >/dev/null 2>&1; then
		rm -rf "$2"
		mkdir -p "$(dirname "$2")"
		cp -R "$1" "$2"
	fi
}

go tool controller-gen object paths=./api/apps/v1alpha1/...

go tool controller-gen crd:generateEmbeddedObjectMeta=true paths=./api/apps/v1alpha1/... output:crd:dir="$work/crd"
mkdir "$work/finished"
go run ./hack/generate/crd "$work/crd" "$work/finished"
replace "$work/finished" deploy/crd

# Clients are written beside the old ones and take their place at the end, so that an error leaves the old ones.
generated=$work/client
go tool applyconfiguration-gen \
	--go-header-file "$work/header.txt" \
	--external-applyconfigurations "$(<hack/generate/external-applyconfigurations.txt)" \
	--output-dir "$generated/applyconfiguration" --output-pkg "$client/applyconfiguration" \
	"$types"
go tool client-gen \
	--go-header-file "$work/header.txt" \
	--clientset-name versioned --input-base "" --input "$types" \
	--apply-configuration-package "$client/applyconfiguration" \
	--output-dir "$generated/clientset" --output-pkg "$client/clientset"
go tool lister-gen \
	--go-header-file "$work/header.txt" \
	--output-dir "$generated/listers" --output-pkg "$client/listers" \
	"$types"
go tool informer-gen \
	--go-header-file "$work/header.txt" \
	--versioned-clientset-package "$client/clientset/versioned" --listers-package "$client/listers" \
	--output-dir "$generated/informers" --output-pkg "$client/informers" \
	"$types"
replace "$generated" api/client

# The reference of kubectl kuperator, from its commands.
go run ./hack/generate/cli "$work/cli"
replace "$work/cli" docs/reference/cli

# The roles of deploy/, from the markers beside the code.
hack/generate/rbac.sh

# What Argo CD and Karmada are told about our kinds, from scripts.
go run ./hack/generate/gitops argo-cd deploy/gitops/argo-cd >"$work/argocd-cm.yaml"
replace "$work/argocd-cm.yaml" deploy/gitops/argo-cd/argocd-cm.yaml
go run ./hack/generate/gitops karmada deploy/gitops/karmada/scripts >"$work/interpreters.yaml"
replace "$work/interpreters.yaml" deploy/gitops/karmada/interpreters.yaml

# The page of metrics, dashboards and alerts, from what the components declare.
go run ./hack/generate/monitoring

# What is made of them: rights for installations in named namespaces, and the Helm chart.
go run ./hack/generate/namespacescoped
go run ./hack/generate/chart

# The reference of all fields, from the types and their markers. Its anchors and links are checked by internal/testkit/archtest.
go build -C hack/refdocs -o "$work/crd-ref-docs" github.com/elastic/crd-ref-docs
"$work/crd-ref-docs" --source-path=api/apps/v1alpha1 --config=hack/refdocs/config.yaml --renderer=markdown --max-depth=30 \
	--log-level=ERROR --output-path="$work/api.md"
sed -e 's/[[:space:]]*$//' "$work/api.md" | cat -s >"$work/api-reference.md"
replace "$work/api-reference.md" docs/reference/api.md
