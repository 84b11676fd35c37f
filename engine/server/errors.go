package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// Values of an error's type and code, as OpenAI's clients know them.
const (
	typeInvalid     = "invalid_request_error"
	typeRateLimit   = "rate_limit_error"
	typeServer      = "server_error"
	typeUnavailable = "service_unavailable_error"

	codeInvalidKey    = "invalid_api_key"
	codeModelNotFound = "model_not_found"
	codeContextLength = "context_length_exceeded"
	codeRateLimit     = "rate_limit_exceeded"
	codeBodyTooLarge  = "request_too_large"
	codeUnavailable   = "service_unavailable"
)

// apiError is an answer in the shape of OpenAI's errors.
type apiError struct {
	status     int
	retryAfter int // seconds; 0: no such header

	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func newError(status int, kind, code, message string) *apiError {
	e := &apiError{status: status, Message: message, Type: kind}
	if code != "" {
		e.Code = &code
	}
	return e
}

// invalid is a 400 about a parameter; param may be empty.
func invalid(param, format string, args ...any) *apiError {
	e := newError(http.StatusBadRequest, typeInvalid, "", fmt.Sprintf(format, args...))
	if param != "" {
		e.Param = &param
	}
	return e
}

// errLeft is the answer to a client that is gone before it: one that has closed only its
// own side of the connection, which looks the same, still reads it.
func errLeft() *apiError {
	return invalid("", "the connection was closed by the client before the answer: keep both sides of it open until the answer has come")
}

// unavailable is a 503 that says why and when to try again.
func unavailable(err error) *apiError {
	e := newError(http.StatusServiceUnavailable, typeUnavailable, codeUnavailable, err.Error())
	e.retryAfter = 5
	if errors.Is(err, scheduler.ErrDraining) {
		e.retryAfter = 1 // another replica can answer at once
	}
	return e
}

// submitError is the answer to an error of Backend.Submit.
func submitError(err error) *apiError {
	var wrong *scheduler.InvalidRequestError
	switch {
	case errors.As(err, &wrong):
		return invalid(wrong.Param, "%s", wrong.Message)
	case errors.Is(err, scheduler.ErrQueueFull):
		e := newError(http.StatusTooManyRequests, typeRateLimit, codeRateLimit, err.Error())
		e.retryAfter = 1
		return e
	}
	return unavailable(err)
}

// body is the JSON of the error, as it stands in answers and in streams.
func (e *apiError) body() any {
	return struct {
		Error *apiError `json:"error"`
	}{e}
}

func (e *apiError) write(w http.ResponseWriter) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	writeJSON(w, e.status, e.body())
}

// writeJSON answers with v. A client that is gone or does not read is no
// concern of the caller.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
