# Settings of the development cluster, and the few functions that its scripts
# share. Sourced, never run.

# Everything that the cluster has lies under one folder: bin (also a
# KUBEBUILDER_ASSETS for envtest), images, certificates, etcd, containerd,
# kubelet and log. A second folder is a second cluster.
: "${OUTRIDER_CLUSTER_DIR:=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/outrider/cluster}"
export OUTRIDER_CLUSTER_DIR
STATE=$OUTRIDER_CLUSTER_DIR

K8S_VERSION=v1.36.3                  # as in hyperkube/go.mod
NODE_NAME=node1
# Ranges for documentation and benchmarks (RFC 5737, RFC 2544): they are used
# only inside the cluster's own network namespace, which has no way out, and
# cannot hide an address that someone needs.
NODE_IP=203.0.113.1                  # the API server, the kubelet and the DNS listen here
POD_CIDR=198.51.100.0/24
SERVICE_CIDR=198.18.0.0/24
SERVICE_IP=198.18.0.1                # of the service default/kubernetes
PAUSE_IMAGE=outrider.local/pause:1   # the sandbox container of every pod

# A folder of this name in each cgroup hierarchy; cgroups are the machine's, so
# the name tells clusters with different folders apart.
CGROUP=outrider-$(printf %s "$STATE" | cksum | cut -d' ' -f1)

# The cluster's own programs come first, so that its kubectl is the one used.
# Debian keeps ip and nft in /usr/sbin, which is not on every user's PATH.
export PATH=$STATE/bin:$PATH:/usr/local/go/bin:/usr/sbin:/sbin

die() { echo "${0##*/}: $*" >&2; exit 1; }
say() { echo "cluster: $*" >&2; }

# host_pid prints the process outside that holds the cluster's namespaces;
# it fails when no cluster of this folder runs. The check of the command line
# guards against a number that meanwhile belongs to something else.
host_pid() {
  local pid
  pid=$(cat "$STATE/unshare.pid" 2> /dev/null) || return 1
  tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null | grep -q '^unshare .*/init\.sh' || return 1
  echo "$pid"
}

# cluster_pid prints the number, outside, of the cluster's process 1.
cluster_pid() {
  local pid
  pid=$(host_pid) || return 1
  pgrep -P "$pid"
}

# take_lock waits until no other script changes the cluster of this folder.
# The lock is on descriptor 9: whatever outlives the script must close it.
take_lock() {
  mkdir -p "$STATE" || die "cannot make $STATE: set OUTRIDER_CLUSTER_DIR to a folder that can be written"
  [ -z "${OUTRIDER_CLUSTER_LOCKED-}" ] || return 0   # the caller holds it
  exec 9> "$STATE/lock"
  if ! flock -n 9; then
    say "another run holds $STATE/lock: waiting for it"
    flock -w 900 9 || die "another run has held $STATE/lock for 15 minutes: end it, or set OUTRIDER_CLUSTER_DIR to another folder"
  fi
  export OUTRIDER_CLUSTER_LOCKED=1
}

case $STATE in
  *[[:space:]]* | [!/]*) die "OUTRIDER_CLUSTER_DIR is \"$STATE\": it must be an absolute path without spaces" ;;
esac
