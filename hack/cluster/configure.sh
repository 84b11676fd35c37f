#!/bin/bash
# Writes the configuration files of the cluster's programs.
set -euo pipefail
cd "$(dirname "$0")"
. ./config.sh
mkdir -p "$STATE/cni-conf"
# Root may lack CAP_SYS_RESOURCE in a container, hence restrict_oom_score_adj.
cat > "$STATE/containerd.toml" <<TOML
version = 2
root = '$STATE/containerd'
state = '/run/containerd'
[grpc]
  address = '/run/containerd/containerd.sock'
[plugins.'io.containerd.grpc.v1.cri']
  sandbox_image = '$PAUSE_IMAGE'
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.grpc.v1.cri'.cni]
  bin_dir = '$STATE/bin/cni'
  conf_dir = '$STATE/cni-conf'
TOML
cat > "$STATE/cni-conf/10-bridge.conflist" <<JSON
{
  "cniVersion": "1.0.0",
  "name": "outrider",
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
  ]
}
JSON
# failCgroupV1: machines with version 1 still exist, and the kubelet refuses
# them unless told. A nearly full disk is no reason to evict pods, or to delete
# images that no registry has.
cat > "$STATE/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $STATE/pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $STATE/pki/kubelet-server.crt
tlsPrivateKeyFile: $STATE/pki/kubelet-server.key
clusterDomain: cluster.local
clusterDNS: [$NODE_IP]
resolvConf: ""
failSwapOn: false
makeIPTablesUtilChains: false
volumePluginDir: /var/lib/kubelet/volume-plugins
nodeStatusUpdateFrequency: 5s
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%, imagefs.inodesFree: 1%}
YAML
# The conntrack limits are the machine's; zeros leave them alone.
cat > "$STATE/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $STATE/kubeconfig/proxy}
clusterCIDR: $POD_CIDR
nodePortAddresses: [primary]
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
cat > "$STATE/Corefile" <<DNS
.:53 {
  bind $NODE_IP
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $STATE/kubeconfig/admin
    pods verified
    ttl 1
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
DNS
