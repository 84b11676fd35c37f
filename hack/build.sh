#!/bin/bash
# Builds every command into bin, static and reproducible. VERSION, if the
# environment has it, is what their version commands say; GOARCH and GOOS count
# as ever, and OUT names another folder.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
out=${OUT:-bin}
mkdir -p "$out"
ldflags='-s -w'
[ -z "${VERSION-}" ] || ldflags="$ldflags -X main.version=$VERSION"
# With CUDA the engine is no static binary: it opens the driver's libraries.
build() { CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$ldflags" "$@"; }
case ${1-} in
  '') build -o "$out/" ./cmd/... ;;
  --cuda) build -tags cuda -o "$out/" ./cmd/outrider-engine ;;
  *) die "unknown argument \"$1\": --cuda (the engine for NVIDIA GPUs) or none" ;;
esac
