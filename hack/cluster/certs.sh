#!/bin/bash
# Makes the cluster's certificates and kubeconfigs under pki and kubeconfig of
# its folder, unless they are there already for the same settings.
set -euo pipefail
cd "$(dirname "$0")"
. ./config.sh
umask 077
stamp=$(cat certs.sh config.sh | sha256sum)
[ "$(cat "$STATE/pki/stamp" 2> /dev/null)" != "$stamp" ] || exit 0
rm -rf "$STATE/pki" "$STATE/kubeconfig"
mkdir -p "$STATE/pki" "$STATE/kubeconfig"
cd "$STATE/pki"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
authority() { # NAME: a self-signed authority
  key "$1.key"
  openssl req -x509 -new -key "$1.key" -subj "/CN=outrider-$1" -days 3650 -out "$1.crt" \
    -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign,cRLSign
}
serial=1
cert() { # AUTHORITY NAME SUBJECT USAGE [SAN]
  local authority=$1 name=$2
  key "$name.key"
  openssl req -new -key "$name.key" -subj "$3" -out "$name.csr"
  { echo "basicConstraints=critical,CA:false"
    echo "keyUsage=critical,digitalSignature,keyEncipherment"
    echo "extendedKeyUsage=$4"
    [ -z "${5-}" ] || echo "subjectAltName=$5"; } > "$name.ext"
  serial=$((serial + 1))
  openssl x509 -req -in "$name.csr" -CA "$authority.crt" -CAkey "$authority.key" -set_serial $serial \
    -days 3650 -extfile "$name.ext" -out "$name.crt" 2> /dev/null
  rm "$name.csr" "$name.ext"
}
authority ca
cert ca apiserver /CN=kube-apiserver serverAuth \
  "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$NODE_IP,IP:$SERVICE_IP"
cert ca apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
cert ca kubelet-server "/O=system:nodes/CN=system:node:$NODE_NAME" serverAuth "DNS:$NODE_NAME,IP:$NODE_IP,IP:127.0.0.1"
cert ca admin /O=system:masters/CN=admin clientAuth
cert ca controller-manager /CN=system:kube-controller-manager clientAuth
cert ca scheduler /CN=system:kube-scheduler clientAuth
cert ca kubelet "/O=system:nodes/CN=system:node:$NODE_NAME" clientAuth
cert ca proxy /CN=system:kube-proxy clientAuth
# Aggregated API servers trust the API server by an authority of its own.
authority front-proxy-ca
cert front-proxy-ca front-proxy /CN=front-proxy clientAuth
openssl genrsa -out sa.key 2048 2> /dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2> /dev/null
for who in admin controller-manager scheduler kubelet proxy; do
  cat > "$STATE/kubeconfig/$who" <<YAML
apiVersion: v1
kind: Config
current-context: outrider
clusters:
- name: outrider
  cluster:
    server: https://$NODE_IP:6443
    certificate-authority-data: $(base64 -w0 ca.crt)
contexts:
- name: outrider
  context: {cluster: outrider, user: $who}
users:
- name: $who
  user:
    client-certificate-data: $(base64 -w0 $who.crt)
    client-key-data: $(base64 -w0 $who.key)
YAML
done
echo "$stamp" > stamp
