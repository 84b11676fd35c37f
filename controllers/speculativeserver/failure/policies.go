package failure

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Policy judges one kind of trouble; nil when it is not that.
type Policy struct {
	Name  string
	Judge func(*Evidence) *Verdict
}

// Policies in the order in which they judge: those of a pod that has not started,
// then those of an engine that has ended, the surest evidence first. The last
// takes every end that is left.
var Policies = []Policy{
	{"unschedulable", unschedulable},
	{"image", badImage},
	{"container", refusedContainer},
	{"volume", badVolume},

	{"kernel-out-of-memory", kernelOOM},
	{"evicted", evicted},
	{"panic", panicked},
	{"config", config},
	{"unauthorized", source("Unauthorized", true, false, "the model's source refuses the credentials")},
	{"not-found", source("ModelNotFound", true, false, "the model is not there")},
	{"no-space", source("NoSpace", false, true, "no room for the model's files")},
	{"fetch", fetch},
	{"weights", weights},
	{"out-of-memory", byCode(12, "OutOfMemory", false, "weights or KV cache do not fit")},
	{"device", byCode(13, "DeviceFault", true, "the device failed")},
	{"collective", byCode(14, "CollectiveFailed", false, "the ranks lost each other")},
	{"stall", byCode(15, "Stalled", false, "no step finished")},
	{"stopped", stopped},
	{"killed", killed},
	{"other", other},
}

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func pending(e *Evidence) bool { return e.Pod.Status.Phase == corev1.PodPending }

// unschedulable is the scheduler's complaint; what it says of a claim is about a
// volume and not about room. A pod with a scheduling gate has not come to it yet.
func unschedulable(e *Evidence) *Verdict {
	c := condition(e.Pod, corev1.PodScheduled)
	if !pending(e) || e.Pod.Spec.NodeName != "" || c == nil || c.Status != corev1.ConditionFalse || c.Message == "" || c.Reason == corev1.PodReasonSchedulingGated {
		return nil
	}
	if strings.Contains(strings.ToLower(c.Message), "persistentvolumeclaim") {
		return &Verdict{Phase: v1alpha1.PhaseVolumeUnavailable, Reason: v1alpha1.ReasonVolumeUnavailable,
			Message: fmt.Sprintf("The claim of a volume is not usable (%s): %s. Make it, give it a volume (kubectl describe pvc says what it waits for), or correct the spec.",
				strings.Join(claims(e.Pod), ", "), strings.TrimRight(strings.TrimSuffix(c.Message, ". not found"), "."))}
	}
	return &Verdict{Phase: v1alpha1.PhaseWaitingForCapacity, Reason: v1alpha1.ReasonUnschedulable, Message: "Waiting for capacity: " + c.Message}
}

// claims are the names of the volume claims that a pod mounts.
func claims(p *corev1.Pod) []string {
	var names []string
	for i := range p.Spec.Volumes {
		if c := p.Spec.Volumes[i].PersistentVolumeClaim; c != nil && !slices.Contains(names, c.ClaimName) {
			names = append(names, c.ClaimName)
		}
	}
	return names
}

// imageReasons are the waiting reasons of a container whose image is the matter.
var imageReasons = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"ImageInspectError": true, "RegistryUnavailable": true, "SignatureValidationFailed": true,
}

func waiting(e *Evidence) *corev1.ContainerStateWaiting {
	if !pending(e) || e.Pod.Spec.NodeName == "" {
		return nil
	}
	for i := range e.Pod.Status.ContainerStatuses {
		if w := e.Pod.Status.ContainerStatuses[i].State.Waiting; w != nil {
			return w
		}
	}
	return nil
}

func badImage(e *Evidence) *Verdict {
	w := waiting(e)
	if w == nil || !imageReasons[w.Reason] {
		return nil
	}
	text := strings.ToLower(w.Message)
	says := func(words ...string) bool {
		for _, word := range words {
			if strings.Contains(text, word) {
				return true
			}
		}
		return false
	}
	hint := ""
	switch {
	case says("unauthorized", "401", "403", "denied", "forbidden", "no basic auth"):
		hint = ". Name a Secret with the registry's credentials in spec.imagePullSecrets."
		// They may be the service account's: the API server gives those to a pod without any.
		if names := pullSecrets(e.Pod); len(names) > 0 {
			hint = fmt.Sprintf(". See that of the pod's imagePullSecrets (%s) one is there, of the type kubernetes.io/dockerconfigjson, with credentials that the registry takes, or name another in spec.imagePullSecrets.", strings.Join(names, ", "))
		}
	case says("not found", "manifest unknown", "404"):
		hint = ". Correct spec.image."
	}
	return &Verdict{Phase: v1alpha1.PhaseImageUnavailable, Reason: v1alpha1.ReasonImageUnavailable,
		Message: fmt.Sprintf("Image %s: %s: %s%s", Image(e.Pod), w.Reason, strings.TrimRight(w.Message, ". "), hint)}
}

// pullSecrets are the names of the Secrets that a pod's image is pulled with.
func pullSecrets(p *corev1.Pod) []string {
	var names []string
	for _, s := range p.Spec.ImagePullSecrets {
		names = append(names, s.Name)
	}
	return names
}

// Image is the engine's image in a pod, for messages.
func Image(p *corev1.Pod) string {
	if len(p.Spec.Containers) == 0 {
		return "its image"
	}
	return p.Spec.Containers[0].Image
}

func refusedContainer(e *Evidence) *Verdict {
	w := waiting(e)
	if w == nil || w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" {
		return nil
	}
	return &Verdict{Phase: v1alpha1.PhaseContainerRefused, Reason: v1alpha1.ReasonContainerRefused,
		Message: fmt.Sprintf("Node %s cannot make the container: %s: %s", e.Pod.Spec.NodeName, w.Reason, w.Message)}
}

func badVolume(e *Evidence) *Verdict {
	// Once the sandbox is there its volumes are mounted, and complaints about them are of the past.
	c := condition(e.Pod, corev1.PodReadyToStartContainers)
	if !pending(e) || e.Pod.Spec.NodeName == "" || e.MountFailure == "" || c != nil && c.Status == corev1.ConditionTrue {
		return nil
	}
	return &Verdict{Phase: v1alpha1.PhaseVolumeUnavailable, Reason: v1alpha1.ReasonVolumeUnavailable,
		Message: fmt.Sprintf("Node %s cannot mount a volume: %s. Put it there, or correct the spec.", e.Pod.Spec.NodeName, strings.TrimRight(e.MountFailure, "."))}
}

// kernelOOM overrides what the engine said before: that is not why it ended.
func kernelOOM(e *Evidence) *Verdict {
	if !e.ended() || e.end == nil || e.end.Reason != "OOMKilled" {
		return nil
	}
	return &Verdict{Reason: "OutOfMemory",
		Message: "the kernel ended the engine at its memory limit: raise spec.resources.limits.memory, or lower spec.model.maxContextLength or spec.kvCache.memoryFraction. " +
			"Requests count too: large bodies take up to 512 MiB beside model and cache, and each request that runs some more (--max-running-requests in spec.extraArgs)"}
}

// evicted is a pod that was ended as a whole: by its node, or with it.
func evicted(e *Evidence) *Verdict {
	if !e.ended() || e.end != nil && (e.Pod.Status.Reason == "" || e.end.ExitCode == 0) {
		return nil
	}
	v := &Verdict{Reason: e.Pod.Status.Reason, Message: e.Pod.Status.Message, Outside: true}
	if !reasonPattern.MatchString(v.Reason) {
		v.Reason = "Error"
	}
	if v.Message == "" {
		v.Message = "the node ended the pod and left no message; kubectl describe pod has the events"
	}
	return v
}

// code says whether the engine ended with a code.
func (e *Evidence) code(code int32) bool { return e.ended() && e.end != nil && e.end.ExitCode == code }

// verdict is the engine's own account, or what stands in where it left none.
func (e *Evidence) verdict(reason, message string) *Verdict {
	if e.told != nil {
		return &Verdict{Reason: e.told.Reason, Message: e.told.Message}
	}
	if e.text != "" {
		message = e.text
	}
	return &Verdict{Reason: reason, Message: message}
}

// panicked: a Go program that panics exits with 2, as one with wrong flags does,
// but leaves a trace and no account.
func panicked(e *Evidence) *Verdict {
	if !e.code(2) || e.told != nil || e.text != "" && !strings.Contains(e.text, "goroutine ") {
		return nil
	}
	return e.verdict("Error", "the engine panicked")
}

func config(e *Evidence) *Verdict {
	if !e.code(2) {
		return nil
	}
	v := e.verdict("InvalidConfig", "a flag or variable is wrong")
	v.Terminal = v.Reason == "InvalidConfig"
	return v
}

// source judges one reason of a model's source that the engine told.
func source(reason string, terminal, outside bool, message string) func(*Evidence) *Verdict {
	return func(e *Evidence) *Verdict {
		if !e.code(10) || e.told == nil || e.told.Reason != reason {
			return nil
		}
		v := e.verdict(reason, message)
		v.Terminal, v.Outside = terminal, outside
		return v
	}
}

// fetch is a source that was not reached; the network is no one's fault here.
func fetch(e *Evidence) *Verdict {
	if !e.code(10) {
		return nil
	}
	v := e.verdict("FetchFailed", "the model could not be fetched")
	v.Outside = true
	return v
}

func weights(e *Evidence) *Verdict {
	if !e.code(11) {
		return nil
	}
	v := e.verdict("WeightsMismatch", "the model's files do not fit together")
	v.Terminal = true
	return v
}

// byCode judges an exit code of the engine's contract that a new start may heal.
func byCode(code int32, reason string, badNode bool, message string) func(*Evidence) *Verdict {
	return func(e *Evidence) *Verdict {
		if !e.code(code) {
			return nil
		}
		v := e.verdict(reason, message)
		v.BadNode = badNode
		return v
	}
}

func stopped(e *Evidence) *Verdict {
	if !e.code(0) {
		return nil
	}
	return e.verdict("Stopped", "the engine was told to stop, by a failed liveness probe or from outside; kubectl describe pod has the events")
}

func killed(e *Evidence) *Verdict {
	if e.told != nil || !e.code(137) && !e.code(143) {
		return nil
	}
	// The log does not know either, so it is not quoted.
	return &Verdict{Reason: "Killed", Message: fmt.Sprintf(
		"signal %d ended the engine: it was killed from outside, or by the kubelet after a failed liveness probe", e.end.ExitCode-128)}
}

func other(e *Evidence) *Verdict {
	if !e.ended() {
		return nil
	}
	return e.verdict("Error", "the engine left no message; kubectl logs has its last lines")
}
