#!/bin/bash
# Brings what the engine's image for NVIDIA GPUs has beside the engine into
# folders that are layers of it:
#
#	hack/cuda/runtime.sh ARCH FOLDER
#
#	FOLDER/glibc   Debian's C library (apt-get's newest, of the release that this
#	               machine has), with its dpkg status and copyright
#	FOLDER/nvidia  NVRTC, cuBLASLt and NCCL out of NVIDIA's wheels (pip, pinned by
#	               the checksums in 13.txt), with their licences
#
# ARCH is amd64 or arm64. CUDA=12 takes 12.txt. What is there already is kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "${0##*/}: $*" >&2; exit 1; }
[ $# = 2 ] || die "give ARCH and FOLDER, as in amd64 bin/cuda/amd64"
arch=$1 folder=$2 pins=$here/${CUDA:-13}.txt
case $arch in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) die "no CUDA libraries for the architecture \"$arch\": amd64 or arm64" ;;
esac
[ -f "$pins" ] || die "CUDA is \"${CUDA-}\": 12 or 13"
for tool in apt-get dpkg-deb pip unzip; do
  command -v $tool > /dev/null || die "no $tool on this machine: the libraries are Debian packages and Python wheels"
done
wanted=$(cat "$pins" "$0" | sha256sum)
[ "$(cat "$folder/made-of" 2> /dev/null)" != "$wanted" ] || exit 0
rm -rf "$folder"
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# fetch COMMAND... hides what it prints unless it fails.
fetch() { "$@" > "$work/log" 2>&1 || die "$1 failed: $(grep -m 1 -E '^(E:|ERROR)' "$work/log" || tail -n 1 "$work/log")"; }

# apt with lists of its own, so that another architecture is no setting of this machine.
apt() {
  fetch apt-get -q -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State="$work/state" \
    -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache" "$@"
}

glibc() {
  local out=$folder/glibc deb name
  mkdir -p "$work"/{state/lists/partial,cache/archives/partial,debs} "$out"/usr/{lib,lib64,share} "$out/etc" "$out/var/lib/dpkg/status.d"
  # Newer releases have these links; here they give all releases the same paths.
  ln -s usr/lib "$out/lib"
  ln -s usr/lib64 "$out/lib64"
  apt update
  (cd "$work/debs" && apt download libc6 libgcc-s1 libstdc++6 base-files)
  for deb in "$work"/debs/*.deb; do
    name=$(dpkg-deb -f "$deb" Package)
    dpkg-deb -f "$deb" > "$out/var/lib/dpkg/status.d/$name"
    mkdir "$work/$name"
    dpkg-deb -x "$deb" "$work/$name"
    mkdir -p "$out/usr/share/doc/$name"
    # The documentation folder of a library can be a link to that of its base.
    cp "$work/$name/usr/share/doc/$name/copyright" "$out/usr/share/doc/$name/" 2> /dev/null || rmdir "$out/usr/share/doc/$name"
    [ "$name" != base-files ] || continue
    for lib in "$work/$name"/{lib,lib64,usr/lib,usr/lib64}; do
      # -P: the linker's own name is a link.
      [ ! -d "$lib" ] || cp -a --no-preserve=ownership "$lib/." "$out/usr/${lib##*/}/"
    done
  done
  rm -rf "$out"/usr/lib/*/{gconv,audit} "$out"/usr/lib/{audit,debug,systemd,locale}
  cp "$work/base-files/etc/debian_version" "$out/etc/"
  cp "$work/base-files/usr/lib/os-release" "$out/usr/lib/"
  cp -r "$work/base-files/usr/share/common-licenses" "$out/usr/share/"
}

nvidia() {
  local out=$folder/nvidia libs=$folder/nvidia/usr/local/cuda/lib64 tag tags=() wheel
  for tag in manylinux2010 manylinux2014 manylinux_2_{12,17,18,24,27,28}; do tags+=(--platform "${tag}_$machine"); done
  fetch pip download --no-deps --only-binary=:all: --require-hashes --no-cache-dir "${tags[@]}" -d "$work/wheels" -r "$pins"
  mkdir -p "$libs" "$out/usr/local/cuda/share"
  for wheel in "$work"/wheels/*.whl; do
    unzip -q -j "$wheel" '*/lib/libnvrtc.so.*' '*/lib/libnvrtc-builtins.so.*' '*/lib/libcublasLt.so.*' '*/lib/libnccl.so.*' -d "$libs" 2> /dev/null ||
      [ $? = 11 ] # some of these patterns match nothing in each
    unzip -q "$wheel" '*.dist-info/METADATA' '*.dist-info/*[Ll][Ii][Cc][Ee][Nn]*' -d "$out/usr/local/cuda/share"
    rm "$wheel"
  done
  rm -f "$libs"/*.alt.so.*
  for lib in libnvrtc.so libnvrtc-builtins.so libcublasLt.so libnccl.so; do
    compgen -G "$libs/$lib.*" > /dev/null || die "the wheels of $pins have no $lib"
  done
}

glibc
nvidia
echo "$wanted" > "$folder/made-of"
