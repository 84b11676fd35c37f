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
# The pattern of quantities that comes with their type allows exponents that are no whole
# numbers or too large. Their parser refuses those, and then no list of servers can be read.
sed -i 's/(\[eE\](\\+|-)?((\[0-9\]+(\\\.\[0-9\]\*)?)|(\\\.\[0-9\]+)))/([eE](\\+|-)?[0-9]{1,3})/' config/crd/*_speculativeservers.yaml
$gen rbac:roleName=outrider paths=./controllers/... output:rbac:dir=config/rbac
$docs --source-path=api/v1alpha1 --config=test/api-docs.yaml --renderer=markdown --output-path=docs/api.md --log-level=ERROR
# The Helm chart has the CRD and the roles too, beside its dashboards.
(cd hack/chart && go run . ../..)
