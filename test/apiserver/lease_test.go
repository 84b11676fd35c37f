//go:build apiserver

package apiserver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestLeaseReleased: an operator that is told to stop gives its lease back before
// it ends, so that the next one leads without waiting for the lease to run out.
func TestLeaseReleased(t *testing.T) {
	p := begin(t)
	dir := t.TempDir()
	program, config := filepath.Join(dir, "outrider"), filepath.Join(dir, "kubeconfig")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/outrider").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(config, kubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() (*exec.Cmd, *bytes.Buffer) {
		cmd, log := exec.CommandContext(t.Context(), program, "--leader-elect", "--leader-election-namespace="+p.namespace,
			"--watch-namespaces="+p.namespace, "--metrics-bind-address=0", "--health-probe-bind-address=0"), &bytes.Buffer{}
		cmd.Env, cmd.Stderr = append(os.Environ(), "KUBECONFIG="+config), log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, log
	}
	stop := func(cmd *exec.Cmd, log *bytes.Buffer) {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the operator ended with %v: %s", err, log)
		}
	}
	holder := func() (string, error) {
		var lease coordinationv1.Lease
		err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "outrider.inference.outrider.dev"}, &lease)
		if err != nil || lease.Spec.HolderIdentity == nil {
			return "", err
		}
		return *lease.Spec.HolderIdentity, nil
	}
	first, log := start()
	leader := ""
	p.eventually("a leader", func() (problem string) {
		var err error
		if leader, err = holder(); err != nil || leader == "" {
			return fmt.Sprintf("none, %v", err)
		}
		return ""
	})
	second, log2 := start()
	stop(first, log)
	if now, err := holder(); err != nil || now == leader {
		t.Errorf("the lease is %q's, which has ended, %v", now, err)
	}
	p.eventually("another leader", func() string {
		if now, err := holder(); err != nil || now == "" || now == leader {
			return fmt.Sprintf("it is %q, %v", now, err)
		}
		return ""
	})
	stop(second, log2)
	if now, err := holder(); err != nil || now != "" {
		t.Errorf("after both have ended the lease is %q's, %v", now, err)
	}
}
