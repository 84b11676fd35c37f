// Package fault names the causes that end an engine process and the exit code
// and termination message each of them has, so that an operator can tell a
// wrong flag from a lost GPU without reading a log.
package fault

import (
	"encoding/json"
	"errors"
	"fmt"
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
