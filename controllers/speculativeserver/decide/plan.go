package decide

import (
	"slices"
	"time"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/rollout"
)

// plan chooses the pods to make and to delete, as package rollout plans it.
func (d *Decision) plan(in Input, members []member, desired int32) rollout.Plan {
	if in.Server.DeletionTimestamp != nil {
		return rollout.Plan{} // the garbage collector takes the pods
	}
	pods := make([]rollout.Pod, len(members))
	at := map[int32]*member{}
	for i := range members {
		m := &members[i]
		pods[i] = m.planned(in)
		at[m.ordinal] = m
	}
	plan := rollout.Next(config(in.Server, desired), pods, in.Now)
	d.wakeIn(plan.Wake)
	if in.fetching() || in.Hold {
		hold(&plan, desired)
	}
	for _, del := range plan.Delete {
		d.Delete = append(d.Delete, Deletion{Pod: at[del.Ordinal].pod.Pod, Force: del.Force, Reason: del.Reason, Message: del.Message})
	}
	for _, n := range plan.Create {
		c := Creation{Ordinal: n}
		if m := at[n]; m != nil {
			c.Avoid = m.avoid()
		}
		d.Create = append(d.Create, c)
	}
	for i := range members {
		m := &members[i]
		switch {
		case !slices.Contains(plan.Await, m.ordinal):
			m.row.IdleWaitSince = nil
		case m.row.IdleWaitSince == nil:
			m.row.IdleWaitSince = ptrTime(in.Now)
		}
	}
	return plan
}

// hold takes out of a plan what would replace pods by pods that cannot be made, or
// could not load.
func hold(plan *rollout.Plan, desired int32) {
	plan.Create, plan.Await, plan.Halted = nil, nil, ""
	plan.Delete = slices.DeleteFunc(plan.Delete, func(d rollout.Deletion) bool { return !d.Force && d.Ordinal < desired })
}

// config is the rollout that the spec asks for.
func config(s *v1alpha1.SpeculativeServer, desired int32) rollout.Config {
	c := rollout.Config{Desired: desired, MaxUnavailable: 1}
	r := s.Spec.Rollout
	if r == nil {
		return c
	}
	if r.MaxSurge != nil && *r.MaxSurge > 0 {
		c.MaxSurge, c.MaxUnavailable = *r.MaxSurge, 0
	}
	if r.MaxUnavailable != nil {
		c.MaxUnavailable = *r.MaxUnavailable
	}
	if r.WaitForIdleSeconds != nil {
		c.WaitForIdle = time.Duration(*r.WaitForIdleSeconds) * time.Second
	}
	return c
}

// planned is the ordinal as the planner sees it.
func (m *member) planned(in Input) rollout.Pod {
	q := rollout.Pod{Ordinal: m.ordinal, Requests: -1}
	if m.row.IdleWaitSince != nil {
		q.IdleSince = m.row.IdleWaitSince.Time
	}
	if m.pod == nil {
		return q
	}
	q.Exists, q.Stale = true, m.stale
	q.Ready = m.row.Phase == v1alpha1.PhaseReady
	q.NoRoom = m.row.Phase == v1alpha1.PhaseWaitingForCapacity
	q.Faulty = !q.NoRoom && faulty(m.row.Phase)
	if e := m.pod.Engine; e != nil && e.Metrics != nil {
		q.Requests = int(finite(e.Metrics.Running) + finite(e.Metrics.Waiting))
	}
	if end := m.pod.DeletionTimestamp; end != nil {
		q.Terminating = true
		// With a grace period of 0 the object waits for a finalizer of someone's, and forcing it changes nothing.
		grace := m.pod.DeletionGracePeriodSeconds
		q.Overdue = !in.Now.Before(end.Add(ForceAfter)) && (grace == nil || *grace > 0)
		return q
	}
	if m.row.NextStartTime != nil {
		q.RestartAt = m.row.NextStartTime.Time
		q.Recorded = m.recorded(in)
	}
	return q
}

// recorded says that the pod's failure is in the status as last written.
func (m *member) recorded(in Input) bool {
	for i := range in.Server.Status.Pods {
		row := &in.Server.Status.Pods[i]
		if row.Name == m.row.Name && row.LastFailure != nil && row.LastFailure.PodUID == string(m.pod.UID) {
			return true
		}
	}
	return false
}

func faulty(p v1alpha1.Phase) bool {
	return slices.ContainsFunc(faults, func(f fault) bool { return f.phase == p })
}

// scheme is that of the server's address.
func (in *Input) scheme() string {
	if sec := in.Server.Spec.Security; sec != nil && sec.TLSSecretName != "" {
		return "https"
	}
	return "http"
}
