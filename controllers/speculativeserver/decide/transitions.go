package decide

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// transitions are the events between the status last written and the next one.
func transitions(s *v1alpha1.SpeculativeServer, next *v1alpha1.SpeculativeServerStatus) []Event {
	var events []Event
	before := map[string]*v1alpha1.PodStatus{}
	for i := range s.Status.Pods {
		before[s.Status.Pods[i].Name] = &s.Status.Pods[i]
	}
	for i := range next.Pods {
		row := &next.Pods[i]
		old := before[row.Name]
		again := old != nil && row.LastFailure != nil && (old.LastFailure == nil || old.LastFailure.PodUID != row.LastFailure.PodUID)
		// A pod that waits behind its gate for another's end to be over is no news.
		waits := row.Phase == v1alpha1.PhaseCrashed || row.Phase == v1alpha1.PhaseFailed
		if row.UID == "" || old != nil && old.Phase == row.Phase && (old.UID == row.UID || waits) && !again {
			continue
		}
		events = append(events, Event{Type: eventType(row.Phase), Reason: string(row.Phase), Pod: row.Name, Message: row.Message})
	}
	if next.Phase != s.Status.Phase {
		switch next.Phase {
		case v1alpha1.PhaseReady, v1alpha1.PhaseDegraded, v1alpha1.PhaseUpdating, v1alpha1.PhaseStopped, v1alpha1.PhaseFailed:
			events = append(events, Event{Type: eventType(next.Phase), Reason: string(next.Phase), Message: next.Message})
		}
	}
	if c := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionDegraded); c != nil && (refusal(c.Reason) || c.Reason == v1alpha1.ReasonGPUUnused) {
		if last := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded); last == nil || last.Reason != c.Reason {
			events = append(events, Event{Type: corev1.EventTypeWarning, Reason: c.Reason, Message: c.Message})
		}
	}
	if f := next.DraftFailure; f != nil && s.Status.DraftFailure == nil {
		events = append(events, Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonDraftFailed, Message: "Serving without the draft: " + f.Message})
	}
	events = append(events, fetchEvents(s.Status.Fetch, next.Fetch)...)
	return append(events, bounded(s.Status.Speculation, next.Speculation)...)
}

// refusal says that a fault is no pod's: one that keeps pods from being made.
func refusal(reason string) bool {
	return reason == v1alpha1.ReasonPodRefused || reason == v1alpha1.ReasonVolumeConflict ||
		reason == v1alpha1.ReasonNameTaken || reason == v1alpha1.ReasonNoLeaderWorkerSet
}

// bounded is the event of another bound on the depth of drafts.
func bounded(last, next *v1alpha1.SpeculationStatus) []Event {
	if next == nil || next.MaxSteps == nil || last != nil && last.MaxSteps != nil && *last.MaxSteps == *next.MaxSteps && last.Mode == next.Mode {
		return nil
	}
	message := fmt.Sprintf("Drafts of up to %d steps, mode %s", *next.MaxSteps, next.Mode)
	if next.Reason != "" {
		message += ", " + next.Reason
	}
	if next.Detail != "" {
		message += ": " + next.Detail
	}
	return []Event{{Type: corev1.EventTypeNormal, Reason: "SpeculationBounds", Message: message + "."}}
}

func eventType(p v1alpha1.Phase) string {
	if p == v1alpha1.PhaseDegraded {
		return corev1.EventTypeWarning
	}
	for _, f := range faults {
		if f.phase == p {
			return corev1.EventTypeWarning
		}
	}
	return corev1.EventTypeNormal
}

// onTheWay are the phases that a healthy server goes through to Ready.
var onTheWay = []v1alpha1.Phase{
	v1alpha1.PhasePending, v1alpha1.PhasePulling, v1alpha1.PhaseStarting, v1alpha1.PhaseFetching, v1alpha1.PhaseLoading,
	v1alpha1.PhaseWarmingUp, v1alpha1.PhaseVerifying,
}

// Passing says that the next status is one more step of a healthy start: when
// steps follow one another within a second, only the last is worth a write.
func Passing(last, next *v1alpha1.SpeculativeServerStatus) bool {
	if !slices.Contains(onTheWay, last.Phase) || !slices.Contains(onTheWay, next.Phase) ||
		last.ObservedGeneration != next.ObservedGeneration || len(last.Pods) != len(next.Pods) {
		return false
	}
	for i := range next.Pods {
		if next.Pods[i].Restarts != last.Pods[i].Restarts || next.Pods[i].Name != last.Pods[i].Name {
			return false
		}
	}
	return !meta.IsStatusConditionTrue(next.Conditions, v1alpha1.ConditionDegraded)
}

// Change says how much two statuses differ.
type Change int

// The kinds of change.
const (
	Same Change = iota // nothing worth a write
	Soft               // figures, percentages and their wording: at intervals
	Hard               // at once
)

// Compare says how much the next status differs from the one last written. The
// time of the last deep probe alone is nothing worth a write.
func Compare(last, next *v1alpha1.SpeculativeServerStatus) Change {
	a, b := last.DeepCopy(), next.DeepCopy()
	for _, s := range []*v1alpha1.SpeculativeServerStatus{a, b} {
		for i := range s.Pods {
			s.Pods[i].LastProbeTime = nil
		}
	}
	if equality.Semantic.DeepEqual(a, b) {
		return Same
	}
	for _, s := range []*v1alpha1.SpeculativeServerStatus{a, b} {
		s.Message = ""
		if s.Fetch != nil {
			s.Fetch.Message, s.Fetch.Percent, s.Fetch.BytesPerSecond = "", nil, nil
		}
		if s.Speculation != nil {
			s.Speculation.AcceptLength, s.Speculation.TokensPerSecond = "", ""
			s.Speculation.Gain, s.Speculation.VerifyMilliseconds, s.Speculation.Detail = "", "", ""
		}
		for i := range s.Conditions {
			s.Conditions[i].Message = ""
		}
		for i := range s.Pods {
			s.Pods[i].Message, s.Pods[i].Percent = "", nil
		}
	}
	if equality.Semantic.DeepEqual(a, b) {
		return Soft
	}
	return Hard
}
