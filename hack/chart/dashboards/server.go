package dashboards

import "fmt"

// one is the selection of the dashboard of one server.
const one = `namespace="$namespace", server="$server", pod=~"$pod"`

// server is one server from its clients' view down to the phases of a cycle.
func server() Dashboard {
	return Dashboard{
		UID: "outrider-server", Title: "Outrider / Server",
		Text: "One server: what its clients see, where a cycle's time goes, what speculation is worth, and how full the cache is.",
		Variables: []Variable{
			{Name: "namespace", Label: "Namespace", Metric: "outrider_requests_running"},
			{Name: "server", Label: "Server", Metric: `outrider_requests_running{namespace="$namespace"}`},
			{Name: "pod", Label: "Pod", Metric: `outrider_requests_running{namespace="$namespace", server="$server"}`, Multi: true},
		},
		Rows: []Row{
			{"Clients", clients()}, {"Where the time goes", cycle()}, {"Speculation", speculation()},
			{"Cache and queue", caches()}, {"GPUs", gpus()}, {"Pods", podsOf()},
		},
	}
}

// rate is the rate of a counter of the server, with further matchers.
func rate(metric, matchers string) string {
	if matchers != "" {
		matchers = ", " + matchers
	}
	return "rate(" + metric + "{" + one + matchers + "}[$__rate_interval])"
}

// quantiles are three of a histogram.
func quantiles(metric string) []Query {
	var q []Query
	for _, p := range []int{50, 90, 99} {
		q = append(q, Query{fmt.Sprintf("histogram_quantile(0.%d, sum by (le) (%s))", p, rate(metric+"_bucket", "")), fmt.Sprintf("p%d", p)})
	}
	return q
}

func clients() []Panel {
	return []Panel{
		{Title: "Tokens a second", Text: "Tokens generated, by pod.", Kind: Stacked, Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{"sum by (pod) (" + rate("outrider_generation_tokens_total", "") + ")", "{{pod}}"}}},
		{Title: "Time to first token", Text: "From a request's arrival, its wait in the queue included.", Colors: shareColors, Unit: "s", Width: 8, Min: new(0.0),
			Queries: quantiles("outrider_time_to_first_token_seconds")},
		{Title: "Time between tokens", Text: "Tokens that one cycle settles share its time evenly.", Colors: shareColors, Unit: "s", Width: 8, Min: new(0.0),
			Queries: quantiles("outrider_inter_token_seconds")},
		{Title: "Requests that ended", Text: "By how they ended: stop and length are answers in full.", Colors: outcomeColors, Kind: Stacked, Unit: "reqps", Width: 8, Min: new(0.0),
			Queries: []Query{{"sum by (outcome) (" + rate("outrider_requests_total", "") + ")", "{{outcome}}"}}},
		{Title: "Errors", Text: "Share of the requests that failed in the engine (error) or were refused (rejected).", Colors: outcomeColors, Unit: "percentunit", Width: 8, Min: new(0.0),
			Queries: []Query{{"sum by (outcome) (" + rate("outrider_requests_total", `outcome=~"error|rejected"`) + ") / on () group_left () sum(" + rate("outrider_requests_total", "") + ")", "{{outcome}}"}}},
		{Title: "Time of a request", Text: "From arrival to end; it depends on how long the answers are.", Colors: shareColors, Unit: "s", Width: 8, Min: new(0.0),
			Queries: quantiles("outrider_request_seconds")},
	}
}

// cycle is where the engine's time goes. Prefill has cycles of its own, and what
// collectives take lies within the other phases.
func cycle() []Panel {
	passes := "sum(" + rate("outrider_phase_seconds_count", `phase=~"decode|verify"`) + ")"
	all := "sum(" + rate("outrider_phase_seconds_sum", `phase!="collective"`) + ")"
	mean := func(phase string) string {
		m := `phase="` + phase + `"`
		return "sum(" + rate("outrider_phase_seconds_sum", m) + ") / sum(" + rate("outrider_phase_seconds_count", m) + ")"
	}
	return []Panel{
		{Title: "Decode cycle by phase", Text: "Mean time of a cycle of decoding. The part that is not verify is what speculation costs.", Colors: passColors, Kind: Stacked, Unit: "s", Width: 8, Min: new(0.0),
			Queries: []Query{{"sum by (phase) (" + rate("outrider_phase_seconds_sum", `phase!~"prefill|collective"`) + ") / on () group_left () " + passes, "{{phase}}"}}},
		{Title: "Share of each phase", Text: "Of the time that the engine computes, prompts included; collective lies within the others.", Colors: passColors, Kind: Stacked, Unit: "percentunit", Width: 8, Min: new(0.0), Max: new(1.0),
			Queries: []Query{{"sum by (phase) (" + rate("outrider_phase_seconds_sum", `phase!="collective"`) + ") / on () group_left () " + all, "{{phase}}"}}},
		{Title: "Verify share", Text: "Share of the decoding time that is verification, and of it that ranks wait for each other.", Colors: passColors, Unit: "percentunit", Width: 8, Min: new(0.0), Max: new(1.0),
			Queries: []Query{
				{"sum(" + rate("outrider_phase_seconds_sum", `phase="verify"`) + ") / sum(" + rate("outrider_phase_seconds_sum", `phase!~"prefill|collective"`) + ")", "verify"},
				{"sum(" + rate("outrider_phase_seconds_sum", `phase="collective"`) + ") / " + all, "collective"},
			}},
		{Title: "Time of a pass", Text: "Mean of a pass that verifies, of one that decodes plainly, and of one of prompts.", Colors: passColors, Unit: "s", Width: 12, Min: new(0.0),
			Queries: []Query{{mean("verify"), "verify"}, {mean("decode"), "decode"}, {mean("prefill"), "prefill"}}},
		{Title: "Passes a second", Text: "By kind; decode while speculation is off or probed.", Colors: passColors, Unit: "short", Width: 12, Min: new(0.0),
			Queries: []Query{{"sum by (phase) (" + rate("outrider_phase_seconds_count", `phase=~"prefill|decode|verify"`) + ")", "{{phase}}"}}},
	}
}

func speculation() []Panel {
	verifies := "sum(" + rate("outrider_spec_verifies_total", "") + ")"
	running := Query{"sum(outrider_requests_running{" + one + "})", "requests running"}
	return []Panel{
		{Title: "Accept length", Text: "Tokens that a verification settles, the target's own included. Below 1.1 the draft is as good as none.", Unit: "short", Width: 8, Min: new(1.0), Mark: new(1.1),
			Queries: []Query{{"1 + sum(" + rate("outrider_spec_accepted_tokens_total", "") + ") / " + verifies, "accept length"}}},
		{Title: "Acceptance by position", Text: "Share of the verifications that accepted the draft token at this position; where it is near 0, that depth is waste.", Unit: "percentunit", Width: 8, Min: new(0.0), Max: new(1.0),
			Queries: []Query{{"(sum by (position) (" + rate("outrider_spec_accepted_tokens_total", "") + ") > 0) / on () group_left () " + verifies, "position {{position}}"}}},
		{Title: "Gain over plain decoding", Text: "Tokens a second at the depth in force over those of plain decoding, as the engine estimates. Below 1 speculation loses.", Unit: "short", Width: 8, Mark: new(1.0),
			Queries: []Query{{"max by (pod) (outrider_spec_gain_ratio{" + one + "})", "{{pod}}"}}},
		{Title: "Depth", Text: "Tokens drafted in a cycle, by pod; 0 is plain decoding.", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{"max by (pod) (outrider_spec_depth{" + one + "})", "{{pod}}"}}},
		{Title: "Depth over load", Text: "Each point is a moment: with more requests at once, less depth pays.", Kind: Scatter, Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{running, {"avg(outrider_spec_depth{" + one + "})", "depth"}}},
		{Title: "Crossover: gain over load", Text: "Each point is a moment; where the points pass below 1, speculation costs more than it yields.", Kind: Scatter, Unit: "short", Width: 8, Mark: new(1.0),
			Queries: []Query{running, {"avg(outrider_spec_gain_ratio{" + one + "})", "gain"}}},
	}
}

func caches() []Panel {
	return []Panel{
		{Title: "KV cache in use", Text: "Share of the KV pages that requests hold. Near 1 requests are put back in the queue.", Unit: "percentunit", Width: 8, Min: new(0.0), Max: new(1.0), Mark: new(0.95),
			Queries: []Query{{"max by (pod) (outrider_kv_cache_usage_ratio{" + one + "})", "{{pod}}"}}},
		{Title: "Prefix cache", Text: "Share of the prompts' tokens that were found in the cache.", Unit: "percentunit", Width: 8, Min: new(0.0), Max: new(1.0),
			Queries: []Query{{"sum(" + rate("outrider_cached_tokens_total", "") + ") / sum(" + rate("outrider_prompt_tokens_total", "") + ")", "found"}}},
		{Title: "Retractions", Text: "Running requests put back in the queue for lack of KV pages, a second.", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{"sum by (pod) (" + rate("outrider_retractions_total", "") + ")", "{{pod}}"}}},
		{Title: "Requests running and waiting", Text: "Those that wait are not admitted yet.", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{"sum(outrider_requests_running{" + one + "})", "running"}, {"sum(outrider_requests_waiting{" + one + "})", "waiting"}}},
		{Title: "Time in the queue", Text: "From arrival to admission.", Colors: shareColors, Unit: "s", Width: 8, Min: new(0.0),
			Queries: quantiles("outrider_queue_seconds")},
		{Title: "Prompt tokens a second", Text: "Tokens of the prompts of admitted requests; found are those that were in the cache.", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{"sum(" + rate("outrider_prompt_tokens_total", "") + ")", "admitted"}, {"sum(" + rate("outrider_cached_tokens_total", "") + ")", "found"}}},
		{Title: "Length of prompts", Text: "Tokens of a prompt; longer ones take longer to their first token, and hold more of the cache.", Colors: shareColors, Unit: "short", Width: 12, Min: new(0.0),
			Queries: quantiles("outrider_request_prompt_tokens")},
		{Title: "Length of answers", Text: "Tokens that a request was answered with.", Colors: shareColors, Unit: "short", Width: 12, Min: new(0.0),
			Queries: quantiles("outrider_request_generation_tokens")},
	}
}

// gpus are what NVML says of the engines' devices; on CPUs there is nothing.
func gpus() []Panel {
	panel := func(title, text, unit string, expr string) Panel {
		return Panel{Title: title, Text: text, Unit: unit, Width: 8, Min: new(0.0), OnGPU: true, Queries: []Query{{expr, "{{pod}} GPU {{gpu}}"}}}
	}
	memory := panel("GPU memory", "Share in use, by any process; weights and KV cache are taken at the start.", "percentunit",
		"max by (pod, gpu) (outrider_gpu_memory_used_bytes{"+one+"} / outrider_gpu_memory_total_bytes{"+one+"})")
	busy := panel("GPU busy", "Share of the last moments in which any kernel ran; it says nothing of how well. Ranks that differ wait for each other.", "percentunit",
		"max by (pod, gpu) (outrider_gpu_utilization_ratio{"+one+"})")
	memory.Max, busy.Max = new(1.0), new(1.0)
	faults := panel("GPU errors", "Errors that the driver reported since the engine's start, by XID; 0 is a memory error that ECC did not correct.", "short",
		"sum by (pod, gpu, xid) (outrider_gpu_xid_events_total{"+one+"})")
	faults.Shades = "red"
	faults.Queries[0].Legend, faults.Kind = "{{pod}} GPU {{gpu}} XID {{xid}}", Stacked
	power := panel("GPU power", "A GPU that draws much less than the others is throttled, or waits for them.", "watt", "max by (pod, gpu) (outrider_gpu_power_watts{"+one+"})")
	heat := panel("GPU temperature", "Of the chip; above the card's limit it slows down.", "celsius", "max by (pod, gpu) (outrider_gpu_temperature_celsius{"+one+"})")
	power.Width, heat.Width = 12, 12
	return []Panel{memory, busy, faults, power, heat}
}

func podsOf() []Panel {
	const both = `{namespace="$namespace", server="$server"}`
	return []Panel{
		{Title: "Pods by phase", Text: "As the operator has them.", Colors: phaseColors, Kind: Stacked, Unit: "short", Width: 6, Min: new(0.0),
			Queries: []Query{{"sum by (phase) (outrider_server_pods" + both + ")", "{{phase}}"}}},
		{Title: "Restarts", Text: "How often the engine of each ordinal ended by itself.", Unit: "short", Width: 6, Min: new(0.0),
			Queries: []Query{{"max by (pod) (outrider_server_pod_restarts_total" + both + ")", "{{pod}}"}}},
		{Title: "Phases of the start", Text: "How long each phase of a pod's last start took.", Kind: Table, Unit: "s", Width: 6,
			Queries: []Query{{"max by (pod, phase) (outrider_load_seconds{" + one + "})", "Seconds"}}},
		{Title: "Memory", Text: "Resident memory of each pod's engine.", Unit: "bytes", Width: 6, Min: new(0.0),
			Queries: []Query{{"max by (pod) (process_resident_memory_bytes{" + one + "})", "{{pod}}"}}},
	}
}
