#!/bin/bash
# Builds, brings the images, the CRD and the operator to the cluster (starting
# the development cluster if need be), and waits for the operator. Running it again with the same images changes
# nothing; with new ones it restarts the operator, and on the development
# cluster the engines too.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root"
hack/build.sh
digest() { sed 's/.*@//' "$images/$1.name"; }
case $CLUSTER$registry_given in
  own*)
    hack/images.sh > /dev/null
    hack/cluster/up.sh "$images/outrider.tar" "$images/outrider-engine.tar"
    ;;
  currentyes) hack/images.sh --push > /dev/null ;;
  current) digest() { echo as-found; } ;; # whoever put them where the nodes find them
esac

# The images keep their names when they are built again, so their digests go
# into the pod template: a changed image is then a changed Deployment.
overlay=$root/bin/deploy
mkdir -p "$overlay"
cat > "$overlay/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../config/default
patches:
  - patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: outrider, namespace: outrider-system}
      spec:
        template:
          metadata:
            annotations:
              deploy.outrider.dev/operator-digest: "$(digest outrider)"
YAML
engine_digest='{.metadata.annotations.deploy\.outrider\.dev/engine-digest}'
before=$(kube get namespace outrider-system --ignore-not-found -o jsonpath="$engine_digest")
kube kustomize "$overlay" |
  sed "s#ghcr\.io/outrider-dev/\(outrider\|outrider-engine\|outrider-engine-cuda\):dev#$registry/\1:$tag#g" |
  kube apply --server-side --force-conflicts -f - > "$overlay/apply.log" 2>&1 || die "kubectl apply: $(tail -n 3 "$overlay/apply.log")"
kube wait --for=condition=Established crd/speculativeservers.inference.outrider.dev --timeout=60s > /dev/null
kube --namespace outrider-system rollout status deployment/outrider --timeout="${DEPLOY_TIMEOUT:-180s}" > "$overlay/rollout.log" 2>&1 ||
  die "the operator did not come up: $(tail -n 1 "$overlay/rollout.log")"
after=$(digest outrider-engine)
if [ "$before" != "$after" ]; then
  # Deleted engines come back with the new image.
  [ -z "$before" ] || [ "$CLUSTER" != own ] || kube delete pods --all-namespaces --selector inference.outrider.dev/server > /dev/null
  kube annotate namespace outrider-system --overwrite "deploy.outrider.dev/engine-digest=$after" > /dev/null
fi
