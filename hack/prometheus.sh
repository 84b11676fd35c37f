#!/bin/bash
# Puts Debian's prometheus and promtool into bin, without installing the
# package: that would start a service.
set -euo pipefail
cd "$(dirname "$0")/.."
[ ! -x bin/promtool ] || [ ! -x bin/prometheus ] || exit 0
command -v apt-get > /dev/null || { echo "${0##*/}: no apt-get on this machine: put prometheus and promtool into bin by hand" >&2; exit 1; }
mkdir -p bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
log=$work/log
download() { (cd "$work" && apt-get download prometheus >> "$log" 2>&1); }
download || { apt-get update -qq >> "$log" 2>&1 && download; } || {
  echo "${0##*/}: apt-get download prometheus failed: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log")" >&2
  exit 1
}
dpkg-deb -x "$work"/prometheus_*.deb "$work/root"
cp "$work/root/usr/bin/prometheus" "$work/root/usr/bin/promtool" bin/
