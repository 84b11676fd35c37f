package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"
)

// Certificate is a TLS certificate in files, which are read again when they
// change, so that it can be renewed without a restart. While they cannot be
// read, or do not belong together, the certificate from before stays in force.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	looked  time.Time    // when the files were looked at
	seen    [2]time.Time // their modification times then
	current *tls.Certificate
}

// lookEvery bounds how often handshakes look at the files.
const lookEvery = time.Second

// ReadCertificate reads PEM files of a certificate, with those that it needs
// above it, and of its key.
func ReadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log, looked: time.Now()}
	seen, err := c.times()
	if err != nil {
		return nil, err
	}
	return c, c.read(seen)
}

func (c *Certificate) times() (seen [2]time.Time, err error) {
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return seen, err
		}
		seen[i] = info.ModTime()
	}
	return seen, nil
}

func (c *Certificate) read(seen [2]time.Time) error {
	c.seen = seen // also of bad files: they are complained of once
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", c.certFile, c.keyFile, err)
	}
	c.current = &pair
	return nil
}

// Config is for a server that shows the certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return c.get(time.Now()), nil
	}}
}

// HTTPPublic is HTTP for the public port: it speaks TLS if there is a certificate.
func (s *Server) HTTPPublic() *http.Server {
	h := s.HTTP(s.Public())
	h.ConnState = s.connections.follow
	if s.cfg.Certificate != nil {
		h.TLSConfig = s.cfg.Certificate.Config()
	}
	return h
}

func (c *Certificate) get(now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.looked) < lookEvery {
		return c.current
	}
	c.looked = now
	seen, err := c.times()
	if err == nil && seen == c.seen {
		return c.current
	}
	if err == nil {
		err = c.read(seen)
	}
	if err != nil {
		c.log.Error("TLS certificate not read again: the one from before stays in force", "error", err)
	} else {
		c.log.Info("TLS certificate read again", "not_after", c.current.Leaf.NotAfter)
	}
	return c.current
}
