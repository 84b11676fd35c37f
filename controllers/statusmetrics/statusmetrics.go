// Package statusmetrics shows the statuses of the SpeculativeServers as metrics
// of the operator, so that alerts and dashboards see what kubectl sees, also of
// servers whose engines cannot be scraped.
package statusmetrics

import (
	"context"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// listTimeout bounds a list, so that a cache that is not filled yet does not hold up a scrape.
const listTimeout = 5 * time.Second

// The labels namespace and server name the resource; a scrape must honour them
// (honorLabels), or they are renamed.
var (
	replicas = desc("replicas", "Replicas that the spec asks for.")
	ready    = desc("ready_replicas", "Pods that are verified and serve.")
	phase    = desc("phase", "1 for the phase that the server is in.", "phase")
	cond     = desc("condition", "1 for a condition that is True, 0 for False; absent while Unknown.", "condition", "reason")
	device   = desc("device", "1 for what the engines compute on: CPU, CUDA, or Mixed where they differ; absent until one has said so.", "device")
	pods     = desc("pods", "Pods by their phase; phases of no pod are absent.", "phase")
	percent  = desc("load_percent", "How much of its load the slowest pod that fetches or loads has done, 0 to 100; absent while none does.")
	restarts = desc("pod_restarts_total", "How often the engine of a pod's ordinal ended by itself.", "pod")
	inRow    = desc("pod_failures_in_row", "How many of these followed one another without ten minutes of serving between.", "pod")
	failed   = desc("pod_last_failure_timestamp_seconds", "When the engine of a pod's ordinal last ended by itself, seconds since 1970; rank is the rank that failed, where known.", "pod", "reason", "rank")
	maxSteps = desc("speculation_max_steps", "Greatest depth that the operator holds the engines to; absent without spec.speculation.adaptation.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("outrider_server_"+name, help, append([]string{"namespace", "server"}, labels...), nil)
}

// Collector reads the servers at each scrape, from the cache. Only the replica
// that leads shows them, so that no server is seen twice.
type Collector struct {
	servers client.Reader
	leads   <-chan struct{} // closed when this replica leads
	log     logr.Logger
}

// New makes a collector of the servers that a reader lists, silent until leads is closed.
func New(servers client.Reader, leads <-chan struct{}, log logr.Logger) *Collector {
	return &Collector{servers: servers, leads: leads, log: log}
}

// Describe sends what there is.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{replicas, ready, phase, cond, device, pods, percent, restarts, inRow, failed, maxSteps} {
		ch <- d
	}
}

// Collect sends the figures of every server. A list that fails is logged and
// sends none, which an alert on missing series finds; the other metrics stay.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-c.leads:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	var list v1alpha1.SpeculativeServerList
	if err := c.servers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil { // read only
		c.log.Error(err, "no server is among the metrics: listing them failed")
		return
	}
	for i := range list.Items {
		collect(ch, &list.Items[i])
	}
}

func collect(ch chan<- prometheus.Metric, s *v1alpha1.SpeculativeServer) {
	set := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{s.Namespace, s.Name}, labels...)...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) { set(d, prometheus.GaugeValue, v, labels...) }
	gauge(replicas, number(s.Spec.Replicas, 1))
	gauge(ready, number(s.Status.ReadyReplicas, 0))
	if s.Status.Phase != "" {
		gauge(phase, 1, string(s.Status.Phase))
	}
	for _, c := range s.Status.Conditions {
		switch c.Status {
		case metav1.ConditionTrue:
			gauge(cond, 1, c.Type, c.Reason)
		case metav1.ConditionFalse:
			gauge(cond, 0, c.Type, c.Reason)
		}
	}
	if s.Status.Device != "" {
		gauge(device, 1, s.Status.Device)
	}
	byPhase := map[v1alpha1.Phase]int{}
	least := int32(-1)
	for i := range s.Status.Pods {
		p := &s.Status.Pods[i]
		byPhase[p.Phase]++
		if p.Percent != nil && (least < 0 || *p.Percent < least) {
			least = *p.Percent
		}
		set(restarts, prometheus.CounterValue, float64(p.Restarts), p.Name)
		gauge(inRow, float64(p.FailuresInRow), p.Name)
		if f := p.LastFailure; f != nil {
			rank := ""
			if f.Rank != nil {
				rank = strconv.Itoa(int(*f.Rank))
			}
			gauge(failed, float64(f.Time.Unix()), p.Name, f.Reason, rank)
		}
	}
	for ph, n := range byPhase {
		if ph != "" {
			gauge(pods, float64(n), string(ph))
		}
	}
	if least >= 0 {
		gauge(percent, float64(least))
	}
	if sp := s.Status.Speculation; sp != nil && sp.MaxSteps != nil {
		gauge(maxSteps, float64(*sp.MaxSteps))
	}
}

// number is a figure that the API server may have left out.
func number(n *int32, otherwise int32) float64 {
	if n == nil {
		return float64(otherwise)
	}
	return float64(*n)
}
