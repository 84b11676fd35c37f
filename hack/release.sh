#!/bin/bash
# Builds what a release has into bin/release (of the version in VERSION):
#
#	outrider-…, outrider-engine-…   static binaries, of each architecture
#	*.oci.tar                       the images, of all architectures, OCI layouts (ctr images import, docker load)
#	outrider-VERSION.tgz            the Helm chart
#	install.yaml                    what "kubectl apply -k config/default" applies, with this version's images
#	*.sbom.json                     a CycloneDX bill of materials of each binary, read out of it, and of each image
#	third-party.txt                 texts and notices of all licences
#	images.txt                      names and digests of the images
#	SHA256SUMS                      of all of these
#
#	hack/release.sh           build
#	hack/release.sh --check   build a second time, from a copy elsewhere, and compare
#	                          (with GOCACHE in an empty folder nothing is shared)
#	hack/release.sh --install-manifest
#	                          print install.yaml alone
#
# ARCHS are the architectures, "amd64 arm64" unless set. RELEASE_CUDA=1 adds the
# engine's image for NVIDIA GPUs: it downloads 1 GB for each architecture.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
version=$(< VERSION)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || die "VERSION is \"$version\": want MAJOR.MINOR.PATCH, as in 0.1.0"
export ARCHS=${ARCHS:-amd64 arm64}
images_made=(outrider outrider-engine)
[ -z "${RELEASE_CUDA-}" ] || images_made+=(outrider-engine-cuda)
out=$root/bin/release

# manifest FOLDER prints the resources of a kustomization that has nothing else.
manifest() {
  local other
  other=$(grep -vE '^( *#.*|apiVersion: .*|kind: Kustomization|resources:|  - .*|)$' "$1/kustomization.yaml") &&
    die "$1/kustomization.yaml has \"$other\": the install manifest knows \"resources\" only"
  sed -nE 's/^  - ([^ ]+).*/\1/p' "$1/kustomization.yaml" | while read -r name; do
    if [ -d "$1/$name" ]; then manifest "$1/$name"; else echo ---; sed '1{/^---$/d}' "$1/$name"; fi
  done
}

# install_manifest prints install.yaml. The images' names in config are those of development.
install_manifest() {
  manifest config/default | sed "s#ghcr\.io/outrider-dev/\(outrider\|outrider-engine\|outrider-engine-cuda\):dev#$registry/\1:$version#g"
}

build() {
  rm -rf "$out"
  mkdir -p "$out"
  VERSION=v$version TAG=$version hack/images.sh "${images_made[@]}" > "$out/images.txt"
  for name in "${images_made[@]}"; do
    cp "bin/images/$name.tar" "$out/$name-$version.oci.tar"
    for arch in $ARCHS; do cp "bin/images/$name-$arch.sbom.json" "$out/$name-$version-linux-$arch.image.sbom.json"; done
  done
  (cd hack/tools/release && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$root/bin/" tool)
  for arch in $ARCHS; do
    for name in outrider outrider-engine; do
      cp "bin/linux-$arch/$name" "$out/$name-linux-$arch"
      # GOPROXY: it would look for this version, which nobody has published yet.
      GOPROXY=off bin/cyclonedx-gomod bin -json -licenses -std -noserial -notimestamp -version "v$version" -output "$out/$name-linux-$arch.sbom.json" \
        "bin/linux-$arch/$name" 2> bin/sbom.log || die "cyclonedx-gomod: $(tail -n 3 bin/sbom.log)"
    done
  done
  go run ./hack/licenses -texts > "$out/third-party.txt"
  # "helm package" writes times into the archive: the same files give other bytes.
  tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar -C charts outrider |
    gzip -9n > "$out/outrider-$version.tgz"
  install_manifest > "$out/install.yaml"
  grep -q "image: $registry/outrider:$version\$" "$out/install.yaml" || die "install.yaml does not name the image $registry/outrider:$version"
  (cd "$out" && sha256sum -- * > ../SHA256SUMS && mv ../SHA256SUMS .)
}

case ${1-} in
  '')
    build
    say "$out"
    cat "$out/SHA256SUMS"
    ;;
  --check)
    [ -f "$out/SHA256SUMS" ] || build
    copy=$(mktemp -d)
    trap 'rm -rf "$copy"' EXIT
    git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
      [ ! -e "$f" ] || printf '%s\0' "$f"
    done | tar -c --null --files-from=- | tar -x -C "$copy"
    "$copy/hack/release.sh" > /dev/null
    diff "$out/SHA256SUMS" "$copy/bin/release/SHA256SUMS" || die "a second build gave other bytes (above)"
    say "the same bytes twice: $(wc -l < "$out/SHA256SUMS") files"
    ;;
  --install-manifest) install_manifest ;;
  *) die "unknown argument \"$1\": --check, --install-manifest or none" ;;
esac
