#!/bin/bash
# Brings LeaderWorkerSet's controller, of the version in hack/lws/go.mod and with
# that version's own manifests, to the development cluster, and waits until it
# answers; with "down" takes it away again. Replicas of several nodes need it.
# "build" only makes bin/lws-manager, and bin/lws with the manifests.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
[ "$CLUSTER" = own ] || [ "${1-}" = build ] || die "CLUSTER is \"$CLUSTER\": this installs a controller for the whole cluster, so it takes the development cluster (own) only"
work=$root/bin/lws

# A copy of the module's manifests, for kustomize takes no absolute paths, with the
# image that is built here and the resources that one small node has.
manifests() {
  local module version
  go mod download -C hack/lws sigs.k8s.io/lws
  module=$(go list -C hack/lws -m -f '{{.Dir}}' sigs.k8s.io/lws)
  version=$(go list -C hack/lws -m -f '{{.Version}}' sigs.k8s.io/lws)
  image=$registry/lws:$version
  rm -rf "$work"
  mkdir -p "$work"
  cp -r "$module/config" "$work/config"
  chmod -R u+w "$work"
  cat > "$work/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [config/default]
images:
  - {name: us-central1-docker.pkg.dev/k8s-staging-images/lws/lws, newName: $registry/lws, newTag: $version}
patches:
  - patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: lws-controller-manager, namespace: lws-system}
      spec:
        replicas: 1
        template:
          spec:
            containers:
              - name: manager
                resources: {requests: {cpu: 10m, memory: 64Mi}}
                readinessProbe: {initialDelaySeconds: 0, periodSeconds: 1}
YAML
}

build() {
  CGO_ENABLED=0 go build -C hack/lws -trimpath -buildvcs=false -ldflags '-s -w' -o "$root/bin/lws-manager" sigs.k8s.io/lws/cmd
}

up() {
  build
  mkdir -p bin/images
  (cd hack/image && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$root/bin/image" .)
  bin/image -q -o "$images/lws.tar" -t "$image" -entrypoint /manager bin/lws-manager=/manager
  hack/cluster/up.sh "$images/lws.tar"
  kube kustomize "$work" | kube apply --server-side --force-conflicts -f - > "$work/apply.log" 2>&1 || die "kubectl apply: $(tail -n 3 "$work/apply.log")"
  kube --namespace lws-system rollout status deployment/lws-controller-manager --timeout=120s > "$work/rollout.log" 2>&1 ||
    die "LeaderWorkerSet's controller did not come up: $(tail -n 1 "$work/rollout.log")"
  # It is ready before it has its certificate, which it writes into a Secret that its
  # node brings to it when it looks at the pod next, at a change or a minute later.
  local deadline=$((SECONDS + 120))
  until kube apply --dry-run=server -f "$work/config/samples/leaderworkerset_v1_leaderworkerset.yaml" > "$work/try.log" 2>&1; do
    [ $SECONDS -lt $deadline ] || die "LeaderWorkerSet's controller lets no LeaderWorkerSet in: $(tail -n 1 "$work/try.log")"
    kube --namespace lws-system annotate pods --all --overwrite "outrider.dev/looked-at=$SECONDS" > /dev/null
    sleep 2
  done
}

# down deletes the sets first, while their controller still lets changes in.
down() {
  kube delete leaderworkersets --all --all-namespaces --timeout=60s > /dev/null 2>&1 || true
  kube kustomize "$work" | kube delete --ignore-not-found --timeout=60s -f - > "$work/delete.log" 2>&1 || die "kubectl delete: $(tail -n 3 "$work/delete.log")"
}

case ${1-up} in
  up | down | build) manifests && "${1-up}" ;;
  *) die "unknown argument \"$1\": up (the default), down or build" ;;
esac
