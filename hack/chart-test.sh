#!/bin/bash
# Tries the Helm chart on a real cluster: install, a server, upgrade with a newer
# CRD, rollback, uninstall that leaves the server, adoption, uninstall that leaves
# nothing, and taking over what kustomize installed.
#
#	hack/chart-test.sh             one line a check
#	hack/chart-test.sh --draw DIR  also scrapes operator and engines under load with a
#	                               real Prometheus, asks that every panel of the
#	                               dashboards has data, and draws them into DIR
#
# HELM is another helm than that of hack/tools/helm, 3 or 4.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
cd "$root" || exit
draw=
case ${1-} in
  '') ;;
  --draw) draw=$(realpath "${2:?--draw needs a folder}") ;;
  *) die "unknown argument \"$1\": --draw DIR or none" ;;
esac
[ "$CLUSTER" = own ] || die "CLUSTER is \"$CLUSTER\": this script installs and removes CRDs, so it takes the development cluster (own) only"

hack/cluster/check.sh && hack/build.sh || exit
mkdir -p bin
[ -n "${HELM-}" ] || (cd hack/tools/helm && CGO_ENABLED=0 go build -ldflags '-s -w' -o "$root/bin/" tool) || exit
helm=$(realpath "${HELM:-bin/helm}") && "$helm" version --short || exit
force=(--force-conflicts) # of fields that kubectl applied; Helm 3 does not ask whose they are
[[ $("$helm" version --short) != v3.* ]] || force=()
(cd hack/chart && go build -o "$root/bin/preview" ./preview) || exit
# Debian's Prometheus cannot look for pods, so this is another; of what it can discover only Kubernetes is built.
(cd hack/tools/prometheus && CGO_ENABLED=0 go build -tags remove_all_sd,enable_kubernetes_sd -ldflags '-s -w' \
  -o "$root/bin/prometheus-kubernetes" github.com/prometheus/prometheus/cmd/prometheus) || exit
[ -z "$draw" ] || hack/prometheus.sh || exit
started=
hack/cluster/kin true 2> /dev/null || started=yes
hack/images.sh > /dev/null && bin/image -q -o "$images/prometheus.tar" -t outrider.test/prometheus:dev \
  -entrypoint '/prometheus --storage.tsdb.path=/tmp/data --config.file=/etc/prometheus/prometheus.yaml' bin/prometheus-kubernetes=/prometheus &&
  hack/cluster/up.sh "$images/outrider.tar" "$images/outrider-engine.tar" "$images/prometheus.tar" || exit

ns=outrider-system
work=$(mktemp -d)
prometheus=
# Told by its API: the shell's job is nsenter, and with that one ended Prometheus runs on,
# and answers in place of the next run's.
end_prometheus() {
  [ -n "$prometheus" ] && in_cluster curl -sf -o /dev/null -X POST http://127.0.0.1:9090/-/quit && wait "$prometheus"
  prometheus=
}
cleanup() {
  end_prometheus
  kube delete specsrv --all --all-namespaces --wait=false > /dev/null 2>&1
  helm uninstall outrider --namespace $ns > /dev/null 2>&1
  kube delete crd --selector app.kubernetes.io/name=outrider > /dev/null 2>&1
  kube delete namespace $ns --timeout=60s > /dev/null 2>&1
  forget_monitoring
  rm -rf "$work"
  [ "$started" != yes ] || [ "$failed" != 0 ] || hack/cluster/down.sh
}
# What the guide's Prometheus has got, and others of a run that was killed.
forget_monitoring() {
  kube delete --ignore-not-found clusterrole/prometheus-pods clusterrolebinding/prometheus-pods clusterrolebinding/outrider-metrics \
    namespace/monitoring --timeout=60s > /dev/null 2>&1
}
helm() { in_cluster "$helm" "$@"; }
passed=0 failed=0
check() { # NAME PATTERN COMMAND...: the command's output must match the pattern
  local name=$1 pattern=$2 out
  shift 2
  out=$("$@" 2>&1)
  if grep -qE -- "$pattern" <<< "$out"; then
    passed=$((passed + 1)); echo "ok    $name"
  else
    failed=$((failed + 1)); echo "FAIL  $name: wanted /$pattern/, got: ${out:0:800}"
  fi
}
# only COMMAND LINE: the command says this line alone, within a minute: pods end after Helm does.
only() {
  local out
  for _ in {1..60}; do
    out=$("$1")
    [ "$out" = "$2" ] && { echo yes; return; }
    sleep 1
  done
  echo "$out"
}
trap cleanup EXIT
# What "make deploy" or a run that was killed has left is in the way of Helm.
helm uninstall outrider --namespace $ns > /dev/null 2>&1
kube delete --ignore-not-found -k config/default --timeout=120s > /dev/null || exit
kube delete crd --selector app.kubernetes.io/name=outrider > /dev/null 2>&1
forget_monitoring
# The operator's pod must do with the restricted standard.
kube create namespace $ns > /dev/null
kube label namespace $ns pod-security.kubernetes.io/enforce=restricted > /dev/null

# An older chart: its CRD has a column of another name, and lacks the field disruption.
cp -r charts/outrider "$work/old"
sed -i '/^      name: PHASE$/s/PHASE/OLDPHASE/; s/^              disruption:$/              oldDisruption:/' "$work"/old/files/crds/*speculativeservers.yaml
for changed in OLDPHASE oldDisruption; do
  grep -q $changed "$work"/old/files/crds/*speculativeservers.yaml || { echo "FAIL  the CRD has nothing to rename to $changed"; exit 1; }
done
dev=(--namespace $ns --set "image.tag=$tag" --set "engine.image.tag=$tag" --wait --timeout 3m)
check "install" 'STATUS: deployed' helm install outrider "$work/old" "${dev[@]}" --set metrics.secure=false
[ $failed = 0 ] || exit # the rest would only fail too, slowly
check "the notes say the next command" 'kubectl rollout status deployment/outrider' helm get notes outrider --namespace $ns
sed -n '/kubectl apply.*<<EOF/,/^ *EOF/p' <(helm get notes outrider --namespace $ns) | sed '1d;$d' > "$work/server.yaml"
check "the server of the notes is applied" 'created' kube apply --namespace default -f "$work/server.yaml"
check "and is ready" 'condition met' kube wait --namespace default --for=jsonpath='{.status.phase}'=Ready specsrv/quickstart --timeout=180s
uid() { kube get pod quickstart-0 --namespace default -o 'jsonpath={.metadata.uid}'; }
operator() { # all of the operator's pods but the label with the chart's version
  kube get deployment outrider --namespace $ns -o 'jsonpath={.spec.replicas} {.spec.template.spec}'
}
before=$(uid)
column() { # the first of the CRD
  kube get crd speculativeservers.inference.outrider.dev -o 'jsonpath={.spec.versions[0].additionalPrinterColumns[0].name}'
}
operator() { # of its Deployment all that counts
  kube get deployment outrider --namespace $ns -o 'jsonpath={.spec.replicas} {.spec.template.spec}'
}
installed=$(operator)
check "the old CRD is there" '^OLDPHASE$' column

if [ -n "$draw" ]; then
  . hack/chart/live.sh
fi

check "upgrade" 'STATUS: deployed' helm upgrade outrider charts/outrider "${dev[@]}" --set replicas=2 --set networkPolicy.enabled=true
check "the CRD is up to date" '^PHASE$' column
check "the server's pod is the same" "^$before\$" uid
check "and serves" '^Ready$' kube get specsrv quickstart --namespace default -o 'jsonpath={.status.phase}'
check "a budget for two replicas" '^1$' kube get pdb outrider --namespace $ns -o 'jsonpath={.spec.minAvailable}'
closed() { # the status without a token; the first pod may be one that ends
  local code
  for _ in {1..30}; do
    code=$(in_cluster curl -sk -o /dev/null -w '%{http_code}' \
      "https://$(kube get pods --namespace $ns --selector app.kubernetes.io/name=outrider -o 'jsonpath={.items[0].status.podIP}'):8080/metrics")
    [ "$code" = 000 ] || break
    sleep 1
  done
  echo "$code"
}
check "/metrics is closed to strangers" '^401$|^403$' closed
. hack/chart/discovery.sh
check "a field that the old CRD lacks is set" 'patched' kube patch specsrv quickstart --namespace default --type merge -p '{"spec": {"disruption": {}}}'
budgets() { # of the server: their number
  kube get pdb quickstart --namespace default --ignore-not-found -o name | wc -l
}
check "and makes its object" '^yes$' only budgets 1

check "rollback" 'Rollback was a success' helm rollback outrider --namespace $ns --wait --timeout 3m
check "the old CRD is back" '^OLDPHASE$' column
check "and the operator as it was" '^yes$' only operator "$installed"
check "the server's pod is still the same" "^$before\$" uid
check "the field is gone, and so is its object" '^yes$' only budgets 0
check "uninstall" 'uninstalled' helm uninstall outrider --namespace $ns --wait
check "the server's pod goes on" "^$before\$" uid
left() { # what the release has left
  kube get all,serviceaccounts,configmaps,secrets,roles,rolebindings,networkpolicies,poddisruptionbudgets,leases --all-namespaces \
    --selector app.kubernetes.io/instance=outrider -o name
  kube get clusterroles,clusterrolebindings,crds,priorityclasses --selector app.kubernetes.io/instance=outrider -o name
  echo end
}
only_crds() { left | grep -v '^customresourcedefinition.*/speculativeservers.inference.outrider.dev$'; }
check "only the CRD is left" '^yes$' only only_crds end
check "install again takes the server up" 'STATUS: deployed' helm install outrider charts/outrider "${dev[@]}" --set crds.keep=false
check "and the CRD that was left" '^PHASE$' column
check "with the same pod" "^$before\$" uid
sed 's/name: quickstart/name: collected/; s/^\( *\)spec:$/\1spec:\n\1  replicas: 0/' "$work/server.yaml" > "$work/collected.yaml"
# Servers go first: the garbage collector may miss those that go with their kind.
kube delete specsrv --all --all-namespaces > /dev/null
gone() { kube wait --namespace default --for=delete pod/quickstart-0 service/quickstart --timeout=120s && echo gone; }
check "a server's objects go with it" '^gone$' gone
check "uninstall with crds.keep=false" 'uninstalled' helm uninstall outrider --namespace $ns --wait
check "nothing is left" '^yes$' only left end
check "no pod is left" '^No resources' kube get pods --namespace default --selector inference.outrider.dev/server

# What kustomize installed becomes a release, with its servers.
kube apply --server-side -k config/default > /dev/null
kube apply --namespace default -f "$work/collected.yaml" > /dev/null
check "Helm leaves alone what is not its own" 'cannot be imported' helm install outrider charts/outrider "${dev[@]}"
kube delete deployment outrider --namespace $ns > /dev/null
check "and takes it over when told to" 'STATUS: deployed' helm install outrider charts/outrider "${dev[@]}" --set crds.keep=false --take-ownership "${force[@]}"
check "with the servers" '^collected$' kube get specsrv --namespace default -o 'jsonpath={.items[*].metadata.name}'
check "a second release has no claim to the CRD" 'cannot be imported' helm install second charts/outrider --namespace default
check "nor one of the same name to the roles" "the ClusterRole outrider belongs to the release outrider of the namespace $ns: give" \
  helm install outrider charts/outrider --namespace default --set crds.enabled=false
kube delete specsrv collected --namespace default > /dev/null
check "uninstall of what was taken over" 'uninstalled' helm uninstall outrider --namespace $ns --wait
check "nothing is left of it" '^yes$' only left end

# Without the CRDs, which come by the command of the notes.
check "install without CRDs" 'STATUS: deployed' helm install outrider charts/outrider --namespace $ns --set "image.tag=$tag" --set "engine.image.tag=$tag" \
  --set crds.enabled=false --set 'watchNamespaces={default}'
helm get notes outrider --namespace $ns | sed -n 's/^ *\(helm template .*\)/\1/p' | sed "s|CHART|charts/outrider|; s|^helm|$helm|" > "$work/crds.sh"
check "the notes bring the CRDs" 'speculativeservers.inference.outrider.dev serverside-applied' in_cluster bash -e "$work/crds.sh"
check "the operator runs" 'successfully rolled out' kube rollout status deployment/outrider --namespace $ns --timeout=120s
kube apply --namespace default -f "$work/collected.yaml" > /dev/null
check "and works" 'condition met' kube wait --namespace default --for=jsonpath='{.status.phase}'=Stopped specsrv/collected --timeout=60s
kube delete specsrv collected --namespace default > /dev/null
check "uninstall of the release without CRDs" 'uninstalled' helm uninstall outrider --namespace $ns --wait
echo
echo "$passed passed, $failed failed"
[ $failed = 0 ]
