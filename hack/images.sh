#!/bin/bash
# Builds images into bin/images, with no container engine:
#
#	hack/images.sh [--push] [NAME...]
#
#	outrider              the operator
#	outrider-engine       the engine, for CPUs
#	outrider-engine-cuda  the engine for NVIDIA GPUs, with their run-time libraries
#
# of this machine's architecture and, unless named, the first two, of the binaries
# that are in bin. ARCHS="amd64 arm64" builds the binaries of these architectures
# and makes images for them, under one name where there are several. --push also
# brings them to their registry. See lib.sh for more settings.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
push= names=()
for arg in "$@"; do
  case $arg in
    --push) push=-push ;;
    outrider | outrider-engine | outrider-engine-cuda) names+=("$arg") ;;
    *) die "unknown argument \"$arg\": --push, outrider, outrider-engine, outrider-engine-cuda or none" ;;
  esac
done
[ ${#names[@]} != 0 ] || names=(outrider outrider-engine)
cd "$root"
mkdir -p "$images"
(cd hack/image && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$root/bin/image" .)
archs=${ARCHS:-$(go env GOARCH)}
platforms=
for arch in $archs; do
  case $arch in
    amd64 | arm64) platforms+=${platforms:+,}linux/$arch ;;
    *) die "ARCHS has \"$arch\": amd64 and arm64, with a space between them" ;;
  esac
  [ -z "${ARCHS-}" ] || GOARCH=$arch OUT=bin/linux-$arch hack/build.sh
done
for name in "${names[@]}"; do
  program=$name
  binary=bin${ARCHS:+/linux-{arch\}}/$name
  rest=()
  if [ "$name" = outrider-engine-cuda ]; then
    program=outrider-engine binary=bin/cuda/{arch}/outrider-engine
    for arch in $archs; do
      hack/cuda/runtime.sh "$arch" "bin/cuda/$arch/runtime"
      GOARCH=$arch OUT=bin/cuda/$arch hack/build.sh --cuda
    done
    # Whoever starts the container says which GPUs it has (Kubernetes' device plugin, "docker run --gpus"): without
    # that it gets none, not all. GKE mounts the driver into /usr/local/nvidia.
    rest=(-layer 'bin/cuda/{arch}/runtime/glibc' -layer 'bin/cuda/{arch}/runtime/nvidia'
      -env NVIDIA_VISIBLE_DEVICES=void -env NVIDIA_DRIVER_CAPABILITIES=compute,utility
      -env LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nvidia/lib64
      -label 'org.opencontainers.image.licenses=Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA AND BSD-3-Clause AND LGPL-2.1-or-later AND GPL-3.0-or-later WITH GCC-exception-3.1')
  else
    rest=(-label org.opencontainers.image.licenses=Apache-2.0)
  fi
  # The digest is what tells a changed image from one that is the same.
  bin/image -o "$images/$name.tar" -sbom "$images/$name-{arch}.sbom.json" $push -t "$registry/$name:$tag" -platform "$platforms" \
    -label org.opencontainers.image.source=https://github.com/outrider-dev/outrider "${rest[@]}" \
    -entrypoint "/$program" "$binary=/$program" LICENSE=/LICENSE > "$images/$name.name"
  cat "$images/$name.name"
done
