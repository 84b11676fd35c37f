#!/bin/bash
# Tries on a running cluster everything that an operator and its tests need:
# one line a check. It works in a namespace of its own, which it removes.
set -uo pipefail
cd "$(dirname "$0")" || exit
. ../config.sh
namespace=outrider-check
shared=/tmp/outrider-check   # a hostPath volume, see pod.yaml
work=$(mktemp -d)
in_cluster() { ../kin "$@"; }
k() { in_cluster kubectl -n $namespace "$@"; }
export -f in_cluster k
export namespace
passed=0 failed=0
check() { # NAME PATTERN COMMAND...: the command's output must match the pattern
  local name=$1 pattern=$2 out
  shift 2
  out=$("$@" 2>&1)
  if grep -qE -- "$pattern" <<< "$out"; then
    passed=$((passed + 1)); echo "ok    $name"
  else
    failed=$((failed + 1)); echo "FAIL  $name: wanted /$pattern/, got: ${out:0:600}"
  fi
}
in_cluster true || exit
cleanup() {
  in_cluster kubectl delete validatingwebhookconfiguration outrider-check --ignore-not-found > /dev/null
  in_cluster kubectl delete namespace $namespace --ignore-not-found --timeout=90s > /dev/null
  in_cluster kubectl delete pv -l app=outrider-check > /dev/null 2>&1
  in_cluster kubectl delete crd widgets.example.com --ignore-not-found > /dev/null
  k patch node $NODE_NAME --subresource=status --type=json -p '[{"op":"remove","path":"/status/capacity/example.com~1gpu"}]' > /dev/null 2>&1
  rm -rf "$shared" "$work"
}
trap cleanup EXIT
cleanup; mkdir -p "$work"
begin=$(date +%s)
in_cluster kubectl create namespace $namespace > /dev/null
for try in $(seq 50); do ! k get serviceaccount default > /dev/null 2>&1 || break; sleep 0.1; done

# Pods
k apply -f pod.yaml > /dev/null
check "pod: probes, limits, volumes; containers ready" met k wait --for=condition=ContainersReady pod/app --timeout=60s
check "readiness gate holds the pod back" ReadinessGatesNotReady k get pod app -o json
k patch pod app --subresource=status --type=strategic -p '{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}' > /dev/null
check "readiness gate opened: pod Ready" met k wait --for=condition=Ready pod/app --timeout=20s
check "logs" 'testapp on' k logs app
check "exec" 'hello from app' k exec app -- /testapp get http://127.0.0.1:8080/
check "memory emptyDir at /dev/shm" 'tmpfs /dev/shm.*size=65536k' k exec app -- /testapp cat /proc/mounts
k exec app -- /testapp write /host/x "$$"
check "hostPath" "^$$\$" cat "$shared/x"
check "projected service account token" '"aud":\["test"\]' bash -c "k exec app -- /testapp cat /token/token | cut -d. -f2 | tr '_-' '/+' | base64 -d 2> /dev/null"
check "memory limit is in the cgroup" 67108864 bash -c "cat /sys/fs/cgroup/memory/$CGROUP/kubepods/burstable/*/*/memory.limit_in_bytes /sys/fs/cgroup/$CGROUP/kubepods/burstable/*/*/memory.max 2> /dev/null"
k exec app -- /testapp get 'http://127.0.0.1:8080/set?live=false' > /dev/null
check "liveness failure restarts the container" met k wait --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 pod/app --timeout=40s
check "kubelet statistics" '"podRef"' k get --raw /api/v1/nodes/$NODE_NAME/proxy/stats/summary
check "delete a pod" deleted k delete pod app --timeout=30s

# Workloads and services
k apply -f deploy.yaml > /dev/null
check "deployment" 'successfully rolled out' k rollout status deploy/web --timeout=90s
check "statefulset with volume claims" 'roll out complete' k rollout status sts/db --timeout=90s
web=$(k get svc web -o jsonpath='{.spec.clusterIP}')
port=$(k get svc web -o jsonpath='{.spec.ports[0].nodePort}')
fetch() { in_cluster curl -sm 3 --retry 5 --retry-all-errors "$1"; }
check "ClusterIP from the node" 'hello from web' fetch "http://$web/"
check "NodePort from the node" 'hello from web' fetch "http://$NODE_IP:$port/"
check "ClusterIP from a pod" 'hello from web' k exec db-0 -- /testapp get "http://$web/"
check "ClusterIP hairpin" '(hello.*){6}' bash -c "k exec deploy/web -- /testapp get $(printf "http://$web/ %.0s" 1 2 3 4 5 6) | tr '\n' ' '"
check "DNS of a service" 'hello from web' k exec db-0 -- /testapp get http://web.$namespace.svc.cluster.local/
check "service proxy through the API server" 'hello from web' k get --raw /api/v1/namespaces/$namespace/services/web:80/proxy/
k set image deploy/web app=outrider.local/testapp:2 > /dev/null
check "rolling update" 'successfully rolled out' k rollout status deploy/web --timeout=90s
check "new version serves" ' v2' fetch "http://$web/"

# Devices
k patch node $NODE_NAME --subresource=status --type=json -p '[{"op":"add","path":"/status/capacity/example.com~1gpu","value":"8"}]' > /dev/null
k wait --for=jsonpath='{.status.allocatable.example\.com/gpu}'=8 node/$NODE_NAME --timeout=30s > /dev/null
k apply -f gpu.yaml > /dev/null
check "extended resource patched on the node" met k wait --for=condition=Ready pod/gpu --timeout=40s
sed 's/name: gpu}/name: gpu7}/; s/gpu: 2/gpu: 7/' gpu.yaml | k apply -f - > /dev/null
k wait --for=condition=PodScheduled=false pod/gpu7 --timeout=20s > /dev/null
check "... and counted by the scheduler" 'Insufficient example.com/gpu' k get pod gpu7 -o json
in_cluster fakedevices example.com/accel 4 ACCEL_DEVICES > /dev/null 2>&1 &
check "device plugin" met k wait --for=jsonpath='{.status.allocatable.example\.com/accel}'=4 node/$NODE_NAME --timeout=30s
sed 's/name: gpu}/name: accel}/; s/example.com.gpu: 2/example.com\/accel: 3/' gpu.yaml | k apply -f - > /dev/null
check "pod with devices from the plugin" met k wait --for=condition=Ready pod/accel --timeout=40s
check "... told which" 'ACCEL_DEVICES=.,.,.$' k exec accel -- /testapp env
k delete pod accel --timeout=20s > /dev/null
in_cluster pkill -f '^fakedevices example.com/accel '   # a job's own number is only nsenter's

# Custom resources and webhooks
k apply -f crd.yaml > /dev/null
k wait --for=condition=Established crd/widgets.example.com > /dev/null
check "custom resource, defaulted" '^1$' bash -c "printf 'apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\nspec: {}\n' | k apply -f - -o jsonpath={.spec.replicas}"
check "custom resource refused by CEL" 'too many' bash -c "printf 'apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: b}\nspec: {replicas: 11}\n' | k apply -f -"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$work/tls.key" -out "$work/tls.crt" -days 10 \
  -subj /CN=hook -addext subjectAltName=DNS:hook.$namespace.svc 2> /dev/null
k create secret tls hook --cert="$work/tls.crt" --key="$work/tls.key" > /dev/null
sed "s|caBundle: CA|caBundle: $(base64 -w0 "$work/tls.crt")|" webhook.yaml | k apply -f - > /dev/null
k wait --for=condition=Ready pod/hook --timeout=40s > /dev/null
for try in $(seq 50); do # until kube-proxy knows the pod
  ! k create configmap "try$try" --from-literal=a=b > /dev/null 2>&1 || break
  sleep 0.2
done
check "webhook in a pod allows" created k create configmap good --from-literal=a=b
check "webhook in a pod denies" 'denied the request: labelled deny' bash -c "printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad, labels: {deny: \"1\"}}\n' | k apply -f -"
in_cluster kubectl delete validatingwebhookconfiguration outrider-check > /dev/null

# Security contexts, jobs, limits
k apply -f more.yaml > /dev/null
check "init container, sidecar, non-root, read-only root, seccomp" met k wait --for=condition=Ready pod/secure --timeout=40s
check "host network, privileged" met k wait --for=condition=Ready pod/hostnet --timeout=40s
check "job" met k wait --for=condition=Complete job/ok --timeout=40s
check "failed job" met k wait --for=condition=Failed job/bad --timeout=40s
check "out of memory" met k wait --for=jsonpath='{.status.containerStatuses[0].state.terminated.reason}'=OOMKilled pod/oom --timeout=40s
echo "$passed passed, $failed failed, in $(($(date +%s) - begin)) s"
[ $failed = 0 ]
