#!/bin/bash
# Runs every fuzz target for FUZZTIME (10s by default), one after the other, as
# "go test -fuzz" takes one at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0 targets=0
while IFS=: read -r file name; do
  targets=$((targets + 1))
  echo "==> $name in ./$(dirname "$file")"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "./$(dirname "$file")" || status=1
done < <(git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]*' -- '*_test.go' | sed 's/:func /:/')
[ $targets != 0 ] || { echo "fuzz.sh: no fuzz target found" >&2; exit 1; }
exit $status
