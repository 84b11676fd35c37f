// Package decide works out what a SpeculativeServer's observed pods mean and
// what to do next. It is pure: no clock, no network, no API server, so that
// every state a cluster can be in is a row of a table test.
package decide

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/rollout"
)

// Limits and intervals of the decisions.
const (
	// SilentAfter is how long the admin port of a running engine may not answer before the pod counts as stalled.
	SilentAfter = 20 * time.Second
	// NoProgressAfter is how long a load may not advance before the pod counts as stalled.
	NoProgressAfter = 60 * time.Second
	// UnverifiedAfter is how many deep probes in a row must fail before a verified pod loses its readiness.
	UnverifiedAfter = 2
	// UnverifiedRestart is how long a model may not answer, while its engine does, before the pod is restarted.
	UnverifiedRestart = 10 * time.Minute
	// StuckAfter is how long past its grace period a pod may terminate before the status says so.
	StuckAfter = 30 * time.Second
	// ForceAfter is how long past its grace period a pod may terminate before the operator removes it without its
	// node's word: engines keep no state that could be harmed, and the name is needed.
	ForceAfter = 5 * time.Minute
)

// Input is all that a decision is made from.
type Input struct {
	Server    *v1alpha1.SpeculativeServer // with the status as last written
	Revision  string                      // of the pod template that the spec gives
	Model     string                      // name that clients give as "model"
	Pods      []Pod                       // the server's own pods, in any order
	NameTaken string                      // not empty: an object of someone else has a name that is needed; says which
	Refused   string                      // not empty: why the API server refuses the pods, or an object around them
	Conflict  string                      // not empty: which volume claim cannot serve the spec
	Hold      bool                        // one of these was known before: no pod can be made, so those that are there stay
	NoGroups  string                      // not empty: why there can be no replicas of several nodes
	Nodes     int32                       // pods of a replica; 0 is 1. Above 1 a LeaderWorkerSet makes them
	Workers   []Worker                    // the pods that serve a replica's first, in any order
	Port      int32                       // of the Service
	Selector  string                      // of the pods that serve, one a replica

	// DraftRevision is that of the pods with the draft that the spec names: Revision is another while the pods serve
	// without a draft that failed.
	DraftRevision string
	Now           time.Time

	Fetch *Fetch // nil: nothing is downloaded into a claim

	Claim *v1alpha1.CacheClaimStatus // that spec.modelCache.template has made; nil: none

	download *v1alpha1.FetchStatus // of Fetch; set by Decide
}

// Pod is one pod as the cluster, and its engine, describe it.
type Pod struct {
	*corev1.Pod
	Engine       *Engine // nil: not asked yet
	MountFailure string  // the kubelet's last complaint about a volume; empty when there is none
}

// Worker is a pod of a replica of several nodes that is not its first.
type Worker struct {
	Pod
	Ordinal, Node int32
}

// Engine is what an engine's admin port said.
type Engine struct {
	Progress    *Progress // nil: no answer so far
	SilentSince time.Time // zero while it answers
	SilentError string    // why it does not
	Probe       *Probe    // nil: no deep probe so far
	Metrics     *Metrics  // nil: none so far
	Bounds      *Bounds   // of its drafts, as it last answered; nil: not asked
	Refused     bool      // it wants another token than those that were shown
}

// Progress is the engine's /progress.
type Progress struct {
	Phase       string  // fetch, load, collective, kernels, capture, warmup, serving, draining
	Percent     float64 // of the load, 0 to 100
	ShardsDone  int64
	ShardsTotal int64
	BytesDone   int64
	BytesTotal  int64

	BytesPerSecond float64   // 0: not known
	Behind         *Rank     // the rank that is clearly behind the others; nil: none
	LastAdvance    time.Time // by the operator's clock; zero: the engine did not say

	Device       string // cpu or cuda; empty: the engine did not say
	DeviceReason string // why it is that one
}

// Rank is one rank of an engine.
type Rank struct {
	Rank    int
	Percent float64
}

// Probe is the outcome of the last deep probe.
type Probe struct {
	Time     time.Time
	Failures int    // in a row; 0: it passed
	Message  string // why it failed
}

// Metrics are the figures of the engine's /metrics that decisions are made from.
type Metrics struct {
	Depth           float64 // draft steps a cycle; 0 is plain decoding
	AcceptLength    float64 // tokens a verification; 0 when there were none
	TokensPerSecond float64

	Running float64 // requests computed now
	Waiting float64 // requests in the queue
	KVUsage float64 // share of the cache in use

	Gain              float64   // tokens a second over those of plain decoding; 0: not known
	InterTokenSeconds float64   // mean between tokens, between the last two scrapes; 0: not known
	VerifySeconds     float64   // mean of a verifying pass, likewise, or the last known
	Time              time.Time // of the scrape
}

// Decision is what to do, in the order of its fields.
type Decision struct {
	Status  v1alpha1.SpeculativeServerStatus // what to write
	Gates   []Gate                           // readiness gates to set
	Delete  []Deletion                       // pods to delete
	Create  []Creation                       // pods to make
	Events  []Event                          // transitions since the last status
	Group   bool                             // make, or correct, the LeaderWorkerSet
	Rolling Rolling                          // how its controller may replace groups
	Start   []Start                          // its pods that may be scheduled
	Fetch   FetchAction                      // what to do with the Job that downloads
	Bounds  *Bounds                          // what the engines are to be held to; nil: let them be
	Requeue time.Duration                    // look again after this long even if nothing happens; 0: no need
}

// Gate is the readiness gate of one pod.
type Gate struct {
	Pod      *corev1.Pod
	Verified bool
	Reason   string
	Message  string
}

// Creation is a pod to make.
type Creation struct {
	Ordinal int32
	Avoid   []string // nodes that it should not run on if there are others
}

// Deletion is a pod to delete and why.
type Deletion struct {
	Pod     *corev1.Pod
	Group   bool // with the other pods of its group, before it
	Force   bool // at once, without waiting for its node
	Reason  string
	Message string
}

// Event is a transition to report.
type Event struct {
	Type    string // Normal or Warning
	Reason  string
	Pod     string // empty: the server as a whole
	Message string
}

// member is an ordinal: its pod, when there is one, and its row of the status.
type member struct {
	ordinal int32
	pod     *Pod // nil: none
	row     v1alpha1.PodStatus
	stale   bool // made from another template

	badDraft bool // it ended because of its draft
	wake     time.Duration

	grouped bool     // a LeaderWorkerSet makes its pod, and makes it again
	node    int32    // its number among the nodes of its replica
	workers []member // the replica's other nodes
	lead    *Pod     // of another node: the replica's first pod; nil: none
	held    bool     // of a group: its pod may not be scheduled yet
	ended   bool     // of a group: its engine has ended, or is to be
	doomed  bool     // of a group: its engine runs, and is to end for what the operator found
	spent   bool     // of a group: its end was the last that the group may have
	again   bool     // of a group: its Failed pod was deleted by hand
	failed  bool     // the written status has it as Failed
	dead    bool     // the first of a group that is not started again
}

// Decide works out what to do.
func Decide(in Input) Decision {
	desired := replicas(in.Server)
	members := gatherMembers(in, desired)
	var d Decision
	var wait time.Duration
	in.download, d.Fetch, wait = in.fetch()
	d.wakeIn(wait)
	for i := range members {
		m := &members[i]
		m.classify(in)
		d.wakeIn(m.wake)
		for k := range m.workers {
			m.workers[k].classify(in)
			d.wakeIn(m.workers[k].wake)
		}
		if g, ok := m.gate(); ok {
			d.Gates = append(d.Gates, g)
		}
	}
	plan := rollout.Plan{} // a LeaderWorkerSet's controller makes and replaces its own pods
	if in.Nodes <= 1 {
		plan = d.plan(in, members, desired)
	} else {
		wait = d.groups(in, members)
		d.wakeIn(wait)
		d.Rolling = in.rolling(members, desired)
	}
	d.Group = in.Nodes > 1 && !in.fetching() && in.NameTaken == "" && in.Server.DeletionTimestamp == nil
	adaptation := adapted(in, members)
	if adaptation != nil {
		d.Bounds = &adaptation.bounds
		d.wakeIn(adaptation.wait)
	}
	d.Status = summarise(in, members, desired, plan, adaptation)
	if d.Status.DraftFailure != nil && !in.draftFailed() {
		d.wakeIn(time.Second) // to go on without it, once that is written down
	}
	d.Events = transitions(in.Server, &d.Status)
	return d
}

// wakeIn asks to look again after w, if that is sooner than what was asked for.
func (d *Decision) wakeIn(w time.Duration) {
	if w > 0 && (d.Requeue == 0 || w < d.Requeue) {
		d.Requeue = w
	}
}

func replicas(s *v1alpha1.SpeculativeServer) int32 {
	if s.Spec.Replicas != nil {
		return *s.Spec.Replicas
	}
	return 1
}
