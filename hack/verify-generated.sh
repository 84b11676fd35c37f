#!/bin/bash
# Fails when a generated file is not what its generator makes, or go.mod is not
# tidy. It works on a copy, so the working tree stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'chmod -R u+w "$copy"; rm -rf "$copy"' EXIT
# What git tracks, and what it would: deleted files are listed too, hence the test.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
  [ ! -e "$f" ] || printf '%s\0' "$f"
done | tar -c --null --files-from=- | tar -x -C "$copy"
cp -a "$copy" "$copy.before"
trap 'chmod -R u+w "$copy" "$copy.before"; rm -rf "$copy" "$copy.before"' EXIT
"$copy/hack/generate.sh"
rm -rf "$copy/bin"
status=0
if ! diff -ru "$copy.before" "$copy"; then
  echo "verify-generated: generated files are not up to date (above): run \"make generate\" and commit what it changes" >&2
  status=1
fi
for module in . hack/image hack/chart hack/cluster/images hack/cluster/hyperkube hack/tools/release; do
  if ! (cd "$module" && go mod tidy -diff); then
    echo "verify-generated: $module/go.mod is not tidy (above): run \"go mod tidy\" in $module and commit what it changes" >&2
    status=1
  fi
done
exit $status
