# What the scripts beside it share. Sourced, never run.
#
# CLUSTER        own (default): the development cluster of hack/cluster;
#                current: the cluster of the kubeconfig in force
# IMAGE_REGISTRY where images are named, ghcr.io/outrider-dev by default
# TAG            the images' tag, dev by default
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${CLUSTER:=own}"
registry_given=${IMAGE_REGISTRY:+yes}
: "${IMAGE_REGISTRY:=ghcr.io/outrider-dev}" "${TAG:=dev}"
images=$root/bin/images

die() { echo "${0##*/}: $*" >&2; exit 1; }
say() { echo "==> $*"; }

case $CLUSTER in
  own) ;;
  current) command -v kubectl > /dev/null || die "no kubectl on the PATH, and CLUSTER=current uses it: install kubectl" ;;
  *) die "CLUSTER is \"$CLUSTER\": own (the development cluster) or current (the kubeconfig in force)" ;;
esac
case $IMAGE_REGISTRY in
  *[!a-zA-Z0-9._:/-]* | */ | -*) die "IMAGE_REGISTRY is \"$IMAGE_REGISTRY\": want a registry and path without a slash at the end, as in ghcr.io/outrider-dev" ;;
esac
case $TAG in
  *[!a-zA-Z0-9._-]* | -* | .*) die "TAG is \"$TAG\": want letters, digits, dots, dashes and underscores" ;;
esac

# in_cluster runs a command where the cluster's API server can be reached.
in_cluster() {
  case $CLUSTER in
    own) "$root/hack/cluster/kin" "$@" ;;
    current) "$@" ;;
  esac
}
kube() { in_cluster kubectl "$@"; }
