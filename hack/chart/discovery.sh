# Sourced by hack/chart-test.sh while a server runs: a Prometheus that has nothing but
# what the guide says finds operator and engines, and reads their metrics. It runs as a pod,
# with the guide's commands and configuration word for word.
guide() { # LANGUAGE: the first such block under the heading
  sed -n '/^## With a Prometheus of your own$/,/^## /p' docs/monitoring.md | sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" | sed '1d; /^```$/,$d'
}
guide sh > "$work/rights.sh"
{ echo 'global: {scrape_interval: 2s}' && guide yaml; } > "$work/prometheus.yaml"
kube create namespace monitoring > /dev/null
kube create serviceaccount prometheus --namespace monitoring > /dev/null
kube create configmap prometheus --namespace monitoring --from-file="$work/prometheus.yaml" --from-file=charts/outrider/alerts/outrider.yaml > /dev/null
check "the guide's commands give rights" 'rolebinding.*/outrider-metrics created' in_cluster bash -e "$work/rights.sh"
kube apply --namespace monitoring -f - > /dev/null <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: prometheus}
spec:
  serviceAccountName: prometheus
  containers:
    - name: prometheus
      image: outrider.test/prometheus:dev
      readinessProbe: {httpGet: {path: /-/ready, port: 9090}, periodSeconds: 1}
      volumeMounts: [{name: configuration, mountPath: /etc/prometheus}]
  volumes:
    - {name: configuration, configMap: {name: prometheus}}
YAML
check "Prometheus takes the guide's configuration" 'condition met' kube wait --namespace monitoring --for=condition=Ready pod/prometheus --timeout=60s
ask() { # EXPRESSION: series with their values, one a line
  in_cluster curl -s "http://$(kube get pod prometheus --namespace monitoring -o 'jsonpath={.status.podIP}'):9090/api/v1/query" --data-urlencode "query=$1" |
    grep -oE '\{"metric":[^}]*\},"value":\[[^]]*\]' | sed -E 's/^\{"metric"://; s/,"value":\[[^,]*,/ /; s/\]$//' | sort
}
# All targets answer, and there are no others: two replicas of the operator and an engine.
targets_up() { ask 'sum by (job, namespace) (up)'; ask 'count by (job) (up)'; }
check "it finds operator and engines and may read them" '^yes$' only targets_up '{"job":"outrider","namespace":"outrider-system"} "2"
{"job":"outrider-engines","namespace":"default"} "1"
{"job":"outrider"} "2"
{"job":"outrider-engines"} "1"'
check "a server's status has the server's labels" '^\{.*"namespace":"default".*"server":"quickstart".*\} "1"$' ask outrider_server_ready_replicas
check "an engine's metrics have the server's labels" '^\{.*"namespace":"default".*"pod":"quickstart-0".*"server":"quickstart".*\} "0"$' ask outrider_requests_running
rules() {
  in_cluster curl -s "http://$(kube get pod prometheus --namespace monitoring -o 'jsonpath={.status.podIP}'):9090/api/v1/rules" | grep -o '"name":"Outrider[A-Za-z]*"' | wc -l
}
check "it has every alert" "^$(grep -c 'alert: ' charts/outrider/alerts/outrider.yaml)\$" rules
forget_monitoring
