#!/bin/bash
# up.sh [--fresh] [IMAGE.tar...]
#
# Starts the one-node cluster, unless it runs already, waits until its node is
# Ready, and imports the images. --fresh starts a new, empty cluster in any case.
set -euo pipefail
fresh=
images=()
for arg in "$@"; do
  case $arg in
    --fresh) fresh=yes ;;
    -*) echo "up.sh: unknown flag $arg: the only one is --fresh" >&2; exit 2 ;;
    *) [ -r "$arg" ] || { echo "up.sh: no image file $arg: make images writes them" >&2; exit 2; }
       images+=("$(realpath "$arg")") ;;
  esac
done
cd "$(dirname "$0")"
. ./config.sh
./check.sh
take_lock
./install.sh

import() { # IMAGE.tar...
  for image in "$@"; do
    ./kin ctr -n k8s.io images import "$image" > "$STATE/import.log" 2>&1 || die "cannot import $image: $(tail -n 1 "$STATE/import.log")"
  done
}
if [ -z "$fresh" ] && host_pid > /dev/null && ./kin kubectl --request-timeout=20s get --raw /readyz > /dev/null 2>&1; then
  import "${images[@]}"
  [ ${#images[@]} != 0 ] || cmp -s "$STATE/bin/stamp" "$STATE/started-stamp" ||
    say "it runs with programs older than those built since: hack/cluster/up.sh --fresh starts it anew, empty"
  exit 0
fi

say "starting"
./down.sh
rm -rf "$STATE/log"
./certs.sh
./configure.sh
cp "$STATE/bin/stamp" "$STATE/started-stamp"
# Descriptor 9 is the lock, which must not outlive this script.
setsid unshare --net --mount --pid --fork --kill-child --mount-proc "$PWD/init.sh" > "$STATE/init.log" 2>&1 < /dev/null 9>&- &
echo $! > "$STATE/unshare.pid"
for try in $(seq 50); do
  ! host_pid > /dev/null || break
  sleep 0.1
done

deadline=$(($(date +%s) + 300))
wait_for() { # COMMAND...: until it succeeds inside the cluster
  until ./kin "$@" > /dev/null 2>&1; do
    host_pid > /dev/null || die "the cluster ended: $(tail -n 1 "$STATE/init.log")"
    [ "$(date +%s)" -lt $deadline ] || die "not up after 300 s, \"$*\" still fails: see $STATE/log"
    sleep 0.2
  done
}
wait_for ctr version
import "$STATE"/images/*.tar "${images[@]}"
wait_for kubectl get --raw /readyz
wait_for kubectl get serviceaccount default
wait_for kubectl wait --for=condition=Ready "node/$NODE_NAME" --timeout=20s
