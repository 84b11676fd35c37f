# Sourced by hack/chart-test.sh while a server runs: scrapes operator and engines
# with a real Prometheus under load, and draws the dashboards. Labels
# are those that PodMonitor and ServiceMonitor give.

# A server that fails at once, so that failures have a reason; with drafts of
# n-grams and two ranks, another that has everything to show.
kube apply --namespace default -f - > /dev/null <<'YAML'
apiVersion: inference.outrider.dev/v1alpha1
kind: SpeculativeServer
metadata: {name: broken}
spec:
  model: {source: {builtin: {name: gocode-7m}}}
  extraArgs: [--no-such-flag]
---
apiVersion: inference.outrider.dev/v1alpha1
kind: SpeculativeServer
metadata: {name: shown}
spec:
  model: {source: {builtin: {name: gocode-7m}}}
  parallelism: {tensor: 2}
  kvCache: {maxTokens: 1536} # 12 clients can fill it
  speculation: {algorithm: EAGLE3, numSteps: 3, adaptation: {mode: Auto, minSteps: 0, maxSteps: 3}}
YAML
check "a server that adapts is ready" 'condition met' kube wait --namespace default --for=jsonpath='{.status.phase}'=Ready specsrv/shown --timeout=180s
check "the broken one has failed" 'condition met' kube wait --namespace default --for=jsonpath='{.status.phase}'=Failed specsrv/broken --timeout=120s

# targets NAMESPACE PORT SELECTOR: a target for each running pod, with the labels
# that the PodMonitor gives. Debian's Prometheus cannot look for pods itself.
targets() {
  kube get pods --namespace "$1" --selector "$3" --field-selector status.phase=Running -o go-template="{{range .items}}{{with .status.podIP}}
      - {targets: ['{{.}}:$2'], labels: {{end}}{namespace: '{{.metadata.namespace}}', pod: '{{.metadata.name}}'{{with index .metadata.labels \"inference.outrider.dev/server\"}}, server: '{{.}}'{{end}}}}{{end}}"
}
cat > "$work/prometheus.yaml" <<YAML
global: {scrape_interval: 2s, evaluation_interval: 5s}
rule_files: [$root/charts/outrider/alerts/outrider.yaml]
scrape_configs:
  - job_name: outrider
    honor_labels: true
    static_configs: $(targets $ns 8080 app.kubernetes.io/component=operator)
  - job_name: engines
    static_configs: $(targets default 8001 inference.outrider.dev/server)
YAML
check "Prometheus takes its configuration" 'SUCCESS' bin/promtool check config "$work/prometheus.yaml"
in_cluster "$root/bin/prometheus" --config.file="$work/prometheus.yaml" --storage.tsdb.path="$work/tsdb" \
  --web.listen-address=127.0.0.1:9090 --web.enable-lifecycle --log.level=warn > "$work/prometheus.log" 2>&1 &
prometheus=$!

# Three levels of load, 40 s each, so that depth and gain have something to follow.
address=$(kube get service shown --namespace default -o 'jsonpath={.spec.clusterIP}')
client() { # SECONDS: one client after another request
  local end=$((SECONDS + $1))
  while [ $SECONDS -lt $end ]; do
    curl -s -m 30 -o /dev/null "http://$address:8000/v1/completions" -H 'Content-Type: application/json' \
      -d "{\"model\": \"gocode-7m\", \"prompt\": \"package main\\n\\nimport (\\n\\t\\\"fmt\\\"\\n\\t\\\"os\\\"\\n)\\n\\ntype point struct {\\n\\tx, y int\\n}\\n\\n// $RANDOM\\nfunc\", \"max_tokens\": $((32 + RANDOM % 96)), \"temperature\": 0.5}"
  done
}
export -f client
export address
for clients in 1 4 12; do
  for _ in $(seq $clients); do in_cluster bash -c 'client 40' & pids+=" $!"; done
  wait ${pids#* }
  pids=
done
in_cluster curl -s -o /dev/null "http://$address:8000/v1/completions" -H 'Content-Type: application/json' -d '{"model": "nobody"}'
drawn() {
  in_cluster "$root/bin/preview" -out "$draw" -window 2m30s -rate-interval 12s \
    -set namespace=default -set server=shown && echo drawn
}
check "every panel has data" '^drawn$' drawn
firing() {
  in_cluster "$root/bin/promtool" query instant http://127.0.0.1:9090 'count by (alertname, server) (ALERTS{alertstate="firing"})' |
    sed 's/ =>.*//' | paste -sd ' '
}
check "one alert fires, that on the broken server" '^\{alertname="OutriderServerFailed", server="broken"\}$' firing
[ ! -s "$work/prometheus.log" ] || cat "$work/prometheus.log"
end_prometheus
kube delete specsrv broken shown --namespace default > /dev/null
