#!/bin/bash
# Process 1 of the cluster's own network, mount and PID namespaces, started by
# up.sh: starts every program, then waits. When it ends, all that it started ends.
set -u
cd "$(dirname "$0")" || exit
. ./config.sh
S=$STATE P=$STATE/pki K=$STATE/kubeconfig
# Nothing here may go through a proxy: there is no way out.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
mkdir -p "$S"/{log,etcd,containerd,kubelet,cni,pods-log,containers-log,run}
chmod 700 "$S/etcd"

# Mounts, private to this namespace: nothing is written to the machine's own folders.
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
bind() { mkdir -p "$2" && mount --bind "$1" "$2"; }
bind "$S/kubelet" /var/lib/kubelet   # a fixed path: device plugins and volume plugins know it
bind "$S/cni" /var/lib/cni
bind "$S/pods-log" /var/log/pods
bind "$S/containers-log" /var/log/containers
# The kubelet would set these for the whole machine: here it finds them as it wants them.
pretend() { echo "$2" > "$S/run/${1//\//_}" && mount --bind "$S/run/${1//\//_}" "/proc/sys/$1"; }
pretend vm/overcommit_memory 1
pretend kernel/panic 10
pretend kernel/panic_on_oops 1
mount --make-rshared /   # volumes mounted by the kubelet must reach containers

# Network: the node's address on lo, pods on a bridge, no way out.
ip link set lo up
ip address add "$NODE_IP/32" dev lo
ip route add "$SERVICE_CIDR" dev lo src "$NODE_IP"   # no default route; kube-proxy translates these
sysctl -qw net.ipv4.ip_forward=1

# Control groups: the kubelet's root folder, with every controller it needs.
C=/sys/fs/cgroup
if [ -e $C/cgroup.controllers ]; then # version 2
  controllers=
  for c in cpu cpuset memory pids io hugetlb; do
    ! grep -qw $c $C/cgroup.controllers || controllers="$controllers +$c"
  done
  if ! echo "$controllers" 2> /dev/null > $C/cgroup.subtree_control; then
    # A group other than the machine's own root (so: in a container) passes
    # controllers on only when it holds no process itself: move them down.
    mkdir -p $C/init
    while read -r p; do echo "$p" > $C/init/cgroup.procs; done < $C/cgroup.procs 2> /dev/null
    echo "$controllers" > $C/cgroup.subtree_control || echo "cannot pass on control group controllers$controllers"
  fi
  mkdir -p "$C/$CGROUP"
else # version 1: a folder in each hierarchy
  for h in $C/*/; do
    [ -e "${h}cgroup.procs" ] || continue
    mkdir -p "$h$CGROUP"
    [ ! -e "${h}cpuset.cpus" ] || for f in cpuset.cpus cpuset.mems; do cat "$h$f" > "$h$CGROUP/$f"; done
  done
fi

# A program that ends ends the cluster: better than tests that hang.
trap 'exit 1' TERM INT
start() { (name=$1; "$@" >> "$S/log/$name.log" 2>&1; echo "$name ended with status $?: see $S/log/$name.log"; kill -TERM 1) & }

start containerd --config "$S/containerd.toml"
start etcd --data-dir "$S/etcd" --name node1 \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
  --initial-cluster node1=http://127.0.0.1:2380 --log-level warn --logger zap
start kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
  --advertise-address=$NODE_IP --bind-address=0.0.0.0 --secure-port=6443 \
  --service-cluster-ip-range=$SERVICE_CIDR --allow-privileged=true \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --client-ca-file=$P/ca.crt --tls-cert-file=$P/apiserver.crt --tls-private-key-file=$P/apiserver.key \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local \
  --service-account-key-file=$P/sa.pub --service-account-signing-key-file=$P/sa.key \
  --kubelet-client-certificate=$P/apiserver-kubelet.crt --kubelet-client-key=$P/apiserver-kubelet.key \
  --kubelet-certificate-authority=$P/ca.crt --kubelet-preferred-address-types=InternalIP \
  --requestheader-client-ca-file=$P/front-proxy-ca.crt --requestheader-allowed-names=front-proxy \
  --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
  --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --proxy-client-cert-file=$P/front-proxy.crt --proxy-client-key-file=$P/front-proxy.key
until kubectl --kubeconfig=$K/admin get --raw /readyz > /dev/null 2>&1; do sleep 0.2; done
start kube-controller-manager --kubeconfig=$K/controller-manager \
  --authentication-kubeconfig=$K/controller-manager --authorization-kubeconfig=$K/controller-manager \
  --service-account-private-key-file=$P/sa.key --root-ca-file=$P/ca.crt --use-service-account-credentials=true \
  --cluster-signing-cert-file=$P/ca.crt --cluster-signing-key-file=$P/ca.key \
  --flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins \
  --allocate-node-cidrs=true --cluster-cidr=$POD_CIDR --node-cidr-mask-size=24 --leader-elect=false --bind-address=127.0.0.1
start kube-scheduler --kubeconfig=$K/scheduler \
  --authentication-kubeconfig=$K/scheduler --authorization-kubeconfig=$K/scheduler --leader-elect=false --bind-address=127.0.0.1
start kubelet --config="$S/kubelet.yaml" --kubeconfig=$K/kubelet --hostname-override=$NODE_NAME --node-ip=$NODE_IP
start kube-proxy --config="$S/kube-proxy.yaml" --hostname-override=$NODE_NAME
start coredns -conf "$S/Corefile"

wait
