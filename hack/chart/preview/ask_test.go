package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prom "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
)

// played is a Prometheus with two jobs, and the series of one GPU or none.
func played(t *testing.T, gpu bool) asker {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data := `{"resultType": "matrix", "result": []}`
		switch {
		case r.URL.Path == "/api/v1/label/job/values":
			data = `["outrider", "a.b"]`
		case gpu && strings.Contains(r.FormValue("query"), "outrider_gpu_"):
			data = fmt.Sprintf(`{"resultType": "matrix", "result": [{"metric": {"pod": "s-0", "gpu": "0"}, "values": [[%d, "0.5"]]}]}`, time.Now().Unix())
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status": "success", "data": %s}`, data)
	}))
	t.Cleanup(s.Close)
	client, err := api.NewClient(api.Config{Address: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return asker{api: prom.NewAPI(client), values: map[string]string{"server": "s"}, rate: time.Minute, from: time.Now().Add(-time.Hour), to: time.Now()}
}

// TestVariables: a variable of several values stands for those that there are, any
// other for the one that is given.
func TestVariables(t *testing.T) {
	given := played(t, false)
	a, err := given.of(t.Context(), dashboards.Dashboard{Variables: []dashboards.Variable{{Name: "job", Metric: "m", Multi: true}, {Name: "server", Metric: "m"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := a.expand(`rate(x{job=~"$job", server="$server"}[$__rate_interval])`), `rate(x{job=~"outrider|a\\.b", server="s"}[1m])`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if given.values["job"] != "" {
		t.Error("the values of another dashboard have changed")
	}
}

// TestRowsOfGPUs: a row for GPUs is left out where there are none, any other never.
func TestRowsOfGPUs(t *testing.T) {
	for name, d := range dashboards.All() {
		for _, r := range d.Rows {
			for _, gpu := range []bool{true, false} {
				lacks, err := played(t, gpu).lacksGPUs(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if want := r.Title == "GPUs" && !gpu; lacks != want {
					t.Errorf("%s, row %s, with GPUs %v: left out %v, want %v", name, r.Title, gpu, lacks, want)
				}
			}
		}
	}
}
