// Package poll keeps asking the engines in pods how they are, beside the
// reconcile loop, so that a slow or silent pod delays no other server. What it
// learns is read by Observe; what changes is announced.
package poll

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// Intervals say how often engines are asked. The zero value of a field is its default.
type Intervals struct {
	Loading     time.Duration // /progress, while a pod is not ready; default 2 s
	Serving     time.Duration // /progress and /metrics, of a ready pod; default 5 s
	Probe       time.Duration // deep probe of a verified pod; default 60 s
	ProbeRetry  time.Duration // deep probe after one that failed; default 5 s
	AskTimeout  time.Duration // of /progress and /metrics; default 3 s
	ProbeBudget time.Duration // of a deep probe; default 30 s
}

func (i Intervals) withDefaults() Intervals {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&i.Loading, 2*time.Second)
	set(&i.Serving, 5*time.Second)
	set(&i.Probe, time.Minute)
	set(&i.ProbeRetry, 5*time.Second)
	set(&i.AskTimeout, 3*time.Second)
	set(&i.ProbeBudget, 30*time.Second)
	return i
}

// Target is a pod whose engine is to be asked.
type Target struct {
	UID     types.UID
	Address string // of its admin port, as engineclient.Base gives
	Healthy bool   // the kubelet's readiness probe passes: a deep probe makes sense

	Tokens []string // that the admin port may ask for; the first that it takes is used

	ProbeEvery time.Duration // instead of Intervals.Probe; 0: that
	ProbeLimit time.Duration // instead of Intervals.ProbeBudget; 0: that
}

// Client is what Poller needs of engineclient.Client.
type Client interface {
	Progress(ctx context.Context, base string) (*engineclient.Progress, error)
	Metrics(ctx context.Context, base string) (*engineclient.Metrics, error)
	DeepProbe(ctx context.Context, base string) error
	Speculation(ctx context.Context, base string) (*engineclient.Speculation, error)
	SetSpeculation(ctx context.Context, base string, mode string, least, most int) (*engineclient.Speculation, error)
}

// Poller asks engines, each in a goroutine of its own.
type Poller struct {
	client    Client
	intervals Intervals
	announce  func(types.NamespacedName)
	slots     chan struct{} // bounds the questions in flight
	probes    chan struct{} // bounds the deep probes, which take long, apart from them

	mu       sync.Mutex
	servers  map[types.NamespacedName]map[types.UID]*watch
	bounds   map[types.NamespacedName]decide.Bounds // that the engines of a server are held to
	ctx      context.Context                        // of the manager; nil until Start
	watching sync.WaitGroup
}

// New makes a Poller. announce is called when something about a server's pods
// has changed; it must not block.
func New(client Client, intervals Intervals, announce func(types.NamespacedName)) *Poller {
	return &Poller{
		client: client, intervals: intervals.withDefaults(), announce: announce,
		slots:   make(chan struct{}, 128),
		probes:  make(chan struct{}, 128),
		servers: map[types.NamespacedName]map[types.UID]*watch{},
		bounds:  map[types.NamespacedName]decide.Bounds{},
	}
}

// Start lets the poller ask until ctx ends; it is a manager.Runnable.
func (p *Poller) Start(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	for server, watches := range p.servers {
		for _, w := range watches {
			p.launch(server, w)
		}
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.watching.Wait()
	return nil
}

// Sync makes targets the pods that are asked for a server, and forgets the others.
func (p *Poller) Sync(server types.NamespacedName, targets []Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.servers[server]
	next := map[types.UID]*watch{}
	for _, t := range targets {
		w := now[t.UID]
		if w == nil || w.address != t.Address {
			w = &watch{address: t.Address, stop: make(chan struct{}), wake: make(chan struct{}, 1)}
			p.launch(server, w)
		}
		w.set(t)
		next[t.UID] = w
	}
	for uid, w := range now {
		if next[uid] != w {
			close(w.stop)
		}
	}
	if len(next) == 0 {
		delete(p.servers, server)
		delete(p.bounds, server)
		return
	}
	p.servers[server] = next
}

// Hold asks that the engines of a server are held to bounds: now, and again when
// one of them has others, as an engine that has been restarted does. nil lets
// them be.
func (p *Poller) Hold(server types.NamespacedName, bounds *decide.Bounds) {
	p.mu.Lock()
	defer p.mu.Unlock()
	had, held := p.bounds[server]
	if bounds == nil {
		delete(p.bounds, server)
		return
	}
	p.bounds[server] = *bounds
	if held && had == *bounds {
		return
	}
	for _, w := range p.servers[server] {
		w.hurry()
	}
}

func (p *Poller) held(server types.NamespacedName) (decide.Bounds, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := p.bounds[server]
	return b, ok
}

// Observe is what is known about a pod's engine; nil when it was not asked yet.
func (p *Poller) Observe(server types.NamespacedName, uid types.UID) *decide.Engine {
	p.mu.Lock()
	w := p.servers[server][uid]
	p.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.observed()
}

// Refused says that an engine of the server has refused all tokens when it was
// last asked.
func (p *Poller) Refused(server types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.servers[server] {
		if e := w.observed(); e != nil && e.Refused {
			return true
		}
	}
	return false
}

// launch starts asking, once the poller itself has been started.
func (p *Poller) launch(server types.NamespacedName, w *watch) {
	if p.ctx == nil || p.ctx.Err() != nil {
		return
	}
	p.watching.Add(1)
	go func() {
		defer p.watching.Done()
		p.run(p.ctx, server, w)
	}()
}

// call runs f with a time limit when one of the slots is free; false when ctx
// ended first.
func call(ctx context.Context, slots chan struct{}, limit time.Duration, f func(context.Context)) bool {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-slots }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f(ctx)
	return true
}
