# What the scripts beside it share. Sourced, never run.
#
# CLUSTER        own (default): the development cluster of hack/cluster;
#                current: the cluster of the kubeconfig in force
# IMAGE_REGISTRY where images are named, ghcr.io/outrider-dev by default
# TAG            the images' tag, dev by default
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${CLUSTER:=own}"
# Variables of its own, since a default that a script exports would look to the
# scripts that it calls like a registry that the user named.
registry_given=${IMAGE_REGISTRY:+yes}
registry=${IMAGE_REGISTRY:-ghcr.io/outrider-dev}
tag=${TAG:-dev}
images=$root/bin/images

die() { echo "${0##*/}: $*" >&2; exit 1; }
say() { echo "==> $*"; }

case $CLUSTER in
  own) ;;
  current) command -v kubectl > /dev/null || die "no kubectl on the PATH, and CLUSTER=current uses it: install kubectl" ;;
  *) die "CLUSTER is \"$CLUSTER\": own (the development cluster) or current (the kubeconfig in force)" ;;
esac
case $registry in
  *[!a-zA-Z0-9._:/-]* | */ | -*) die "IMAGE_REGISTRY is \"$registry\": want a registry and path without a slash at the end, as in ghcr.io/outrider-dev" ;;
esac
case $tag in
  *[!a-zA-Z0-9._-]* | -* | .*) die "TAG is \"$tag\": want letters, digits, dots, dashes and underscores" ;;
esac

# in_cluster runs a command where the cluster's API server can be reached.
in_cluster() {
  case $CLUSTER in
    own) "$root/hack/cluster/kin" "$@" ;;
    current) "$@" ;;
  esac
}
kube() { in_cluster kubectl "$@"; }
