#!/bin/bash
# Brings NVIDIA's run-time compiler, of the version that 13.txt pins by its checksums,
# into a folder, for tests that compile the kernels' sources:
#
#	hack/cuda/nvrtc.sh FOLDER
#
# It needs pip. What is there already is kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "${0##*/}: $*" >&2; exit 1; }
[ $# = 1 ] || die "give FOLDER, as in bin/nvrtc"
folder=$1
pin=$(sed -n '/^nvidia-cuda-nvrtc==/,/[^\\]$/p' "$here/13.txt")
[ -n "$pin" ] || die "$here/13.txt pins no nvidia-cuda-nvrtc"
[ "$(cat "$folder/made-of" 2> /dev/null)" != "$pin" ] || exit 0
command -v pip > /dev/null || die "no pip on this machine: the compiler is the Python wheel nvidia-cuda-nvrtc"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "$pin" > "$work/pin"
pip download --no-deps --only-binary=:all: --require-hashes --no-cache-dir -d "$work/wheels" -r "$work/pin" > "$work/log" 2>&1 ||
  die "pip failed: $(grep -m 1 '^ERROR' "$work/log" || tail -n 1 "$work/log")"
python3 -m zipfile -e "$work"/wheels/*.whl "$work/files"
rm -rf "$folder"
mkdir -p "$folder"
mv "$work"/files/nvidia/cu13/lib/libnvrtc*.so.* "$folder"
rm -f "$folder"/*.alt.so.*
echo "$pin" > "$folder/made-of"
