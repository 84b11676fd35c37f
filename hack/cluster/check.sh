#!/bin/bash
# Says in one line why a cluster cannot run on this machine, or says nothing.
set -euo pipefail
cd "$(dirname "$0")"
. ./config.sh
[ "$(uname -s)" = Linux ] || die "the cluster needs Linux, this is $(uname -s): use CLUSTER=current with a cluster of your own"
[ "$(id -u)" = 0 ] ||
  die "not root, and the cluster makes namespaces, mounts and control groups: run as root, or use CLUSTER=current with a cluster of your own"
unshare --net --mount --pid --fork true 2> /dev/null ||
  die "this root may not make namespaces (unshare fails): a container needs to run privileged (CAP_SYS_ADMIN)"
C=/sys/fs/cgroup
writable() { mkdir "$1/$CGROUP-try" 2> /dev/null && rmdir "$1/$CGROUP-try"; }
if [ -e $C/cgroup.controllers ]; then # version 2: one hierarchy
  for c in cpu cpuset memory pids; do
    grep -qw $c $C/cgroup.controllers || die "control group controller \"$c\" is not in $C/cgroup.controllers: the kubelet needs cpu, cpuset, memory and pids"
  done
  writable $C || die "$C is read-only: the kubelet makes control groups, so a container needs to run privileged"
else # version 1: one hierarchy a controller
  for c in cpu cpuacct cpuset memory pids devices freezer; do
    [ -e $C/$c/cgroup.procs ] || die "control group hierarchy $C/$c is not mounted: the kubelet needs cpu, cpuacct, cpuset, memory, pids, devices and freezer (or version 2)"
    writable $C/$c || die "$C/$c is read-only: the kubelet makes control groups, so a container needs to run privileged"
  done
fi
free=$(mkdir -p "$STATE" && df -Pm "$STATE" | awk 'NR == 2 {print $4}')
[ "$free" -ge 2000 ] || die "$free MB free under $STATE, and the cluster needs 2000: make room, or set OUTRIDER_CLUSTER_DIR to another folder"
