// Package freeport finds TCP ports for programs that tests and benchmarks start.
//
// To listen on port 0, close, and hand the number on is a race: the kernel gives
// such ports to every other listener and connection, of this program too, and may
// give the one that was just closed.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports lie below those that kernels choose from by themselves (32768 up on
// Linux, 49152 up elsewhere) and below Kubernetes' node ports (30000 up).
const first, count = 20000, 10000

// Take returns an address of this machine, "127.0.0.1:PORT", that nobody listens
// on and that no other caller is given, in any process, until release is called.
func Take(ctx context.Context) (address string, release func(), err error) {
	var errs []error
	for range 100 {
		address = fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(count))
		// The UDP port of the same number is the claim; TCP stays free for the program.
		claim, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			errs = append(errs, err)
			_ = claim.Close()
			continue
		}
		_ = l.Close()
		return address, func() { _ = claim.Close() }, nil
	}
	return "", nil, fmt.Errorf("no free TCP port of 100 tried from %d to %d: %w", first, first+count-1, errors.Join(errs...))
}

// A Test is what Address needs of a *testing.T.
type Test interface {
	Helper()
	Context() context.Context
	Fatal(args ...any)
	Cleanup(f func())
}

// Address is Take for a test, until its end.
func Address(t Test) string {
	t.Helper()
	address, release, err := Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return address
}
