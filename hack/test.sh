#!/bin/bash
# hack/test.sh unit|cuda-emulated|apiserver|e2e|e2e-faults|e2e-groups [GO TEST FLAG...]: runs one layer of the tests,
# with ordinary "go test" output. See docs/development.md for the layers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
layer=${1-}
shift || true

unit() {
  # The race detector needs a C compiler to link with.
  hack/deps.sh gcc libc6-dev
  # Packages that compute for seconds take minutes under it; the packages that
  # drive them concurrently, such as engine/server, are the ones to watch.
  local slow
  slow=$(go list ./... | grep -E '/engine(/(compute|model|speculation)(/.*)?)?$' || true)
  # All of them, also when one fails: a run should show everything that is wrong.
  local status=0
  CGO_ENABLED=1 go test -race -timeout 20m "$@" $(go list ./... | grep -vxF -f <(echo "${slow:-none}")) || status=1
  CGO_ENABLED=1 go test -race -timeout 20m -run 'Drain|Probe|Refuses|SlowLoad|Stop|WarmUp|Idle' "$@" ./engine || status=1
  [ -z "$slow" ] || go test -timeout 20m "$@" $slow || status=1
  # Not from go's cache: it does not see that files outside these modules change.
  (cd hack/image && go test -count=1 -timeout 20m "$@" ./...) || status=1
  hack/prometheus.sh
  (cd hack/chart && go test -count=1 -timeout 20m "$@" ./...) || status=1
  return $status
}

# The libraries are built once, and kernels kept by a hash of source and compiler. Cards
# before and after 9.0 take other kernels, for which the operations that have such are run
# again. The seed is given, so that a change is judged by what it changes; another finds more.
cuda-emulated() {
  hack/deps.sh g++
  local folder=$root/bin/emulation status=0 capability
  local of_capability='^Test(Attention.*|QKV|Gated|Linear(OfColumns|Norm|NormsFollowEachOther|BiasRoundsOnce)|QuantisedLinearOfManyOutputs|Float16StaysOnTensorCores|RecordedPasses.*|Draw)$'
  go run ./hack/cudaemulation "$folder"
  GOCACHE=$(go env GOCACHE)
  export GOCACHE OUTRIDER_CUDA_PATH=$folder XDG_CACHE_HOME=$folder/cache OUTRIDER_TEST_SEED=${OUTRIDER_TEST_SEED-1}
  go test -count 1 -short -tags cuda -timeout 20m -skip TestSourcesCompile "$@" ./engine/compute/cuda/... ./engine/gpu || status=1
  for capability in 80 120; do
    echo "compute capability $capability:"
    OUTRIDER_EMULATION_CAPABILITY=$capability go test -count 1 -short -tags cuda -timeout 20m -run "$of_capability" "$@" ./engine/compute/cuda || status=1
  done
  go test -count 1 -short -tags cuda -timeout 20m -run 'OnGPU|DeviceReason|NoMemory|XID|NVML|FullMemory|Idle' "$@" ./engine/model ./engine ./cmd/outrider-engine ./hack/bench || status=1
  sources-compile "$@" || status=1
  return $status
}

# The emulation's compiler takes more than NVIDIA's, which needs no GPU.
sources-compile() {
  local why
  if ! why=$(hack/cuda/nvrtc.sh bin/nvrtc 2>&1); then
    echo "NOT RUN: TestSourcesCompile, TestErrorsNameTheLine: ${why##*$'\n'}"
    return 0
  fi
  OUTRIDER_CUDA_PATH=$root/bin/nvrtc go test -count 1 -timeout 20m -run 'TestSourcesCompile|TestErrorsNameTheLine' "$@" ./engine/compute/cuda/kernels
}

apiserver() {
  hack/cluster/install.sh assets
  KUBEBUILDER_ASSETS=$(. hack/cluster/config.sh && echo "$STATE/bin")
  export KUBEBUILDER_ASSETS
  # Only the packages with such tests: the rest would run their unit tests again.
  # -count 1: what the tests build and run themselves, the operator, is not in the key of the results that Go keeps.
  go test -count 1 -tags apiserver -timeout 25m "$@" $(tagged apiserver)
}

# Tests wait much and compute little: four at once, also on two processors.
e2e() { on_cluster -parallel 4 -skip '^Test(Fault|Group)' "$@"; }

# The tests that disturb the whole cluster, one after the other.
e2e-faults() { on_cluster -run '^TestFault' "$@"; }

# The tests of replicas of several nodes, with LeaderWorkerSet's controller.
e2e-groups() { with=hack/lws.sh on_cluster -run '^TestGroup' "$@"; }

on_cluster() {
  local started=
  if [ "$CLUSTER" = own ]; then
    hack/cluster/check.sh
    hack/cluster/kin true 2> /dev/null || started=yes
  fi
  hack/deploy.sh
  [ -z "${with-}" ] || "$with"
  local exec=()
  [ "$CLUSTER" = current ] || exec=(-exec "$root/hack/cluster/kin")
  local status=0
  go test -count 1 -tags e2e -timeout 25m "${exec[@]}" "$@" $(tagged e2e) || status=$?
  # A cluster that ran before keeps running; one that failed is left to look at.
  if [ $status = 0 ]; then
    if [ "$started" = yes ]; then hack/cluster/down.sh; elif [ -n "${with-}" ]; then "$with" down; fi
  fi
  return $status
}

# tagged lists the packages that have test files under the build tag.
tagged() {
  local packages
  packages=$(git grep --untracked -lE "^//go:build .*\b$1\b" -- '*_test.go' | xargs -r -n 1 dirname | sort -u | sed 's|^|./|')
  [ -n "$packages" ] || die "no test file has the build tag $1"
  echo "$packages"
}

case $layer in
  unit | cuda-emulated | apiserver | e2e | e2e-faults | e2e-groups) "$layer" "$@" ;;
  *) die "layer \"$layer\": unit, cuda-emulated, apiserver, e2e, e2e-faults or e2e-groups" ;;
esac
