package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTraces: spans reach the collector, at the path that collectors have.
func TestTraces(t *testing.T) {
	asked := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Method + " " + r.URL.Path:
		default:
		}
	}))
	defer collector.Close()
	tracer, shutDown, err := traces(t.Context(), &options{otlpEndpoint: collector.URL, otlpShare: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracer.Start(t.Context(), "reconcile")
	span.End()
	if err := shutDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-asked:
		if got != "POST /v1/traces" {
			t.Errorf("asked %s", got)
		}
	default:
		t.Error("no span was sent")
	}
	tracer, shutDown, err = traces(t.Context(), &options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, span := tracer.Start(t.Context(), "reconcile"); span.IsRecording() {
		t.Error("without a collector something is recorded")
	}
	if err := shutDown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestManagerOptions: what the operator's replicas rely on.
func TestManagerOptions(t *testing.T) {
	o, err := parse([]string{"--leader-elect", "--leader-election-namespace=ops", "--watch-namespaces=a,b", "--metrics-secure", "--metrics-cert-dir=/certs"}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	m := managerOptions(o, nil)
	if !m.LeaderElection || !m.LeaderElectionReleaseOnCancel || m.LeaderElectionNamespace != "ops" || m.LeaderElectionID == "" {
		t.Errorf("a replica that stops must let the next one lead at once: %+v", m)
	}
	if m.Controller.EnableWarmup == nil || !*m.Controller.EnableWarmup {
		t.Error("a replica that comes to lead must have its caches")
	}
	if len(m.Cache.DefaultNamespaces) != 2 {
		t.Errorf("namespaces %v", m.Cache.DefaultNamespaces)
	}
	for object, by := range m.Cache.ByObject {
		if by.Label == nil && by.Field == nil {
			t.Errorf("the cache holds every %T of the cluster", object)
		}
	}
	if !m.Metrics.SecureServing || m.Metrics.FilterProvider == nil || m.Metrics.CertDir != "/certs" {
		t.Errorf("the metrics are open: %+v", m.Metrics)
	}
}
