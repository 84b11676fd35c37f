package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/weights"
)

// Source is a model folder: the files and what to call them in errors.
type Source struct {
	Name  string
	Files fs.FS
}

// Spec is what to load.
type Spec struct {
	Target, Draft       Source // Draft.Files is nil without a draft
	Config, DraftConfig *Config
	DraftWhole          bool // the draft is a whole model with the target's vocabulary, not a head
	Ranks               int  // in all processes
	// Nodes are the processes that have the ranks, as many each; nil: this one has all.
	Nodes *collective.Nodes
	// CheckRanks has the ranks compare what they are about to compute, pass by pass.
	CheckRanks bool
	// Plan sizes workspaces and caches; it hears the size of all files before
	// the first tensor is read.
	Plan func(bytes int64, shards int) (Limits, error)
	// NewDevice makes the device of a rank.
	NewDevice func(comm collective.Communicator) (compute.Device, error)
	// Loaded, if set, hears of each tensor that a rank has read: the bytes of
	// the whole tensor, and whether it was the last of its file. It is called
	// by all ranks at once.
	Loaded func(rank int, bytes int64, lastOfShard bool)
	// Stepped, if set, hears that a rank has finished a pass.
	Stepped func(rank int)
	// Timed, if set, hears when a rank ran a pass (of rows rows) or a collective.
	// It is called by all ranks at once.
	Timed func(rank int, name string, start, end time.Time, rows int)
}

// Ranks are a target and its draft split over ranks, each a goroutine
// with its part of the weights. A pass runs on all of them; its logits are
// read from rank 0. The methods are for one goroutine, the step loop.
//
// Ranks of other processes are reached through Nodes: those of node 0 run the
// methods' passes and have the others' Follow run the same.
type Ranks struct {
	nodes    *collective.Nodes // nil: there is one process
	first    int               // rank of ranks[0]
	check    bool
	encoded  []byte // the command that the other nodes get
	ranks    []*rank
	commands []chan command // of ranks[1] …; ranks[0] runs on the caller's goroutine
	done     chan struct{}  // one token for each rank that finished a command
	comms    []*collective.Timed
	stepped  func(rank int)
	timed    func(rank int, name string, start, end time.Time, rows int)
	passes   []atomic.Int64 // by this process's rank: time in passes, ns
	limits   Limits
	tick     *time.Ticker // for awaitOne to look for faults
}

// rank is one rank's models.
type rank struct {
	device compute.Device
	target *Decoder
	draft  *Eagle3  // nil without a head
	small  *Decoder // nil without a draft model
	marked bool     // another pass is under way; see Ranks.Ahead
}

// command is a pass: the same on every rank.
type command struct {
	kind           passKind
	rows           *compute.Rows
	features, want []int32
	overlap        *Overlap // of rank 0, or nil
}

type passKind uint8

const (
	passForward passKind = iota
	passExtend
	passStep
	passKeep
	passCatchUp
	passDraft
	passMove
	passChain
	passForwardKeep
	passAhead
	passAheadKeep
)

// Names of passes, as Spec.Timed hears them.
const (
	PassForward = "forward"
	PassExtend  = "extend"
	PassStep    = "draft step"
	PassKeep    = "keep"
	PassCatchUp = "catch up"
	PassDraft   = "draft model"
	PassMove    = "move"
	PassChain   = "draft step after step"
)

var passNames = [...]string{passForward: PassForward, passExtend: PassExtend, passStep: PassStep, passKeep: PassKeep, passCatchUp: PassCatchUp,
	passDraft: PassDraft, passMove: PassMove, passChain: PassChain,
	passForwardKeep: PassForward, passAhead: PassForward, passAheadKeep: PassForward}

// Load reads the models onto all ranks at once. The error is the first rank's
// to fail; a cancelled ctx ends the reading between two tensors.
func Load(ctx context.Context, spec Spec) (*Ranks, error) {
	if spec.Config.Architecture == eagle3Architecture {
		return nil, fault.Errorf(fault.Unsupported, "%s is a draft head: give it as --draft-model, and the model that it was trained for as --model", spec.Target.Name)
	}
	if spec.Config.HeadNorms != (HeadNorms{}) {
		return nil, fault.Errorf(fault.Unsupported, "%s: config.json has fc_norm, norm_before_fc, norm_before_residual or norm_output true: supported in a draft head only", spec.Target.Name)
	}
	if err := spec.Config.CheckTP(spec.Ranks); err != nil {
		return nil, err
	}
	if spec.DraftConfig != nil {
		if err := spec.DraftConfig.CheckTP(spec.Ranks); err != nil {
			return nil, fmt.Errorf("draft model %s: %w", spec.Draft.Name, err)
		}
	}
	target, draft, err := openSets(spec)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	if draft != nil {
		defer draft.Close()
	}
	bytes, shards := target.Bytes(), target.Shards()
	if draft != nil {
		bytes, shards = bytes+draft.Bytes(), shards+draft.Shards()
	}
	limits, err := spec.Plan(bytes, shards)
	if err != nil {
		return nil, err
	}
	if limits.Pages, err = agree(spec, bytes, shards, limits.Pages); err != nil {
		return nil, err
	}
	r := newRanks(spec, limits)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(r.ranks))
	for i := range r.ranks {
		go func() {
			defer func() { r.done <- struct{}{} }()
			if r.ranks[i], errs[i] = loadRank(ctx, spec, limits, r.comms[i], target, draft); errs[i] != nil {
				cancel() // the others need not read on
			}
		}()
	}
	for range r.ranks {
		<-r.done
	}
	if err := firstCause(errs); err != nil {
		return nil, err
	}
	for i := 1; i < len(r.ranks); i++ {
		c := make(chan command)
		r.commands = append(r.commands, c)
		go r.follow(i, c)
	}
	return r, nil
}

// newRanks makes this process's ranks, without their models.
func newRanks(spec Spec, limits Limits) *Ranks {
	r := &Ranks{nodes: spec.Nodes, check: spec.CheckRanks, stepped: spec.Stepped, timed: spec.Timed, limits: limits, tick: time.NewTicker(100 * time.Millisecond)}
	widest := spec.Config.Hidden
	if spec.DraftConfig != nil {
		widest = max(widest, spec.DraftConfig.Hidden)
	}
	var comms []collective.Communicator
	if n := spec.Nodes; n != nil {
		r.first, comms = n.FirstRank(), n.Communicators(limits.MaxRows*widest)
	} else {
		comms = collective.NewLocal(spec.Ranks, limits.MaxRows*widest)
	}
	for _, c := range comms {
		timed := collective.NewTimed(c)
		if spec.Timed != nil {
			timed.Did = func(name string, start, end time.Time) { spec.Timed(c.Rank(), name, start, end, 0) }
		}
		r.comms = append(r.comms, timed)
	}
	r.ranks, r.passes, r.done = make([]*rank, len(comms)), make([]atomic.Int64, len(comms)), make(chan struct{}, len(comms))
	return r
}

// agree is the number of pages that every node has room for; the files of all
// must be the same.
func agree(spec Spec, bytes int64, shards, pages int) (int, error) {
	if spec.Nodes == nil {
		return pages, nil
	}
	all, err := spec.Nodes.Numbers(bytes, int64(shards), int64(pages))
	if err != nil {
		return 0, err
	}
	for i, v := range all {
		if v[0] != all[0][0] || v[1] != all[0][1] {
			return 0, fault.Errorf(fault.WeightsMismatch, "%s: the model files have %d bytes in %d files on node %d, and %d in %d on node 0: give all nodes the same model",
				spec.Target.Name, v[0], v[1], i, all[0][0], all[0][1])
		}
		pages = min(pages, int(v[2]))
	}
	return pages, nil
}

// firstCause is the first error that is not a consequence of another.
func firstCause(errs []error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(errs...)
}

func openSets(spec Spec) (target, draft *weights.Set, err error) {
	target, err = weights.Open(spec.Target.Files, spec.Target.Name)
	if err != nil || spec.Draft.Files == nil {
		return target, nil, err
	}
	draft, err = weights.Open(spec.Draft.Files, spec.Draft.Name)
	if err != nil {
		target.Close()
		if fault.ReasonOf(err) == fault.WeightsMismatch {
			err = &fault.Error{Reason: fault.DraftMismatch, Err: err}
		}
	}
	return target, draft, err
}

func loadRank(ctx context.Context, spec Spec, limits Limits, comm collective.Communicator, target, draft *weights.Set) (*rank, error) {
	device, err := spec.NewDevice(comm)
	if err != nil {
		return nil, err
	}
	r := &rank{device: device}
	loader := func(set *weights.Set, name string) *Loader {
		return &Loader{Device: device, Set: set, Name: name, Rank: comm.Rank(), Size: comm.Size(),
			Context: ctx, Mismatch: fault.WeightsMismatch, Loaded: spec.Loaded}
	}
	features, err := spec.featureLayers()
	if err != nil {
		return nil, err
	}
	if r.target, err = LoadDecoder(loader(target, spec.Target.Name), spec.Config, limits.ofTarget(), features); err != nil {
		return nil, err
	}
	switch {
	case draft == nil:
	case spec.DraftWhole:
		l := loader(draft, spec.Draft.Name)
		l.Mismatch = fault.DraftMismatch
		r.small, err = LoadDecoder(l, spec.DraftConfig, limits.ofDraftModel(), nil)
	default:
		r.draft, err = LoadEagle3(loader(draft, spec.Draft.Name), spec.DraftConfig, limits, r.target)
	}
	if err == nil {
		err = device.Err() // of workspaces and caches that do not fit
	}
	return r, err
}

// each has every rank's device do f, all at once.
func (r *Ranks) each(f func(d compute.Device) error) error {
	errs := make([]error, len(r.ranks))
	var wg sync.WaitGroup
	for i, k := range r.ranks {
		wg.Go(func() { errs[i] = f(k.device) })
	}
	wg.Wait()
	if err := r.comms[0].Err(); err != nil {
		return err // what came first
	}
	return errors.Join(errs...)
}

// Join joins the ranks' devices, where they do that.
func (r *Ranks) Join() error {
	return r.each(func(d compute.Device) error {
		if j, ok := d.(compute.Joiner); ok {
			return j.Join()
		}
		return nil
	})
}

// Links says how the ranks' devices meet, once they are built; "" where devices
// do not join.
func (r *Ranks) Links() string {
	if j, ok := r.ranks[0].device.(compute.Joiner); ok {
		return j.Links()
	}
	return ""
}

// Build waits until every rank's device has its kernels.
func (r *Ranks) Build() error {
	return r.each(func(d compute.Device) error {
		if b, ok := d.(compute.Builder); ok {
			return b.Build()
		}
		return nil
	})
}

// Break brings a fault about on the device of rank First + rank, for tests; false if the device
// cannot.
func (r *Ranks) Break(rank int, reason fault.Reason) bool {
	b, ok := r.ranks[rank].device.(compute.Breaker)
	return ok && b.Break(reason)
}

// Err is the first fault of a rank, or nil.
func (r *Ranks) Err() error { return r.comms[0].Err() }

// Size is the number of this process's ranks.
func (r *Ranks) Size() int { return len(r.ranks) }

// First is the first of them.
func (r *Ranks) First() int { return r.first }

// Spent is the time that rank First + i was in passes so far, and of this in collectives.
func (r *Ranks) Spent(i int) (passes, collectives time.Duration) {
	return time.Duration(r.passes[i].Load()), r.comms[i].Spent()
}

// Limits are what Plan decided.
func (r *Ranks) Limits() Limits { return r.limits }

// DeviceName says what a rank computes on.
func (r *Ranks) DeviceName() string { return r.ranks[0].device.Name() }

// Forward runs rows through the target on every rank; see Decoder.Forward.
func (r *Ranks) Forward(rows *compute.Rows, want []int32) error {
	return r.ForwardWith(rows, want, nil)
}

// Extend runs rows through the draft head on every rank; see Eagle3.Extend.
func (r *Ranks) Extend(rows *compute.Rows, features, want []int32) error {
	return r.run(command{kind: passExtend, rows: rows, features: features, want: want})
}

// Keep copies features of the last Forward on every rank; see Eagle3.Keep.
func (r *Ranks) Keep(slots, rows []int32) error {
	return r.run(command{kind: passKeep, features: rows, want: slots})
}

// CatchUp runs rows through the draft head on every rank; see Eagle3.CatchUp.
func (r *Ranks) CatchUp(rows *compute.Rows, slots []int32) error {
	return r.run(command{kind: passCatchUp, rows: rows, features: slots})
}

// Step runs rows through the draft head on every rank; see Eagle3.Step.
func (r *Ranks) Step(rows *compute.Rows, from []int32) error {
	return r.run(command{kind: passStep, rows: rows, want: from})
}

// DraftForward runs rows through the draft model on every rank; see Decoder.Forward.
func (r *Ranks) DraftForward(rows *compute.Rows, want []int32) error {
	return r.run(command{kind: passDraft, rows: rows, want: want})
}

// Move copies entries of the target's cache on every rank; see Decoder.Move.
func (r *Ranks) Move(to, from []int32) error {
	return r.run(command{kind: passMove, want: to, features: from})
}

// DraftBest is Best for DraftLogits.
func (r *Ranks) DraftBest(i int) (id int32, ok bool) {
	if small := r.ranks[0].small; small != nil {
		return small.Best(i)
	}
	return r.ranks[0].draft.Best(i)
}

// Logits are the target's for wanted row i of the last Forward, [vocab].
func (r *Ranks) Logits(i int) []float32 { return r.ranks[0].target.Logits(i) }

// DraftLogits are those of wanted row i of the last Extend, Step or
// DraftForward, over the draft's vocabulary.
func (r *Ranks) DraftLogits(i int) []float32 {
	if small := r.ranks[0].small; small != nil {
		return small.Logits(i)
	}
	return r.ranks[0].draft.Logits(i)
}

// TargetID is the target's id of a token of the draft head.
func (r *Ranks) TargetID(draft int32) int32 { return r.ranks[0].draft.TargetID(draft) }

// run has every rank run c, those of other nodes too, and waits for this
// process's. The error is a rank's fault.
func (r *Ranks) run(c command) error {
	if r.nodes != nil {
		r.encoded = c.encode(r.encoded[:0])
		if err := r.nodes.Broadcast(r.encoded); err != nil {
			return err
		}
	}
	return r.runHere(c)
}

// runHere has this process's ranks run c.
func (r *Ranks) runHere(c command) error {
	others := c
	others.overlap = nil
	for _, ch := range r.commands {
		ch <- others
	}
	r.pass(0, c)
	for range r.commands {
		if !r.awaitOne() {
			break
		}
	}
	return r.ranks[0].device.Err()
}

// abandon is how long a rank may still take after another's fault.
const abandon = 2 * time.Second

// awaitOne waits for a rank to finish a command; false if there was a fault and
// the rank does not come back from it.
func (r *Ranks) awaitOne() bool {
	select {
	case <-r.done:
		return true
	default:
	}
	var since time.Time
	for {
		select {
		case <-r.done:
			return true
		case now := <-r.tick.C:
			switch {
			case r.Err() == nil:
			case since.IsZero():
				since = now
			case now.Sub(since) > abandon:
				return false
			}
		}
	}
}

// Follow runs what node 0's ranks run, until node 0 ends it, which is no error.
// begins and ends, if set, are called around each pass.
func (r *Ranks) Follow(begins, ends func()) error {
	var received []byte
	var c command
	lim := r.bounds()
	for {
		var err error
		if received, err = r.nodes.Receive(received); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := c.decode(received, lim); err != nil {
			err = &fault.Error{Reason: fault.CollectiveFailed, Err: fmt.Errorf("a command of node 0: %w", err)}
			r.nodes.Abort(err)
			return err
		}
		if begins != nil {
			begins()
		}
		err = r.runHere(c)
		if ends != nil {
			ends()
		}
		if err != nil {
			return err
		}
	}
}

// follow runs the part of ranks[i] in every pass.
func (r *Ranks) follow(i int, commands <-chan command) {
	for c := range commands {
		r.pass(i, c)
		r.done <- struct{}{}
	}
}

// pass runs c on ranks[i]. A panic there must not leave the other ranks waiting:
// it becomes the fault of the whole group.
func (r *Ranks) pass(i int, c command) {
	defer func() {
		if p := recover(); p != nil {
			os.Stderr.Write(debug.Stack()) // where it happened does not fit the one line of the fault
			id := r.first + i
			r.comms[i].Abort(&fault.Error{Reason: fault.Internal, Rank: id, Err: fmt.Errorf("rank %d failed in a pass: %v", id, p)})
		}
	}()
	k, start := r.ranks[i], time.Now()
	if r.check && !r.compare(i, c) {
		return
	}
	if runner, ok := k.device.(compute.Runner); ok {
		runner.Run(compute.Pass{Kind: int(c.kind), Rows: c.rows, Lists: [2][]int32{c.features, c.want}}, func(rows *compute.Rows, lists [2][]int32) {
			k.compute(c.kind, rows, lists[0], lists[1])
		})
		if c.overlap != nil {
			k.overlap(c.overlap)
		}
		if c.rows != nil && len(c.want) > 0 && !k.marked && !(r.Chains() && (c.kind == passExtend || c.kind == passChain)) {
			runner.Wait() // for its results, so that its time and its faults are its own
		}
	} else {
		k.compute(c.kind, c.rows, c.features, c.want)
	}
	end := time.Now()
	r.passes[i].Add(int64(end.Sub(start)))
	if r.timed != nil {
		rows := len(c.want)
		if c.rows != nil {
			rows = c.rows.Len()
		}
		r.timed(r.first+i, passNames[c.kind], start, end, rows)
	}
	if r.stepped != nil && c.kind != passKeep && c.kind != passMove && k.device.Err() == nil {
		r.stepped(r.first + i)
	}
}

// compute queues, or computes, a pass.
func (k *rank) compute(kind passKind, rows *compute.Rows, features, want []int32) {
	switch kind {
	case passForward, passForwardKeep, passAhead, passAheadKeep:
		k.forward(kind, rows, features, want)
	case passExtend:
		k.draft.Extend(rows, features, want)
	case passStep:
		k.draft.Step(rows, want)
	case passKeep:
		k.draft.Keep(want, features)
	case passCatchUp:
		k.draft.CatchUp(rows, features)
	case passDraft:
		k.small.Forward(rows, want)
	case passMove:
		k.target.Move(want, features)
	case passChain:
		k.draft.Chain(rows, features, want)
	}
}

// Close ends the ranks' goroutines and threads; no pass may be running.
func (r *Ranks) Close() {
	r.tick.Stop()
	for _, ch := range r.commands {
		close(ch)
	}
	for _, k := range r.ranks { // what one frees, another's work may need
		if w, ok := k.device.(compute.Runner); ok {
			w.Wait()
		}
	}
	var wg sync.WaitGroup // they may wait for each other
	for _, k := range r.ranks {
		if d, ok := k.device.(interface{ Close() }); ok {
			wg.Go(d.Close)
		}
	}
	wg.Wait()
}
