package alerts

// cases are what promtool plays: series of a value a minute, "a+bxn" being n
// steps of b from a, "_" none; the time to look; the labels of the alert that
// fires then, beside severity, or nil for none.
var cases = []struct {
	alert, name string
	series      []string
	at          string
	fires       map[string]string
	summary     string
}{
	{"OutriderServerNotReady", "none of two is ready", []string{
		`outrider_server_replicas{namespace="n",server="s"} = 2x30`, `outrider_server_ready_replicas{namespace="n",server="s"} = 0x30`,
	}, "11m", server, "n/s serves no request: none of its replicas is ready"},
	{"OutriderServerNotReady", "not for ten minutes yet", []string{
		`outrider_server_replicas{namespace="n",server="s"} = 2x30`, `outrider_server_ready_replicas{namespace="n",server="s"} = 1x5 0x9`,
	}, "14m", nil, ""},
	{"OutriderServerNotReady", "its load moves", []string{
		`outrider_server_replicas{namespace="n",server="s"} = 2x60`, `outrider_server_ready_replicas{namespace="n",server="s"} = 0x60`,
		`outrider_server_load_percent{namespace="n",server="s"} = 0+1x60`,
	}, "40m", nil, ""},
	{"OutriderServerNotReady", "scaled to zero", []string{
		`outrider_server_replicas{namespace="n",server="s"} = 0x30`, `outrider_server_ready_replicas{namespace="n",server="s"} = 0x30`,
	}, "30m", nil, ""},

	{"OutriderReplicasMissing", "one of two", []string{
		`outrider_server_replicas{namespace="n",server="s"} = 2x60`, `outrider_server_ready_replicas{namespace="n",server="s"} = 1x60`,
	}, "31m", server, "n/s serves with only 1 replicas"},
	{"OutriderReplicasMissing", "for the time of a large load", []string{
		`outrider_server_replicas{namespace="n",server="s"} = 2x60`, `outrider_server_ready_replicas{namespace="n",server="s"} = 2x10 1x25 2x25`,
	}, "34m", nil, ""},
	{"OutriderReplicasMissing", "all", []string{
		`outrider_server_replicas{namespace="n",server="s"} = 2x60`, `outrider_server_ready_replicas{namespace="n",server="s"} = 2x60`,
	}, "60m", nil, ""},

	{"OutriderLoadStalled", "a pod stalls", []string{`outrider_server_pods{namespace="n",server="s",phase="Stalled"} = 1x10`},
		"3m", server, "n/s stands still"},
	{"OutriderLoadStalled", "the same percent for ten minutes", []string{`outrider_server_load_percent{namespace="n",server="s"} = 0+10x4 40x20`},
		"17m", server, "n/s stands still"},
	{"OutriderLoadStalled", "a load that moves", []string{`outrider_server_load_percent{namespace="n",server="s"} = 0+1x60`},
		"30m", nil, ""},

	{"OutriderCrashLoop", "three in a row", []string{
		`outrider_server_pod_failures_in_row{namespace="n",server="s",pod="s-0"} = 0 1 2 3 3`, `outrider_server_pod_failures_in_row{namespace="n",server="s",pod="s-1"} = 0x5`,
	}, "4m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0"}, "The engine of n/s-0 has ended 3 times in a row"},
	{"OutriderCrashLoop", "two in a row", []string{`outrider_server_pod_failures_in_row{namespace="n",server="s",pod="s-0"} = 0 1 2 2 2`},
		"4m", nil, ""},

	{"OutriderServerFailed", "one pod", []string{`outrider_server_pods{namespace="n",server="s",phase="Failed"} = 1x5`},
		"1m", server, "1 pods of n/s have failed and are not started again"},
	{"OutriderServerFailed", "crashed, to be started again", []string{`outrider_server_pods{namespace="n",server="s",phase="Crashed"} = 1x5`},
		"5m", nil, ""},

	{"OutriderRankFault", "a device, a minute ago", []string{
		`outrider_server_pod_last_failure_timestamp_seconds{namespace="n",server="s",pod="s-0",reason="DeviceFault",rank="3"} = 60x60`,
	}, "2m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0", "reason": "DeviceFault", "rank": "3"}, "DeviceFault in n/s-0, rank 3"},
	{"OutriderRankFault", "the exchange, no rank known", []string{
		`outrider_server_pod_last_failure_timestamp_seconds{namespace="n",server="s",pod="s-0",reason="CollectiveFailed",rank=""} = 60x60`,
	}, "2m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0", "reason": "CollectiveFailed"}, "CollectiveFailed in n/s-0"},
	{"OutriderRankFault", "no device", failedFor("DeviceMissing"), "2m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0", "reason": "DeviceMissing"}, "DeviceMissing in n/s-0"},
	{"OutriderRankFault", "a rank that hangs", failedFor("Stalled"), "2m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0", "reason": "Stalled"}, "Stalled in n/s-0"},
	{"OutriderRankFault", "long ago", []string{
		`outrider_server_pod_last_failure_timestamp_seconds{namespace="n",server="s",pod="s-0",reason="DeviceFault",rank="3"} = 60x60`,
	}, "20m", nil, ""},
	{"OutriderRankFault", "another reason", []string{
		`outrider_server_pod_last_failure_timestamp_seconds{namespace="n",server="s",pod="s-0",reason="OutOfMemory",rank=""} = 60x60`,
	}, "2m", nil, ""},

	{"OutriderChangeRefused", "refused", []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="PodRefused"} = 1x20`,
		`outrider_server_ready_replicas{namespace="n",server="s"} = 2x20`},
		"16m", map[string]string{"namespace": "n", "server": "s", "reason": "PodRefused"}, "n/s cannot become what its spec asks for: PodRefused"},
	{"OutriderChangeRefused", "a name", degraded("NameTaken"), "16m", map[string]string{"namespace": "n", "server": "s", "reason": "NameTaken"}, "n/s cannot become what its spec asks for: NameTaken"},
	{"OutriderChangeRefused", "a claim", degraded("VolumeConflict"), "16m", map[string]string{"namespace": "n", "server": "s", "reason": "VolumeConflict"}, "n/s cannot become what its spec asks for: VolumeConflict"},
	{"OutriderChangeRefused", "a kind", degraded("NoLeaderWorkerSet"), "16m", map[string]string{"namespace": "n", "server": "s", "reason": "NoLeaderWorkerSet"}, "n/s cannot become what its spec asks for: NoLeaderWorkerSet"},
	{"OutriderChangeRefused", "another fault", []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="Crashed"} = 1x30`},
		"30m", nil, ""},
	{"OutriderChangeRefused", "soon mended", []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="PodRefused"} = 1x10 _x20`,
		`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="AsExpected"} = _x10 0x20`},
		"20m", nil, ""},

	{"OutriderDeepProbeFailing", "unverified", []string{`outrider_server_pods{namespace="n",server="s",phase="Unverified"} = 1x10`},
		"3m", server, "n/s runs and generates nothing"},
	{"OutriderDeepProbeFailing", "the condition", []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="VerificationFailed"} = 1x10`},
		"3m", server, "n/s runs and generates nothing"},
	{"OutriderDeepProbeFailing", "one missed probe", []string{`outrider_server_pods{namespace="n",server="s",phase="Unverified"} = 1 _ _ _ _ _ _ _ _`},
		"8m", nil, ""},

	{"OutriderGPUUnused", "on the CPU", []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="GPUUnused"} = 1x20`,
		`outrider_server_condition{namespace="n",server="other",condition="Degraded",reason="AsExpected"} = 0x20`}, "11m", server, "n/s holds GPUs and computes on the CPU"},
	{"OutriderGPUUnused", "another fault", []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="Crashed"} = 1x30`}, "30m", nil, ""},
	{"OutriderGPUUnused", "soon mended", []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="GPUUnused"} = 1x8 _x20`,
		`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="AsExpected"} = _x8 0x20`}, "30m", nil, ""},

	{"OutriderScrapeMissing", "ready, without series", []string{
		`outrider_server_ready_replicas{namespace="n",server="s"} = 1x30`, `outrider_requests_running{namespace="n",server="other",pod="other-0"} = 0x30`,
	}, "11m", server, "n/s serves and none of its pods is scraped"},
	{"OutriderScrapeMissing", "scraped", []string{
		`outrider_server_ready_replicas{namespace="n",server="s"} = 1x30`, `outrider_requests_running{namespace="n",server="s",pod="s-0"} = 0x30`,
	}, "30m", nil, ""},

	{"OutriderSpeculationLosing", "under load", losing("0.8", "1", "4"), "20m", server, "Speculation makes n/s slower: 0.80 times plain decoding"},
	{"OutriderSpeculationLosing", "idle", losing("0.8", "1", "0"), "60m", nil, ""},
	{"OutriderSpeculationLosing", "plain decoding", losing("0.8", "0", "4"), "60m", nil, ""},
	{"OutriderSpeculationLosing", "neither", losing("1", "1", "4"), "60m", nil, ""},
	{"OutriderSpeculationLosing", "it gains", losing("1.3", "1", "4"), "60m", nil, ""},

	{"OutriderAcceptanceCollapsed", "5 % accepted", []string{
		`outrider_spec_verifies_total{namespace="n",server="s",pod="s-0"} = 0+100x60`, `outrider_spec_accepted_tokens_total{namespace="n",server="s",pod="s-0",position="0"} = 0+5x60`,
	}, "30m", server, "n/s accepts hardly any draft"},
	{"OutriderAcceptanceCollapsed", "the engine says so", []string{`outrider_spec_draft_helps{namespace="n",server="s",pod="s-0"} = 0x60`},
		"11m", server, "n/s accepts hardly any draft"},
	{"OutriderAcceptanceCollapsed", "half accepted", []string{
		`outrider_spec_verifies_total{namespace="n",server="s",pod="s-0"} = 0+100x60`, `outrider_spec_accepted_tokens_total{namespace="n",server="s",pod="s-0",position="0"} = 0+50x60`,
		`outrider_spec_draft_helps{namespace="n",server="s",pod="s-0"} = 1x60`,
	}, "30m", nil, ""},
	{"OutriderAcceptanceCollapsed", "nothing verified", []string{
		`outrider_spec_verifies_total{namespace="n",server="s",pod="s-0"} = 0x60`, `outrider_spec_accepted_tokens_total{namespace="n",server="s",pod="s-0",position="0"} = 0x60`,
	}, "30m", nil, ""},

	{"OutriderKVCacheSaturated", "one pod is full", []string{
		`outrider_kv_cache_usage_ratio{namespace="n",server="s",pod="s-0"} = 0.98x30`, `outrider_kv_cache_usage_ratio{namespace="n",server="s",pod="s-1"} = 0.2x30`,
	}, "11m", server, "The KV cache of n/s is 98% full"},
	{"OutriderKVCacheSaturated", "well used", []string{`outrider_kv_cache_usage_ratio{namespace="n",server="s",pod="s-0"} = 0.9x60`}, "60m", nil, ""},
	{"OutriderKVCacheSaturated", "for a moment", []string{`outrider_kv_cache_usage_ratio{namespace="n",server="s",pod="s-0"} = 0.98x8 0.5x3`},
		"11m", nil, ""},

	{"OutriderQueueGrowing", "more and more", []string{
		`outrider_requests_waiting{namespace="n",server="s",pod="s-0"} = 0+2x30`, `outrider_requests_running{namespace="n",server="s",pod="s-0"} = 8x30`,
	}, "15m", server, "30 requests wait for n/s, and more and more"},
	{"OutriderQueueGrowing", "it shrinks", []string{
		`outrider_requests_waiting{namespace="n",server="s",pod="s-0"} = 100-2x30`, `outrider_requests_running{namespace="n",server="s",pod="s-0"} = 8x30`,
	}, "15m", nil, ""},
	{"OutriderQueueGrowing", "short", []string{
		`outrider_requests_waiting{namespace="n",server="s",pod="s-0"} = 0 0 1 1 1 2 2 2 2 2 3 3 3`, `outrider_requests_running{namespace="n",server="s",pod="s-0"} = 8x30`,
	}, "12m", nil, ""},

	{"OutriderRequestsFail", "one of ten", []string{
		`outrider_requests_total{namespace="n",server="s",pod="s-0",outcome="error"} = 0+6x30`, `outrider_requests_total{namespace="n",server="s",pod="s-0",outcome="stop"} = 0+54x30`,
	}, "12m", server, "10% of the requests to n/s fail in the engine"},
	{"OutriderRequestsFail", "clients' own mistakes", []string{
		`outrider_requests_total{namespace="n",server="s",pod="s-0",outcome="rejected"} = 0+60x30`, `outrider_requests_total{namespace="n",server="s",pod="s-0",outcome="error"} = 0x30`,
	}, "30m", nil, ""},

	{"OutriderGPUErrors", "the first of its kind", []string{`outrider_gpu_xid_events_total{namespace="n",server="s",pod="s-0",gpu="1",xid="79"} = _x20 1x10`},
		"22m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0", "gpu": "1", "xid": "79"}, "GPU 1 of n/s-0 reports an error: XID 79"},
	{"OutriderGPUErrors", "another", []string{`outrider_gpu_xid_events_total{namespace="n",server="s",pod="s-0",gpu="0",xid="13"} = 1x30 2x10`},
		"35m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0", "gpu": "0", "xid": "13"}, "GPU 0 of n/s-0 reports an error: XID 13"},
	{"OutriderGPUErrors", "long ago", []string{`outrider_gpu_xid_events_total{namespace="n",server="s",pod="s-0",gpu="0",xid="13"} = 1x60`}, "40m", nil, ""},
	{"OutriderGPUErrors", "the same, in the pod after", []string{`outrider_gpu_xid_events_total{namespace="n",server="s",pod="s-0",gpu="0",xid="13",instance="a"} = 1x10`,
		`outrider_gpu_xid_events_total{namespace="n",server="s",pod="s-0",gpu="0",xid="13",instance="b"} = _x30 1x10`},
		"32m", map[string]string{"namespace": "n", "server": "s", "pod": "s-0", "gpu": "0", "xid": "13"}, "GPU 0 of n/s-0 reports an error: XID 13"},
	{"OutriderGPUErrors", "long ago, and then not scraped for a while", []string{`outrider_gpu_xid_events_total{namespace="n",server="s",pod="s-0",gpu="0",xid="13"} = 1x30 _x10 1x60`}, "55m", nil, ""},

	{"OutriderOperatorMissing", "no series", []string{`up{job="other"} = 1x30`}, "11m", map[string]string{"controller": "speculativeserver"},
		"No operator is scraped: what the servers do is not watched, and crashed engines are not started again"},
	{"OutriderOperatorMissing", "there", []string{`controller_runtime_active_workers{controller="speculativeserver",job="outrider"} = 0x30`}, "30m", nil, ""},

	{"OutriderReconcileErrors", "each reconcile", []string{`controller_runtime_reconcile_errors_total{controller="speculativeserver",job="outrider"} = 0+60x60`},
		"30m", map[string]string{"job": "outrider"}, "The operator's reconciles fail, 1.00 a second"},
	{"OutriderReconcileErrors", "one server, with pauses", []string{`controller_runtime_reconcile_errors_total{controller="speculativeserver",job="outrider"} = 0+3x60`},
		"30m", map[string]string{"job": "outrider"}, "The operator's reconciles fail, 0.05 a second"},
	{"OutriderReconcileErrors", "one conflict", []string{`controller_runtime_reconcile_errors_total{controller="speculativeserver",job="outrider"} = 0x9 1x60`},
		"30m", nil, ""},
}

var server = map[string]string{"namespace": "n", "server": "s"}

// degraded is a server that is, for a reason.
func degraded(reason string) []string {
	return []string{`outrider_server_condition{namespace="n",server="s",condition="Degraded",reason="` + reason + `"} = 1x30`}
}

// failedFor is a pod whose engine ended in the first minute, for a reason.
func failedFor(reason string) []string {
	return []string{`outrider_server_pod_last_failure_timestamp_seconds{namespace="n",server="s",pod="s-0",reason="` + reason + `",rank=""} = 60x60`}
}

// losing is a server with a gain, drafting or not, with requests running.
func losing(gain, active, running string) []string {
	const of = `{namespace="n",server="s",pod="s-0"} = `
	return []string{"outrider_spec_gain_ratio" + of + gain + "x60", "outrider_spec_active" + of + active + "x60", "outrider_requests_running" + of + running + "x60"}
}
