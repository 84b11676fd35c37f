#!/bin/bash
# Installs Debian packages that are missing: hack/deps.sh gcc libc6-dev
# Without root or apt-get it says in one line what to install instead.
set -euo pipefail
missing=()
for p in "$@"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2> /dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} != 0 ] || exit 0
fail() { echo "${0##*/}: $1; install ${missing[*]} by hand" >&2; exit 1; }
command -v apt-get > /dev/null || fail "no apt-get on this machine"
[ "$(id -u)" = 0 ] || fail "not root, so apt-get cannot be run"
echo "installing ${missing[*]} (Debian packages)" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >> "$log" 2>&1; }
install || { apt-get update -qq >> "$log" 2>&1 && install; } ||
  fail "apt-get failed: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log")"
