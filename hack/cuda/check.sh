#!/bin/bash
# Tries the image for NVIDIA GPUs where there is none, in its own root folder and
# with its own environment: libraries that are found and whole, kernels that the
# compiler in it takes, and what the engine says without a driver.
#
#	hack/cuda/check.sh [IMAGE.tar]    bin/images/outrider-engine-cuda.tar unless named
#
# It needs root, for chroot, and an image of this machine's architecture alone.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
cd "$root"
image=${1:-$images/outrider-engine-cuda.tar}
[ -f "$image" ] || die "no $image: make images-cuda makes it"
[ "$(id -u)" = 0 ] || die "chroot needs root"
for tool in jq curl chroot; do command -v $tool > /dev/null || die "no $tool on this machine"; done
work=$(mktemp -d -p "$root/bin")
engine=
cleanup() {
  [ -z "$engine" ] || { kill "$engine" && wait "$engine"; } 2> /dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
fs=$work/root
mkdir -p "$fs"
blob() { tar -xOf "$image" "blobs/${1/:/\/}"; }
manifest=$(blob "$(tar -xOf "$image" index.json | jq -r '.manifests[0].digest')")
config=$(blob "$(jq -er .config.digest <<< "$manifest")") || die "$image holds several images: build it without ARCHS"
for layer in $(jq -r '.layers[].digest' <<< "$manifest"); do blob "$layer" | tar -xz -C "$fs"; done
mapfile -t environment < <(jq -r '.config.Env[]' <<< "$config")
user=$(jq -r .config.User <<< "$config")
enter=(env -i "${environment[@]}" "$(command -v chroot)" --userspec="$user" "$fs")
inside() { "${enter[@]}" "$@"; }

failed=0
check() { # NAME PATTERN TEXT
  if grep -qE -- "$2" <<< "$3"; then
    echo "ok    $1"
  else
    failed=1
    echo "FAIL  $1: wanted /$2/, got: ${3:0:600}"
  fi
}
check "the engine starts" '^outrider-engine .* linux/' "$(inside /outrider-engine version 2>&1)"
loader=$(cd "$fs" && echo lib*/ld-linux-*.so.* usr/lib*/ld-linux-*.so.* | tr ' ' '\n' | grep -v '[*]' | head -n 1)
for lib in "$fs"/usr/local/cuda/lib64/*.so.*; do
  name=${lib##*/}
  out=$(inside "/$loader" --list "/usr/local/cuda/lib64/$name" 2>&1) || out="not found: $out"
  check "$name finds all that it needs" '^none is missing$' "$(grep -E 'not found|cannot' <<< "$out" || echo none is missing)"
done

# Compiles a kernel for each kind of card, and opens NCCL, as the engine does.
for package in kernels nccl; do
  CGO_ENABLED=0 go test -c -o "$fs/tmp/$package.test" "./engine/compute/cuda/$package"
done
out=$(inside /tmp/kernels.test -test.v -test.run 'TestSourcesCompile/.*/(elementwise|measure)\.cu|TestErrorsNameTheLine' 2>&1) || out+=" FAIL: status $?"
check "NVRTC compiles" 'PASS: TestSourcesCompile/sm_90a/' "$out"
check "for every kind of card" '^none has failed$' "$(grep -E 'NOT RUN|FAIL|SKIP' <<< "$out" || echo none has failed)"
out=$(inside /tmp/nccl.test -test.v -test.run TestVersion 2>&1) || out+=" FAIL: status $?"
check "NCCL opens" '^none has failed$' "$(grep -E 'NOT RUN|FAIL|SKIP' <<< "$out" || echo none has failed)"

status=0
out=$(inside /outrider-engine serve --device cuda --port 0 --admin-port 0 --termination-log=/tmp/termination 2>&1) || status=$?
check "without a driver --device cuda ends with code 13" '^13$' "$status"
check "and says what is missing" '"reason":"DeviceMissing".*libcuda.so.1 cannot be opened: install the NVIDIA driver' "$(cat "$fs/tmp/termination")"
# Not by "inside": the process that cleanup ends would be a shell's, and the engine run on.
"${enter[@]}" /outrider-engine serve --port 0 --admin-port 0 > "$work/log" 2>&1 &
engine=$!
admin=
for _ in {1..300}; do
  admin=$(grep -oE 'admin_url=[^ ]+' "$work/log" | head -n 1 | cut -d= -f2) || true
  [ -z "$admin" ] || ! curl -sf -o /dev/null "$admin/readyz" || break
  kill -0 "$engine" 2> /dev/null || break
  sleep 0.1
done
check "--device auto serves on the CPU and says why" '"phase":"serving".*"device":"cpu","device_reason":"libcuda.so.1 cannot be opened' "$(curl -s "$admin/progress"; tail -n 1 "$work/log")"
[ $failed = 0 ]
