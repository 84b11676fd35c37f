// Package fault names the causes that end an engine process and the exit code
// and termination message each of them has, so that an operator can tell a
// wrong flag from a lost GPU without reading a log.
package fault

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Reason is the machine-readable cause of a process's end. The values are part
// of the contract with the operator: they appear in the termination message.
type Reason string

// The reasons, grouped by exit code.
const (
	InvalidConfig Reason = "InvalidConfig" // 2: flags or configuration

	ModelNotFound Reason = "ModelNotFound" // 10: the model's source
	Unauthorized  Reason = "Unauthorized"
	FetchFailed   Reason = "FetchFailed"
	NoSpace       Reason = "NoSpace"

	WeightsMismatch Reason = "WeightsMismatch" // 11: the model's files
	DraftMismatch   Reason = "DraftMismatch"
	Unsupported     Reason = "Unsupported"

	OutOfMemory Reason = "OutOfMemory" // 12

	DeviceFault   Reason = "DeviceFault" // 13
	DeviceMissing Reason = "DeviceMissing"

	CollectiveFailed Reason = "CollectiveFailed" // 14

	Stalled Reason = "Stalled" // 15

	Internal Reason = "Internal" // 1: anything else
)

var exitCodes = map[Reason]int{
	InvalidConfig: 2,
	ModelNotFound: 10, Unauthorized: 10, FetchFailed: 10, NoSpace: 10,
	WeightsMismatch: 11, DraftMismatch: 11, Unsupported: 11,
	OutOfMemory: 12,
	DeviceFault: 13, DeviceMissing: 13,
	CollectiveFailed: 14,
	Stalled:          15,
	Internal:         1,
}

// meanings say in a few words what ended a process.
var meanings = map[Reason]string{
	Internal:         "anything else",
	InvalidConfig:    "flags, environment, or a port that cannot be opened",
	ModelNotFound:    "the source has no such model",
	Unauthorized:     "the source refuses the credentials, or asks for some",
	FetchFailed:      "the source does not answer, or not with what its checksums say",
	NoSpace:          "no room for what is downloaded",
	WeightsMismatch:  "the model's files do not fit one another or are damaged",
	DraftMismatch:    "the draft's files, or they do not fit the model",
	Unsupported:      "an architecture or a format that this engine does not know",
	OutOfMemory:      "weights or KV cache do not fit into the memory",
	DeviceFault:      "a device failed",
	DeviceMissing:    "there is no device, or a library of it is missing",
	CollectiveFailed: "the ranks lost each other; the message's rank is the one at fault",
	Stalled:          "no step finished for --stall-timeout",
}

// Meaning says in a few words what ended a process with this reason.
func (r Reason) Meaning() string { return meanings[r] }

// Reasons are all there are, by exit code and name.
func Reasons() []Reason {
	return slices.SortedFunc(maps.Keys(exitCodes), func(a, b Reason) int {
		return cmp.Or(cmp.Compare(a.ExitCode(), b.ExitCode()), cmp.Compare(a, b))
	})
}

// ExitCode is the process exit code of a reason; 1 for one that is not listed.
func (r Reason) ExitCode() int {
	if c, ok := exitCodes[r]; ok {
		return c
	}
	return 1
}

// Error is an error with its reason and the rank that met it.
type Error struct {
	Reason Reason
	Rank   int   // rank that met the fault; 0 when it concerns all of them
	Err    error // what went wrong, where, and what is allowed
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error of rank 0; format and args are fmt.Errorf's.
func Errorf(r Reason, format string, args ...any) error {
	return &Error{Reason: r, Err: fmt.Errorf(format, args...)}
}

// OnRank attributes err to a rank, keeping its reason (Internal if it has none).
func OnRank(rank int, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Reason: ReasonOf(err), Rank: rank, Err: err}
}

// ReasonOf is the reason carried by err, or Internal.
func ReasonOf(err error) Reason {
	var f *Error
	if errors.As(err, &f) {
		return f.Reason
	}
	return Internal
}

// Message is the JSON line that goes to the termination log.
func Message(err error) []byte {
	m := struct {
		Reason  Reason `json:"reason"`
		Message string `json:"message"`
		Rank    int    `json:"rank"`
	}{Reason: ReasonOf(err), Message: err.Error()}
	var f *Error
	if errors.As(err, &f) {
		m.Rank = f.Rank
	}
	b, _ := json.Marshal(m) // strings and ints always encode
	return append(b, '\n')
}
