#!/bin/bash
# make quickstart: from a fresh machine to a streamed completion.
# quickstart.sh down: removes what it made.
#
# Settings: see lib.sh; QUICKSTART_TIMEOUT (5m) is how long the server may take.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
sample=config/samples/quickstart.yaml

down() {
  if [ "$CLUSTER" = own ]; then
    hack/cluster/down.sh
    echo "The cluster is gone; what was built stays for the next time (make clean removes it)."
    return
  fi
  kube delete --ignore-not-found -f "$sample"
  kube delete --ignore-not-found -k config/default
}

# report says what state things are in, after a failure.
report() {
  local status=$?
  [ $status != 0 ] || return 0
  trap - EXIT
  {
    echo
    echo "quickstart failed; what state things are in:"
    show() { echo; echo "--- $*"; timeout 20 "$@" 2>&1 | tail -n 40 || true; }
    if in_cluster timeout 20 kubectl get --raw /readyz > /dev/null 2>&1; then
      kubectl=(kubectl)
      [ "$CLUSTER" = current ] || kubectl=(hack/cluster/kin kubectl)
      show "${kubectl[@]}" get speculativeservers,pods --all-namespaces -o wide
      show "${kubectl[@]}" get speculativeserver quickstart -n default -o jsonpath='{.status}{"\n"}'
      show "${kubectl[@]}" get events --all-namespaces --sort-by=.metadata.creationTimestamp
      show "${kubectl[@]}" logs --namespace outrider-system deployment/outrider --tail=40
      show "${kubectl[@]}" logs --namespace default --selector inference.outrider.dev/server=quickstart --tail=40
    elif [ "$CLUSTER" = own ]; then
      echo "the cluster does not answer; its logs are in ${OUTRIDER_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/outrider/cluster}/log"
    else
      echo "the API server of the kubeconfig in force does not answer"
    fi
  } >&2
  exit $status
}

up() {
  [ "$CLUSTER" = current ] || hack/cluster/check.sh
  command -v go > /dev/null || die "no Go on the PATH: install Go 1.26 or later (https://go.dev/dl)"
  say "Building the operator and the engine"
  hack/build.sh
  CGO_ENABLED=0 go build -trimpath -o bin/quickstart ./hack/quickstart
  trap report EXIT
  if [ "$CLUSTER" = own ]; then
    say "Starting a one-node Kubernetes cluster, unless it runs (the first time builds it: some minutes)"
    hack/cluster/up.sh
  fi
  say "Making the images, installing the CRD and the operator"
  hack/deploy.sh
  say "Applying $sample"
  kube apply -f "$sample"
  flags=(-timeout "${QUICKSTART_TIMEOUT:-5m}")
  [ "$CLUSTER" = own ] || flags+=(-port-forward)
  in_cluster "$root/bin/quickstart" "${flags[@]}"
  trap - EXIT
  farewell
}

farewell() {
  local request='{"model":"gocode-7m","prompt":"package main\n\nimport (\n","max_tokens":64,"temperature":0}'
  echo
  if [ "$CLUSTER" = own ]; then
    local address
    address=$(kube get service quickstart --namespace default -o jsonpath='{.spec.clusterIP}:{.spec.ports[0].port}')
    cat <<TEXT
Send a request:
  hack/cluster/kin curl -s http://$address/v1/completions -H 'Content-Type: application/json' \\
    -d '$request'
Look at status:
  hack/cluster/kin kubectl get speculativeservers
  hack/cluster/kin kubectl describe speculativeserver quickstart
Stop and remove it all:
  make quickstart-down
TEXT
  else
    cat <<TEXT
Send a request:
  kubectl port-forward --namespace default service/quickstart 8000 &
  curl -s http://localhost:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '$request'
Look at status:
  kubectl get speculativeservers
  kubectl describe speculativeserver quickstart
Remove it all:
  make quickstart-down CLUSTER=current
TEXT
  fi
}

case ${1-} in
  '') up ;;
  down) down ;;
  *) die "unknown argument \"$1\": down or none" ;;
esac
