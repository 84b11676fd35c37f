package main

import (
	"io"
	"net"
	"testing"
	"time"
)

// A connection that waits to be accepted when the listener closes is accepted
// first: the kernel would reset it.
func TestClosingAListenerCutsNobody(t *testing.T) {
	l, err := listen(t.Context(), "port", "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	client, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	accepted := make(chan error, 1)
	go func() {
		time.Sleep(5 * time.Millisecond) // it waits meanwhile
		conn, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
		accepted <- err
	}()
	closeEmpty(l)
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(client); string(b) != "hello" || err != nil {
		t.Errorf("the client reads %q, %v", b, err)
	}
	if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("a new connection is taken after the close")
	}
}
