#!/bin/bash
# Lints every module: golangci-lint with kube-api-linter built in. The linter's
# version is in hack/tools/lint/go.mod. Arguments go to "golangci-lint run".
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin
(cd hack/tools/lint && CGO_ENABLED=0 go build -ldflags '-s -w' -o "$OLDPWD/bin/golangci-lint" \
  sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter)
status=0
for module in . hack/image hack/chart hack/cluster/images hack/cluster/hyperkube engine/compute/cpu/asm; do
  echo "==> lint $module"
  (cd "$module" && "$OLDPWD/bin/golangci-lint" run --allow-parallel-runners --config "$OLDPWD/.golangci.yml" "$@" ./...) || status=1
done
exit $status
