#!/bin/bash
# Makes again every generated file: what follows from the API types (deep
# copies, apply configurations, CRD, roles, reference, the Helm chart's parts),
# the reference of flags, paths, exit codes and metrics, the CPU kernels'
# assembly, and the table of licences. The generators' versions are in hack/tools/generate/go.mod.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin
(cd hack/tools/generate && CGO_ENABLED=0 go build -o "$OLDPWD/bin/" tool)
CONTROLLER_GEN=$PWD/bin/controller-gen CRD_REF_DOCS=$PWD/bin/crd-ref-docs test/generate.sh
(cd engine/compute/cpu/asm && go run . -out ../kernels_amd64.s -stubs ../kernels_amd64.go -pkg cpu)
go run ./hack/reference > bin/reference.md && mv bin/reference.md docs/reference.md
go run ./hack/licenses > bin/licenses.md && mv bin/licenses.md docs/licenses.md
