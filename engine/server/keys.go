package server

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/telemetry"
)

// maxKeyFile is the largest file of API keys, in bytes.
const maxKeyFile = 1 << 20

// Keys are the API keys that clients may show. The file is read again when it
// changes, so that keys can be replaced without a restart; while it cannot be
// read, the keys that it had stay in force.
type Keys struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	seen    time.Time // modification time and size of the file when last read
	size    int64
	digests [][sha256.Size]byte
}

// ReadKeys reads a file with one key in a line; empty lines and those that
// begin with "#" are left out. There must be a key.
func ReadKeys(path string, log *slog.Logger) (*Keys, error) {
	k := &Keys{path: path, log: log}
	info, err := os.Stat(path)
	if err == nil {
		err = k.read(info)
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// read takes the keys of the file, all or none.
func (k *Keys) read(info os.FileInfo) error {
	k.seen, k.size = info.ModTime(), info.Size() // also of a bad file: it is complained of once
	if info.Size() > maxKeyFile {
		return fmt.Errorf("%s has %d bytes: allowed are %d", k.path, info.Size(), maxKeyFile)
	}
	text, err := os.ReadFile(k.path)
	if err != nil {
		return err
	}
	var digests [][sha256.Size]byte
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			digests = append(digests, sha256.Sum256(line))
		}
	}
	if len(digests) == 0 {
		return fmt.Errorf("%s holds no key: write one in a line", k.path)
	}
	k.digests = digests
	return nil
}

// allow tells whether key is one of the keys. Its time does not depend on how
// much of a key is right.
func (k *Keys) allow(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.path)
	if err == nil && (!info.ModTime().Equal(k.seen) || info.Size() != k.size) {
		if err = k.read(info); err == nil {
			k.log.Info("API keys read again", "keys", len(k.digests))
		} else {
			k.log.Error("API keys not read again: the ones from before stay in force", "error", err)
		}
	}
	digest := sha256.Sum256([]byte(key))
	found := 0
	for i := range k.digests {
		found |= subtle.ConstantTimeCompare(digest[:], k.digests[i][:])
	}
	return found == 1
}

// authorizeAdmin lets a request to the admin port through that shows a token, as
// a bearer or as the password of basic authentication, which browsers ask for.
func (s *Server) authorizeAdmin(h http.HandlerFunc) http.HandlerFunc {
	if s.cfg.AdminTokens == nil {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if _, password, ok := r.BasicAuth(); ok {
			scheme, token = "Bearer", password
		}
		if strings.EqualFold(scheme, "Bearer") && s.cfg.AdminTokens.allow(strings.TrimSpace(token)) {
			h(w, r)
			return
		}
		w.Header().Add("WWW-Authenticate", "Bearer")
		w.Header().Add("WWW-Authenticate", `Basic realm="admin token as the password"`)
		newError(http.StatusUnauthorized, typeInvalid, codeInvalidKey,
			"the admin token is missing or wrong: send the header Authorization: Bearer TOKEN, with one of --admin-token-file").write(w)
	}
}

// authorize lets a request through that shows a key, if keys are asked for.
func (s *Server) authorize(h http.HandlerFunc) http.HandlerFunc {
	if s.cfg.Keys == nil {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) {
		scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		var why error
		switch {
		case !strings.EqualFold(scheme, "Bearer"):
			why = errors.New("no API key: send the header Authorization: Bearer KEY")
		case !s.cfg.Keys.allow(strings.TrimSpace(key)):
			why = errors.New("the API key is wrong")
		default:
			h(w, r)
			return
		}
		if r.Method == http.MethodPost { // a request for the model
			s.cfg.Metrics.Outcome(telemetry.OutcomeRejected).Inc()
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		newError(http.StatusUnauthorized, typeInvalid, codeInvalidKey, why.Error()).write(w)
	}
}
