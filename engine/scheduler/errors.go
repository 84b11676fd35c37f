package scheduler

import "errors"

// What Submit answers when a request cannot be taken at all.
var (
	// ErrNotReady: the model is not loaded and warmed yet; try again later.
	ErrNotReady = errors.New("the model is still loading: try again when /readyz answers 200")
	// ErrDraining: the engine finishes what it has and takes nothing new.
	ErrDraining = errors.New("the server is draining and takes no new requests: try another replica")
	// ErrQueueFull: more requests wait than --max-queued-requests allows.
	ErrQueueFull = errors.New("too many requests are waiting: try again later")
)

// InvalidRequestError says which parameter of a request is wrong and what is allowed.
type InvalidRequestError struct {
	Param   string // name in the API, such as "prompt" or "max_tokens"
	Message string
}

func (e *InvalidRequestError) Error() string { return e.Message }
