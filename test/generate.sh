#!/bin/sh
# Makes everything that is generated from api/v1alpha1 and from the RBAC markers
# of the controllers, and the Helm chart's parts. Run from anywhere; commit what it writes.
#
# CONTROLLER_GEN and CRD_REF_DOCS name the programs, when they are installed
# already; otherwise go runs these versions.
set -eu
cd "$(dirname "$0")/.."
gen=${CONTROLLER_GEN:-go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0}
docs=${CRD_REF_DOCS:-go run github.com/elastic/crd-ref-docs@v0.3.0}

$gen object paths=./api/...
$gen applyconfiguration paths=./api/...
$gen crd paths=./api/... output:crd:dir=config/crd
$gen rbac:roleName=outrider paths=./controllers/... output:rbac:dir=config/rbac
$docs --source-path=api/v1alpha1 --config=test/api-docs.yaml --renderer=markdown --output-path=docs/api.md --log-level=ERROR
# The Helm chart has the CRD and the roles too, beside its dashboards.
(cd hack/chart && go run . ../..)
