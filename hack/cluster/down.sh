#!/bin/bash
# Stops the cluster and removes its state; what was built stays. Ending
# process 1 of its PID namespace ends everything in it.
set -uo pipefail
cd "$(dirname "$0")" || exit
. ./config.sh
[ -d "$STATE" ] || exit 0
[ "$(id -u)" = 0 ] || die "not root: only root can stop the cluster"
take_lock
if pid=$(host_pid); then
  init=$(cluster_pid) && kill -KILL "$init"
  while host_pid > /dev/null; do sleep 0.05; done
fi
# The kernel lets go of control groups a little after their last process.
for try in $(seq 20); do
  folders=$(compgen -G "/sys/fs/cgroup/$CGROUP"; compgen -G "/sys/fs/cgroup/*/$CGROUP")
  [ -n "$folders" ] || break
  find $folders -depth -type d -exec rmdir {} + 2> /dev/null
  sleep 0.1
done
rm -rf "$STATE"/{etcd,containerd,kubelet,cni,pods-log,containers-log,run,unshare.pid}
