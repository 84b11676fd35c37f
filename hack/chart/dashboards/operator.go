package dashboards

// operator is whether the operator keeps up, and what it sees fail. Its own
// series have the label job of its scrape.
func operator() Dashboard {
	return Dashboard{
		UID: "outrider-operator", Title: "Outrider / Operator",
		Text:      "Does the operator keep up, does the API server answer it, and what fails in the servers.",
		Variables: []Variable{{Name: "job", Label: "Job", Metric: "controller_runtime_active_workers", Multi: true}},
		Rows:      []Row{{"Servers", failures()}, {"Reconciles", reconciles()}, {"API server and process", process()}},
	}
}

// none is a series of zeros with a name, so that a panel is not empty where all is well.
func none(label string) string { return `label_replace(vector(0), "` + label + `", "none", "", "")` }

func failures() []Panel {
	return []Panel{
		{Title: "Failures by reason", Text: "Pods whose engine ended by itself in the last hour, by the reason of the last time.", Kind: Stacked, Shades: "red", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{`count by (reason) (time() - outrider_server_pod_last_failure_timestamp_seconds < 3600) or ` + none("reason"), "{{reason}}"}}},
		{Title: "Degraded by reason", Text: "Servers with something wrong that their spec does not ask for; docs/troubleshooting.md explains the reasons.", Kind: Stacked, Shades: "orange", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{`sum by (reason) (outrider_server_condition{condition="Degraded"} == 1) or ` + none("reason"), "{{reason}}"}}},
		{Title: "Pods by phase", Text: "Over all servers.", Kind: Stacked, Colors: phaseColors, Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{`sum by (phase) (outrider_server_pods)`, "{{phase}}"}}},
	}
}

func reconciles() []Panel {
	const mine = `job=~"$job", controller="speculativeserver"`
	return []Panel{
		{Title: "Reconciles a second", Text: "By result; error is tried again with growing pauses.", Kind: Stacked, Colors: resultColors, Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{`sum by (result) (rate(controller_runtime_reconcile_total{` + mine + `}[$__rate_interval]))`, "{{result}}"}}},
		{Title: "Time of a reconcile", Text: "The deep probes and scrapes of engines run beside it.", Colors: shareColors, Unit: "s", Width: 8, Min: new(0.0),
			Queries: []Query{
				{`histogram_quantile(0.5, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket{` + mine + `}[$__rate_interval])))`, "p50"},
				{`histogram_quantile(0.99, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket{` + mine + `}[$__rate_interval])))`, "p99"},
			}},
		{Title: "Errors", Text: "Reconciles that failed, a second; the operator's log says why.", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{`sum(rate(controller_runtime_reconcile_errors_total{` + mine + `}[$__rate_interval]))`, "errors"}}},
		{Title: "Work queue", Text: "Servers that wait for a worker, and workers at work.", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{
				{`sum(workqueue_depth{job=~"$job", name="speculativeserver"})`, "waiting"},
				{`sum(controller_runtime_active_workers{` + mine + `})`, "workers"},
			}},
		{Title: "Time in the work queue", Text: "From a change to the start of its reconcile.", Colors: shareColors, Unit: "s", Width: 8, Min: new(0.0),
			Queries: []Query{
				{`histogram_quantile(0.5, sum by (le) (rate(workqueue_queue_duration_seconds_bucket{job=~"$job", name="speculativeserver"}[$__rate_interval])))`, "p50"},
				{`histogram_quantile(0.99, sum by (le) (rate(workqueue_queue_duration_seconds_bucket{job=~"$job", name="speculativeserver"}[$__rate_interval])))`, "p99"},
			}},
		{Title: "Retries", Text: "Items put back in the work queue, a second.", Unit: "short", Width: 8, Min: new(0.0),
			Queries: []Query{{`sum(rate(workqueue_retries_total{job=~"$job", name="speculativeserver"}[$__rate_interval]))`, "retries"}}},
	}
}

func process() []Panel {
	return []Panel{
		{Title: "API calls a second", Text: "By method. Where nothing changes there are no PATCH, POST and DELETE but the lease's.", Kind: Stacked, Unit: "reqps", Width: 6, Min: new(0.0),
			Queries: []Query{{`sum by (method) (rate(rest_client_requests_total{job=~"$job"}[$__rate_interval]))`, "{{method}}"}}},
		{Title: "API failures", Text: "Calls that were answered with 4xx or 5xx, a second; 409 is two writers at once, 404 something that is gone.", Shades: "red", Unit: "reqps", Width: 6, Min: new(0.0),
			Queries: []Query{{`sum by (code) (rate(rest_client_requests_total{job=~"$job", code=~"[45].."}[$__rate_interval])) or ` + none("code"), "{{code}}"}}},
		{Title: "Memory", Text: "Resident memory.", Unit: "bytes", Width: 6, Min: new(0.0),
			Queries: []Query{{`sum by (job) (process_resident_memory_bytes{job=~"$job"})`, "{{job}}"}}},
		{Title: "CPU", Text: "Seconds of processor a second.", Unit: "short", Width: 6, Min: new(0.0),
			Queries: []Query{{`sum by (job) (rate(process_cpu_seconds_total{job=~"$job"}[$__rate_interval]))`, "{{job}}"}}},
	}
}
