package freeport

import (
	"net"
	"sync"
	"testing"
)

func TestAddressesAreFreeAndGivenOnce(t *testing.T) {
	const callers = 200
	addresses := make([]string, callers)
	var wg sync.WaitGroup
	for i := range addresses {
		wg.Go(func() { addresses[i] = Address(t) })
	}
	wg.Wait()
	given := map[string]bool{}
	for _, a := range addresses {
		if given[a] {
			t.Errorf("%s was given twice", a)
		}
		given[a] = true
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", a)
		if err != nil {
			t.Errorf("the address is not free: %v", err)
			continue
		}
		_ = l.Close()
	}
}

func TestPortsAreNotTheKernels(t *testing.T) {
	for range 50 {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if port := l.Addr().(*net.TCPAddr).Port; port >= first && port < first+count {
			t.Skipf("NOT RUN: this machine's kernel chooses ports from %d to %d too, such as %d", first, first+count-1, port)
		}
		_ = l.Close()
	}
}
