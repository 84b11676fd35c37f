package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// readBody is the body of a JSON request, of at most the server's limit. Without an error
// done is to be called, once, when what was made of it is no longer large.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, done func(), fail *apiError) {
	if body, fail = s.arrive(w, r); fail != nil {
		return nil, nil, fail
	}
	done, err := s.bodies.hold(body)
	switch {
	case errors.Is(err, errWork):
		return nil, nil, newError(http.StatusRequestEntityTooLarge, typeInvalid, codeBodyTooLarge, err.Error()+": send fewer")
	case err != nil:
		return nil, nil, manyBodies(err)
	}
	return body, done, nil
}

func manyBodies(err error) *apiError {
	e := newError(http.StatusTooManyRequests, typeRateLimit, codeRateLimit, err.Error()+": try again")
	e.retryAfter = 1
	return e
}

// jsonBody reports a body that says of itself that it is not plain JSON.
func jsonBody(r *http.Request) *apiError {
	if kind := r.Header.Get("Content-Type"); kind != "" {
		media, params, err := mime.ParseMediaType(kind)
		charset := strings.ToLower(params["charset"])
		if err != nil || media != "application/json" || charset != "" && charset != "utf-8" && charset != "utf8" {
			return newError(http.StatusUnsupportedMediaType, typeInvalid, "", fmt.Sprintf("Content-Type is %q: allowed is application/json, with charset=utf-8 or without a charset", shorten(kind)))
		}
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return newError(http.StatusUnsupportedMediaType, typeInvalid, "", fmt.Sprintf("Content-Encoding is %q: send the body as it is, without compression", shorten(coding)))
	}
	return nil
}

// arrive waits for the body.
func (s *Server) arrive(w http.ResponseWriter, r *http.Request) ([]byte, *apiError) {
	if fail := jsonBody(r); fail != nil {
		return nil, fail
	}
	if r.ContentLength > s.cfg.MaxBodyBytes {
		// net/http waits for the rest of a body that is small by its own measure.
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second))
		return nil, tooLarge(s.cfg.MaxBodyBytes)
	}
	arriving := s.bodies.reader(http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes))
	body, err := io.ReadAll(arriving)
	arriving.done()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(large.Limit)
	case errors.Is(err, errBodies):
		return nil, manyBodies(err)
	case err != nil:
		w.Header().Set("Connection", "close")
		return nil, s.cutOff(err, arriving.read, r.ContentLength)
	}
	// From here on a read would only end this request if it timed out.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body, nil
}

// cutOff is the answer to a body of which only some bytes came; whole is negative where
// nobody said how many there are. Errors of the connection name addresses, which are
// nothing to tell a client.
func (s *Server) cutOff(err error, came, whole int64) *apiError {
	part := bytesInWords(came)
	if whole >= 0 {
		part = fmt.Sprintf("%d of %s", came, bytesInWords(whole))
	}
	var failed net.Error
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newError(http.StatusRequestTimeout, typeInvalid, "", fmt.Sprintf("the body did not arrive within %s: %s came: send it whole, and at once", s.cfg.Timeouts.Body, part))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("", "the body did not arrive whole: the client closed its side of the connection after %s", part)
	case errors.As(err, &failed):
		return invalid("", "the body did not arrive whole: the connection failed after %s", part)
	}
	return invalid("", "the body did not arrive whole, after %s: %v", part, err)
}

// bytesInWords is a number of bytes.
func bytesInWords(n int64) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

func tooLarge(limit int64) *apiError {
	return newError(http.StatusRequestEntityTooLarge, typeInvalid, codeBodyTooLarge, "the body is larger than "+bytesInWords(limit))
}

// eachField calls set for each field of a JSON object, in order. Names are
// exact and appear once, unlike with encoding/json.
func eachField(body []byte, set func(name string, value json.RawMessage) *apiError) *apiError {
	if fail := unreadable(body); fail != nil {
		return fail
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	start, err := dec.Token()
	if err != nil {
		return syntaxError(dec, err)
	}
	if start != json.Delim('{') {
		return invalid("", "the body is not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		before := dec.InputOffset()
		key, err := dec.Token()
		if err != nil {
			return syntaxError(dec, err)
		}
		name, _ := key.(string) // the decoder takes nothing else for a key
		if fail := lone(name, body, before, dec.InputOffset()); fail != nil {
			return fail
		}
		if seen[name] {
			return invalid(shorten(name), "%q is given twice", shorten(name))
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return syntaxError(dec, err)
		}
		end := dec.InputOffset()
		if fail := lone(name, body, end-int64(len(value)), end); fail != nil {
			return fail
		}
		if err := set(name, value); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return syntaxError(dec, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("", "the body goes on after the JSON object, at byte %d", dec.InputOffset())
	}
	return nil
}

func syntaxError(dec *json.Decoder, err error) *apiError {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("", "the body is not valid JSON: it ends too early")
	}
	return invalid("", "the body is not valid JSON at byte %d: %v", dec.InputOffset(), err)
}

func isNull(value json.RawMessage) bool { return string(value) == "null" }

// The fields below take null for "not given" and then leave the target alone.

func intField(name string, value json.RawMessage, least, most int, to *int) *apiError {
	if isNull(value) {
		return nil
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || n < int64(least) || n > int64(most) {
		return invalid(name, "%s is %s: allowed is a whole number from %d to %d", name, shorten(string(value)), least, most)
	}
	*to = int(n)
	return nil
}

// floatField leaves the range to whoever uses the number.
func floatField(name string, value json.RawMessage, to *float64) *apiError {
	if isNull(value) {
		return nil
	}
	x, err := strconv.ParseFloat(string(value), 64)
	if err != nil || value[0] == '"' {
		return invalid(name, "%s is %s: allowed is a number", name, shorten(string(value)))
	}
	*to = x
	return nil
}

func boolField(name string, value json.RawMessage, to *bool) *apiError {
	switch string(value) {
	case "null":
	case "true":
		*to = true
	case "false":
		*to = false
	default:
		return invalid(name, "%s is %s: allowed is true or false", name, shorten(string(value)))
	}
	return nil
}

func stringField(name string, value json.RawMessage, to *string) *apiError {
	if isNull(value) {
		return nil
	}
	if value[0] != '"' || json.Unmarshal(value, to) != nil {
		return invalid(name, "%s is %s: allowed is a string", name, shorten(string(value)))
	}
	return nil
}

// elements are those of a JSON array, of which there may be at most most.
func elements(name string, value json.RawMessage, most int) ([]json.RawMessage, *apiError) {
	dec := json.NewDecoder(bytes.NewReader(value))
	if _, err := dec.Token(); err != nil {
		return nil, syntaxError(dec, err)
	}
	var all []json.RawMessage
	for dec.More() {
		if len(all) == most {
			return nil, invalid(name, "%s has more than %d elements, which is the most", name, most)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, syntaxError(dec, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// tokenIDs reads a JSON array of whole numbers. It goes over the text itself:
// encoding/json would read null as 0, and its general form takes many times
// the memory of the body.
func tokenIDs(name string, value json.RawMessage) ([]int32, *apiError) {
	inside := bytes.TrimSpace(value[1 : len(value)-1])
	if len(inside) == 0 {
		return []int32{}, nil
	}
	ids := make([]int32, 0, bytes.Count(inside, []byte(","))+1)
	for number := range bytes.SplitSeq(inside, []byte(",")) {
		number = bytes.TrimSpace(number)
		id, err := strconv.ParseInt(string(number), 10, 32)
		if err != nil || id < 0 {
			return nil, invalid(name, "%s[%d] is %s: a token id is a whole number from 0 to %d", name, len(ids), shorten(string(number)), math.MaxInt32)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// first is the first byte of the first element of a JSON array; ']' when it is empty.
func first(array json.RawMessage) byte { return bytes.TrimSpace(array[1:])[0] }
