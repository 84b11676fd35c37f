#!/bin/bash
# Builds what a release has into bin/release (of the version in VERSION):
#
#	outrider-…, outrider-engine-…   static binaries of this machine's architecture
#	*.oci.tar                       the images, OCI layouts (docker load, ctr images import)
#	outrider-VERSION.tgz            the Helm chart
#	install.yaml                    what "kubectl apply -k config/default" applies, with this version's images
#	*.sbom.json                     a CycloneDX bill of materials of each binary, read out of it
#	third-party.txt                 texts and notices of all licences
#	images.txt                      names and digests of the images
#	SHA256SUMS                      of all of these
#
#	hack/release.sh           build
#	hack/release.sh --check   build a second time, from a copy elsewhere, and compare
#	                          (with GOCACHE in an empty folder nothing is shared)
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
version=$(< VERSION)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || die "VERSION is \"$version\": want MAJOR.MINOR.PATCH, as in 0.1.0"
arch=$(go env GOARCH)
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

build() {
  rm -rf "$out"
  mkdir -p "$out"
  VERSION=v$version hack/build.sh
  TAG=$version hack/images.sh > "$out/images.txt"
  for name in outrider outrider-engine; do
    cp "bin/$name" "$out/$name-linux-$arch"
    cp "bin/images/$name.tar" "$out/$name-$version-linux-$arch.oci.tar"
  done
  (cd hack/tools/release && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$root/bin/" tool)
  for name in outrider outrider-engine; do
    # GOPROXY: it would look for this version, which nobody has published yet.
    GOPROXY=off bin/cyclonedx-gomod bin -json -licenses -std -noserial -notimestamp -version "v$version" -output "$out/$name-linux-$arch.sbom.json" "bin/$name" \
      2> bin/sbom.log || die "cyclonedx-gomod: $(tail -n 3 bin/sbom.log)"
  done
  go run ./hack/licenses -texts > "$out/third-party.txt"
  # "helm package" writes times into the archive: the same files give other bytes.
  tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar -C charts outrider |
    gzip -9n > "$out/outrider-$version.tgz"
  # The images' names in config are those of development.
  manifest config/default | sed "s#ghcr\.io/outrider-dev/\(outrider\|outrider-engine\):dev#$registry/\1:$version#g" > "$out/install.yaml"
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
  *) die "unknown argument \"$1\": --check or none" ;;
esac
