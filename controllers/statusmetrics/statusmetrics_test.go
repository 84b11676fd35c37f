package statusmetrics

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// lister lists given servers, or fails.
type lister struct {
	client.Reader
	servers []v1alpha1.SpeculativeServer
	err     error
}

func (l lister) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*v1alpha1.SpeculativeServerList).Items = l.servers
	return l.err
}

func servers() []v1alpha1.SpeculativeServer {
	pod := func(name string, phase v1alpha1.Phase) v1alpha1.PodStatus {
		return v1alpha1.PodStatus{Name: name, Phase: phase}
	}
	loading, slower, crashed := pod("a-0", v1alpha1.PhaseLoading), pod("a-1", v1alpha1.PhaseLoading), pod("a-2", v1alpha1.PhaseCrashed)
	loading.Percent, slower.Percent = new(int32(70)), new(int32(43))
	crashed.Restarts, crashed.FailuresInRow = 5, 2
	crashed.LastFailure = &v1alpha1.PodFailure{Time: metav1.NewTime(time.Unix(1700000000, 0)), Reason: "DeviceFault", Rank: new(int32(3))}
	a := v1alpha1.SpeculativeServer{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}}
	a.Spec.Replicas = new(int32(4))
	a.Status = v1alpha1.SpeculativeServerStatus{
		Phase: v1alpha1.PhaseCrashed, ReadyReplicas: new(int32(1)), Device: v1alpha1.DeviceMixed,
		Conditions: []metav1.Condition{
			{Type: "Available", Status: metav1.ConditionTrue, Reason: "Serving"},
			{Type: "Degraded", Status: metav1.ConditionFalse, Reason: "AsExpected"},
			{Type: "SpeculationActive", Status: metav1.ConditionUnknown, Reason: "NoMetrics"},
		},
		Pods:        []v1alpha1.PodStatus{loading, slower, crashed, pod("a-3", "")},
		Speculation: &v1alpha1.SpeculationStatus{MaxSteps: new(int32(3))},
	}
	// A server that no reconcile has seen yet.
	b := v1alpha1.SpeculativeServer{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "b"}}
	return []v1alpha1.SpeculativeServer{a, b}
}

func leading() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestStatusesAreMetrics(t *testing.T) {
	want := `
outrider_server_condition{condition="Available",namespace="team",reason="Serving",server="a"} 1
outrider_server_condition{condition="Degraded",namespace="team",reason="AsExpected",server="a"} 0
outrider_server_device{device="Mixed",namespace="team",server="a"} 1
outrider_server_load_percent{namespace="team",server="a"} 43
outrider_server_phase{namespace="team",phase="Crashed",server="a"} 1
outrider_server_pod_failures_in_row{namespace="team",pod="a-0",server="a"} 0
outrider_server_pod_failures_in_row{namespace="team",pod="a-1",server="a"} 0
outrider_server_pod_failures_in_row{namespace="team",pod="a-2",server="a"} 2
outrider_server_pod_failures_in_row{namespace="team",pod="a-3",server="a"} 0
outrider_server_pod_last_failure_timestamp_seconds{namespace="team",pod="a-2",rank="3",reason="DeviceFault",server="a"} 1.7e+09
outrider_server_pod_restarts_total{namespace="team",pod="a-0",server="a"} 0
outrider_server_pod_restarts_total{namespace="team",pod="a-1",server="a"} 0
outrider_server_pod_restarts_total{namespace="team",pod="a-2",server="a"} 5
outrider_server_pod_restarts_total{namespace="team",pod="a-3",server="a"} 0
outrider_server_pods{namespace="team",phase="Crashed",server="a"} 1
outrider_server_pods{namespace="team",phase="Loading",server="a"} 2
outrider_server_ready_replicas{namespace="team",server="a"} 1
outrider_server_ready_replicas{namespace="team",server="b"} 0
outrider_server_replicas{namespace="team",server="a"} 4
outrider_server_replicas{namespace="team",server="b"} 1
outrider_server_speculation_max_steps{namespace="team",server="a"} 3
`
	c := New(lister{servers: servers()}, leading(), logr.Discard())
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for l := range strings.Lines(got.String()) {
		if !strings.HasPrefix(l, "#") {
			lines = append(lines, l)
		}
	}
	if got := "\n" + strings.Join(lines, ""); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// A replica that does not lead shows no server, and a list that fails does not fail the scrape.
func TestSilent(t *testing.T) {
	for name, c := range map[string]*Collector{
		"not leading": New(lister{servers: servers()}, make(chan struct{}), logr.Discard()),
		"no list":     New(lister{servers: servers(), err: errors.New("the cache is not filled")}, leading(), logr.Discard()),
	} {
		if n := testutil.CollectAndCount(c); n != 0 {
			t.Errorf("%s: %d series, want none", name, n)
		}
	}
}

// docs/operator.md explains exactly these.
func TestDocumented(t *testing.T) {
	ch := make(chan *prometheus.Desc, 100)
	New(nil, nil, logr.Discard()).Describe(ch)
	close(ch)
	var want []string
	for d := range ch {
		want = append(want, regexp.MustCompile(`outrider_[a-z_]+`).FindString(d.String()))
	}
	doc, err := os.ReadFile("../../docs/operator.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(outrider_[a-z_]+)").FindAllSubmatch(doc, -1) {
		got = append(got, string(row[1]))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("docs/operator.md explains %v\nwant %v", got, want)
	}
}
