#!/bin/bash
# Makes the programs and the images of the cluster, once: Kubernetes and
# CoreDNS from Go modules; etcd, containerd, runc and the CNI plugins from
# Debian's packages, unpacked and not installed, so no service is started.
#
# With the argument "assets": only what envtest needs (etcd, kube-apiserver,
# kubectl); the rest of Debian's packages and root are not needed for that.
set -euo pipefail
cd "$(dirname "$0")"
. ./config.sh
what=${1:-all}
case $what in all | assets) ;; *) die "unknown argument \"$what\": \"assets\" or none" ;; esac

command -v go > /dev/null || die "no Go on the PATH: install Go 1.26 or later (https://go.dev/dl)"

# programs_stamp changes with anything that the programs or images are made of.
programs_stamp() { cat install.sh config.sh hyperkube/go.* hyperkube/*.go hyperkube/*/*.go images/go.mod images/*/*.go ../image/go.* ../image/*.go | sha256sum; }
if [ "$what" = all ] && [ "$(cat "$STATE/bin/stamp" 2> /dev/null)" = "$(programs_stamp)" ]; then exit 0; fi
if [ "$what" = assets ] && [ -x "$STATE/bin/etcd" ] && [ "$(cat "$STATE/bin/assets-stamp" 2> /dev/null)" = "$(programs_stamp)" ]; then exit 0; fi

take_lock
mkdir -p "$STATE"/{bin,images,deb}

# The tools that the scripts use, by the Debian package that has each.
tools='nft:nftables ip:iproute2 openssl:openssl sysctl:procps pgrep:procps unshare:util-linux nsenter:util-linux flock:util-linux curl:curl'
packages='containerd runc etcd-server containernetworking-plugins'
if [ "$what" = assets ]; then tools='' packages=etcd-server; fi
missing=
for t in $tools; do
  command -v "${t%:*}" > /dev/null || missing="$missing ${t#*:}"
done
[ -z "$missing" ] || ../deps.sh $missing

# unpack puts Debian's packages under deb. The mirror's list may be older than
# the mirror, so a failed download is tried again with a fresh list.
unpack() {
  command -v apt-get > /dev/null || die "no apt-get: the cluster takes $packages from Debian's or Ubuntu's packages"
  say "downloading $packages (Debian packages)"
  local folder=$STATE/deb/new
  rm -rf "$folder" && mkdir -p "$folder"
  (
    cd "$folder"
    apt-get download -qq $packages > apt.log 2>&1 ||
      { apt-get update -qq >> apt.log 2>&1 && apt-get download -qq $packages >> apt.log 2>&1; } ||
      die "apt-get cannot download $packages: $(grep -m 1 '^E:' apt.log || tail -n 1 apt.log)"
    for d in *.deb; do dpkg -x "$d" "$STATE/deb"; done
  )
  rm -rf "$folder"
}
have=yes
for p in $packages; do
  case $p in
    etcd-server) [ -x "$STATE/bin/etcd" ] ;;
    containernetworking-plugins) [ -e "$STATE/bin/cni/bridge" ] ;;
    *) [ -x "$STATE/bin/$p" ] ;;
  esac || have=no
done
[ $have = yes ] || unpack
for p in containerd containerd-shim-runc-v2 ctr etcd runc; do
  # in /usr/bin or /usr/sbin, which differs between Debian's releases; either may be missing
  file=$(find "$STATE/deb/usr/bin" "$STATE/deb/usr/sbin" -name "$p" 2> /dev/null | head -n 1 || true)
  [ -z "$file" ] || ln -sf "$file" "$STATE/bin/$p"
done
[ ! -d "$STATE/deb/usr/lib/cni" ] || ln -sfn ../deb/usr/lib/cni "$STATE/bin/cni"

export CGO_ENABLED=0
build() { go build -trimpath -buildvcs=false "$@"; }
say "building Kubernetes $K8S_VERSION from Go modules (minutes the first time)"
version=k8s.io/component-base/version
minor=${K8S_VERSION#v1.}
(cd hyperkube && build -o "$STATE/bin/" -ldflags "-s -w \
  -X $version.gitVersion=$K8S_VERSION -X $version.gitMajor=1 -X $version.gitMinor=${minor%.*} -X $version.gitTreeState=clean" . ./fakedevices)
for p in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl coredns; do
  ln -sf hyperkube "$STATE/bin/$p"
done
programs_stamp > "$STATE/bin/assets-stamp"
[ "$what" = all ] || exit 0

say "building the cluster's own images"
(cd images && build -ldflags '-s -w' -o "$STATE/bin/" ./...)
(cd ../image && build -ldflags '-s -w' -o "$STATE/bin/image" .)
image() { "$STATE/bin/image" -q "$@"; }
image -o "$STATE/images/pause.tar" -t "$PAUSE_IMAGE" -entrypoint /pause "$STATE/bin/pause=/pause"
for v in 1 2; do # two versions, for what tries a rolling update
  image -o "$STATE/images/testapp$v.tar" -t outrider.local/testapp:$v -user 0 -env "VERSION=v$v" -entrypoint /testapp "$STATE/bin/testapp=/testapp"
done
programs_stamp > "$STATE/bin/stamp"
