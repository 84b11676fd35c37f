#!/bin/bash
# Builds the operator's and the engine's images, with no container engine, into
# bin/images; with --push also to their registry. See lib.sh for the settings.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
push=
case ${1-} in
  '') ;;
  --push) push=-push ;;
  *) die "unknown argument \"$1\": --push or none" ;;
esac
cd "$root"
mkdir -p bin/images
(cd hack/image && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$root/bin/image" .)
for name in outrider outrider-engine; do
  # The digest is what tells a changed image from one that is the same.
  bin/image -o "$images/$name.tar" $push -t "$registry/$name:$tag" \
    -label org.opencontainers.image.source=https://github.com/outrider-dev/outrider \
    -label org.opencontainers.image.licenses=Apache-2.0 \
    -entrypoint "/$name" "bin/$name=/$name" LICENSE=/LICENSE > "$images/$name.name"
  cat "$images/$name.name"
done
