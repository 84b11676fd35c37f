package server

import (
	"cmp"
	"slices"
)

// A Path is one that a port of the engine answers.
type Path struct {
	Method, Path  string
	Summary       string
	Public, Admin bool // the ports
	Fact          bool // on the public port unless --admin-only
}

// summaries say what a method of a path answers or does.
var summaries = map[string]string{
	"POST /v1/completions":      "completions",
	"POST /v1/chat/completions": "chats",
	"POST /tokenize":            "the tokens of a text, or of a chat's prompt",
	"POST /detokenize":          "the text of tokens",
	"GET /v1/models":            "the served model",
	"GET /v1/models/{name...}":  "the same by its name; otherwise 404",
	"GET /livez":                "200 while the process should go on; 503 when it has stalled",
	"GET /readyz":               "200 when requests are taken",
	"GET /health":               "as /readyz",
	"GET /health_generate":      "200 when the model has answered through draft and verify on all ranks",
	"GET /progress":             "how far the start is: phase, percent, bytes, shards, ranks",
	"GET /metrics":              "the metrics, in Prometheus' text format",
	"GET /server_info":          "model, device, ranks, KV pages, speculation, version",
	"GET /{$}":                  "a page for people: cycles, depth, acceptance, phases",
	"POST /drain":               "takes no new requests from now on; those that run go on",
	"GET /v1/speculation":       "depth in force, why, and what it is worth",
	"PUT /v1/speculation":       "changes the mode and the bounds of the depth from the next cycle on",
	"GET /v1/profile":           "where the time goes, and what the choice of the depth rests on",
	"GET /v1/trace":             "what each rank does for ?seconds=N, in the Trace Event Format",
	"GET /debug/pprof/":         "profiles of Go",
	"GET /debug/pprof/cmdline":  "the command line",
	"GET /debug/pprof/profile":  "a CPU profile of ?seconds=N",
	"GET /debug/pprof/symbol":   "names of program counters",
	"POST /debug/pprof/symbol":  "the same for many",
	"GET /debug/pprof/trace":    "a trace of Go's run time of ?seconds=N",
}

// Paths are all that the two ports answer, by path.
func Paths() []Path {
	found := map[string]*Path{}
	add := func(r routes, mark func(*Path)) {
		for path, m := range r {
			for method := range m {
				key := method + " " + path
				if found[key] == nil {
					found[key] = &Path{Method: method, Path: path, Summary: summaries[key]}
				}
				mark(found[key])
			}
		}
	}
	s := &Server{}
	add(s.publicRoutes(), func(p *Path) { p.Public = true })
	add(s.adminRoutes(), func(p *Path) { p.Admin = true })
	facts := routes{}
	s.facts(facts)
	add(facts, func(p *Path) { p.Fact = true })
	var all []Path
	for _, p := range found {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b Path) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method)) })
	return all
}
