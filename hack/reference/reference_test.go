package main

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestPflags(t *testing.T) {
	help := `Serve a model

Usage:
  x serve [flags]

Flags:
      --model reference   model reference: a folder (default "builtin:gocode-7m")
      --tp-size int       tensor parallel ranks (default 1)
      --admin-only        keep /metrics off (the public port)
  -h, --help              help for serve

Global Flags:
      --not-this string   x
`
	got, err := pflags(help)
	want := []flag{
		{"model", "reference", "model reference: a folder", "builtin:gocode-7m"},
		{"tp-size", "int", "tensor parallel ranks", "1"},
		{"admin-only", "", "keep /metrics off (the public port)", ""},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
	for _, bad := range []string{"Usage of x:\n", "\nFlags:\nno flag\n"} {
		if got, err := pflags(bad); err == nil {
			t.Errorf("%q gave %+v", bad, got)
		}
	}
}

func TestStdFlags(t *testing.T) {
	got, err := stdFlags("Usage of outrider:\n  -workers int\n    \tservers reconciled at once (default 4)\n  -leader-elect\n    \treconcile only with the lease\n  -image image\n    \tname (default \"a:b\")\n")
	want := []flag{
		{"workers", "int", "servers reconciled at once", "4"},
		{"leader-elect", "", "reconcile only with the lease", ""},
		{"image", "image", "name", "a:b"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
	for _, bad := range []string{"Usage:\n  -a int\n", "Usage:\n  -a int\n  -b int\n"} {
		if got, err := stdFlags(bad); err == nil {
			t.Errorf("%q gave %+v", bad, got)
		}
	}
}

func TestTables(t *testing.T) {
	var out bytes.Buffer
	flagTable(&out, []flag{{"tp-size", "int", "a|b", "1"}, {"x", "", "y", ""}}, true)
	want := "| flag | variable | default |  |\n| --- | --- | --- | --- |\n" +
		"| `--tp-size INT` | `OUTRIDER_TP_SIZE` | `1` | a\\|b |\n| `--x` | `OUTRIDER_X` |  | y |\n"
	if out.String() != want {
		t.Errorf("the table is\n%swant\n%s", out.String(), want)
	}
}

// TestMetricRows: names, types and labels of metrics, also of those without a series.
func TestMetricRows(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total", Help: `Says "so".`}, []string{"a", "b"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "a_gauge", Help: "G."}),
		prometheus.NewHistogram(prometheus.HistogramOpts{Name: "b_seconds", Help: "H."}))
	got, err := metricRows(reg, reg)
	want := [][]string{{"`a_gauge`", "gauge", "", "G."}, {"`b_seconds`", "histogram", "", "H."}, {"`c_total`", "counter", "`a`, `b`", `Says "so".`}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q (%v), want %q", got, err, want)
	}
}

// TestEngine: what is read from the engine's packages is there.
func TestEngine(t *testing.T) {
	var out bytes.Buffer
	paths(&out)
	exitCodes(&out)
	if err := metrics(&out); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"| `POST /v1/completions` | public | ",
		"| `GET /metrics` | public¹, admin | ",
		"| `GET /livez` | public, admin | ",
		"| `GET /` | admin | ",
		"| `PUT /v1/speculation` | admin | ",
		"| 13 | `DeviceMissing` | ",
		"| `outrider_phase_seconds` | histogram | `phase` | ",
		"| `outrider_requests_total` | counter | `outcome` | ",
		"| `outrider_spec_gain_ratio` | gauge |  | ",
		"| `outrider_server_pods` | gauge | `namespace`, `server`, `phase` | ",
	} {
		if !strings.Contains(out.String(), "\n"+row) {
			t.Errorf("no row begins with %q in\n%s", row, out.String())
		}
	}
}
