//go:build apiserver

package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestGPUUnused: a server that has GPUs and serves on the CPU is Ready, and its
// status says what is wrong with it, until its engines compute on them.
func TestGPUUnused(t *testing.T) {
	const why = "libcuda.so.1 cannot be opened"
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	fake.computes("cpu", why)
	p.create(manifest + `
  resources: {limits: {nvidia.com/gpu: 1}}
`)
	pod := p.pod(0, "")
	p.bind(pod)
	p.ready(pod)
	s := p.phase(v1alpha1.PhaseReady, "GPUs are not used: s-0 computes on the CPU: "+why)
	if row := s.Status.Pods[0]; row.Device != "CPU" || row.DeviceMessage != why || !strings.Contains(row.Message, why) {
		t.Errorf("row %+v", row)
	}
	p.condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonGPUUnused)
	p.events("GPUUnused", "Ready")
	p.column("DEVICE", "CPU")
	p.quiet()

	fake.computes("cuda", "1 GPU is there") // the engine has been started again, with a driver
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	s = p.phase(v1alpha1.PhaseReady, "/v1")
	if row := s.Status.Pods[0]; strings.Contains(s.Status.Message, "GPU") || row.Device != "CUDA" || row.DeviceMessage != "" {
		t.Errorf("%s, row %+v", s.Status.Message, row)
	}
	p.column("DEVICE", "CUDA")
}

// column waits until kubectl get -o wide, for which the API server makes a table,
// has a value in a column of the server.
func (p *play) column(name, want string) {
	p.Helper()
	c, err := rest.HTTPClientFor(apiConfig)
	if err != nil {
		p.Fatal(err)
	}
	url := strings.TrimSuffix(apiConfig.Host, "/") + "/apis/" + v1alpha1.GroupVersion.String() + "/namespaces/" + p.namespace + "/speculativeservers/s"
	p.eventually("column "+name, func() string {
		req, err := http.NewRequestWithContext(p.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			return err.Error()
		}
		req.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
		resp, err := c.Do(req)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		var table metav1.Table
		if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
			return err.Error()
		}
		for i, column := range table.ColumnDefinitions {
			if column.Name == name && len(table.Rows) == 1 && table.Rows[0].Cells[i] == want {
				return ""
			}
		}
		return fmt.Sprintf("%+v", table)
	})
}
