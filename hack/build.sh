#!/bin/bash
# Builds every command into bin, static and reproducible. VERSION, if the
# environment has it, is what their version commands say.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
mkdir -p bin
ldflags='-s -w'
[ -z "${VERSION-}" ] || ldflags="$ldflags -X main.version=$VERSION"
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$ldflags" -o bin/ ./cmd/...
