package fetch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

const maxRedirects = 10

// newTransport keeps to HTTP/1.1, since files over one HTTP/2 connection would
// share its flow window, and to bytes as they are, since ranges count those.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   parallel,
		DisableCompression:    true,
	}
}

// newClient follows redirects, and takes the credentials along to nobody but
// the host that they are for.
func newClient() *http.Client {
	return &http.Client{Transport: newTransport(), CheckRedirect: func(req *http.Request, via []*http.Request) error {
		first := via[0].URL
		switch {
		case len(via) > maxRedirects:
			return fault.Errorf(fault.FetchFailed, "the source redirects more than %d times", maxRedirects)
		case req.URL.Scheme != "https" && (first.Scheme == "https" || req.URL.Scheme != "http"):
			return fault.Errorf(fault.FetchFailed, "the source redirects from %s to %s: only https is followed from there", first.Host, req.URL.Scheme+"://"+req.URL.Host)
		case req.URL.Host != first.Host || req.URL.Scheme != first.Scheme:
			req.Header.Del("Authorization")
		}
		return nil
	}}
}

// quiet takes the address out of a client's error: a signed one is a secret.
func quiet(err error) error {
	var u *url.Error
	if !errors.As(err, &u) {
		return err
	}
	host := "the source"
	if at, parseErr := url.Parse(u.URL); parseErr == nil && at.Host != "" {
		host = at.Host
	}
	return fmt.Errorf("%s: %w", host, u.Err)
}

// statusError is what an answer other than success means. own tells that the
// source itself gave it, and not a store that it redirects to, whose addresses
// are valid for a while only.
func statusError(resp *http.Response, own bool, advice func(status int) error) error {
	err := fmt.Errorf("%s answers %s", resp.Request.URL.Host, resp.Status)
	switch code := resp.StatusCode; code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		if own {
			return advice(code)
		}
		return err
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if s, parseErr := strconv.Atoi(resp.Header.Get("Retry-After")); parseErr == nil && s > 0 {
			return laterError{err, time.Duration(min(s, 3600)) * time.Second}
		}
		return err
	case http.StatusRequestedRangeNotSatisfiable:
		return errRange
	case http.StatusRequestTimeout:
		return err
	default:
		if code >= http.StatusInternalServerError {
			return err
		}
		return &fault.Error{Reason: fault.FetchFailed, Err: err}
	}
}

// errRange is a source that has less of a file than was asked for.
var errRange = errors.New("the source has no such range of the file")

// rangeStart is where the body of an answer to a request for a range begins. A
// source that knows no ranges answers with the whole.
func rangeStart(resp *http.Response, f file) (int64, error) {
	if resp.StatusCode == http.StatusOK {
		if n := resp.ContentLength; n >= 0 && n != f.size {
			return 0, fmt.Errorf("the source sends %d bytes of a file that it lists with %d", n, f.size)
		}
		return 0, nil
	}
	text := resp.Header.Get("Content-Range")
	span, total, ok := strings.Cut(strings.TrimPrefix(text, "bytes "), "/")
	first, _, ok2 := strings.Cut(span, "-")
	start, err := strconv.ParseInt(first, 10, 64)
	if !ok || !ok2 || err != nil || start < 0 {
		return 0, fmt.Errorf("the source answers with Content-Range %.80q: it must be bytes FIRST-LAST/TOTAL", text)
	}
	if n, err := strconv.ParseInt(total, 10, 64); total != "*" && (err != nil || n != f.size) {
		return 0, fmt.Errorf("the source has %.20s bytes of a file that it lists with %d", total, f.size)
	}
	return start, nil
}

// drop ends an answer that is not read.
func drop(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 4096) // so that the connection can be used again
	_ = body.Close()
}
