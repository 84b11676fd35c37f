//go:build e2e

package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// certificate makes a certificate of a name, signed by itself, and its key.
func certificate(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// TestHTTPS: with a certificate the API is served over https only, and the
// operator's deep probe still gets its tokens.
func TestHTTPS(t *testing.T) {
	e := begin(t)
	name := "s." + e.namespace + ".svc"
	cert, key := certificate(t, name)
	if err := k8s.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "cert"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}); err != nil {
		t.Fatal(err)
	}
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Security = &v1alpha1.SecuritySpec{TLSSecretName: "cert"}
	})
	if s := e.ready(); !strings.Contains(s.Status.Message, "https://"+name) {
		t.Errorf("message %q", s.Status.Message)
	}
	if c := condition(e.pod(0), v1alpha1.ModelVerified); c == nil || c.Status != corev1.ConditionTrue {
		t.Errorf("the deep probe: %+v", c)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	secure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}}}
	plain := e.address()
	address := strings.Replace(plain, "http://", "https://", 1)
	g := e.goldens()[0]
	c, err := completeWith(t.Context(), secure, address, g.Text, len(g.OutputIDs))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Choices[0].TokenIDs, g.OutputIDs) {
		t.Errorf("over https %v, want %v", c.Choices[0].TokenIDs, g.OutputIDs)
	}
	if _, err := complete(t.Context(), plain, g.Text, 1); err == nil {
		t.Error("the API answers over plain http too")
	}
	if _, err := complete(t.Context(), address, g.Text, 1); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a client that does not know the certificate: %v", err)
	}
	if text, err := e.admin(e.pod(0), "/metrics"); err != nil || !bytes.Contains([]byte(text), []byte("outrider_requests_total")) {
		t.Errorf("scrapes of the admin port: %v", err)
	}
}
