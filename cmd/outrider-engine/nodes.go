package main

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/outrider-dev/outrider/engine"
)

const (
	// nodesPort is where node 0 listens for the others in a LeaderWorkerSet.
	nodesPort = "8002"
	// maxSecret is the longest secret of a group, in bytes.
	maxSecret = 4096
	// setWait is how long a process of a LeaderWorkerSet whose group has been stopped waits for its own pod's end.
	setWait = 5 * time.Minute
)

// readNodes takes this process's place among others from the flags, or from what
// a LeaderWorkerSet tells its pods, and reads --dist-secret-file.
func (o *options) readNodes(getenv func(string) string) error {
	c := &o.engine
	given := o.flags.Changed("nnodes") || o.flags.Changed("node-rank") || o.flags.Changed("dist-init-addr")
	if leader := getenv("LWS_LEADER_ADDRESS"); leader != "" && !given {
		for _, v := range []struct {
			name  string
			into  *int
			least int
			most  int
		}{{"LWS_GROUP_SIZE", &c.Nodes, 1, engine.MaxNodes}, {"LWS_WORKER_INDEX", &c.Node, 0, engine.MaxNodes - 1}} {
			n, err := strconv.Atoi(getenv(v.name))
			if err != nil || n < v.least || n > v.most {
				return invalid("%s is %q beside LWS_LEADER_ADDRESS: allowed is %d to %d: give --nnodes, --node-rank and --dist-init-addr where no LeaderWorkerSet sets it", v.name, getenv(v.name), v.least, v.most)
			}
			*v.into = n
		}
		c.Leader = net.JoinHostPort(leader, nodesPort)
		o.inSet = true
	}
	if c.Leader != "" {
		if _, port, err := net.SplitHostPort(c.Leader); err != nil || !isPort(port) {
			return invalid("--dist-init-addr is %q: allowed is HOST:PORT", c.Leader)
		}
	}
	if o.distSecretFile == "" {
		return nil
	}
	b, err := os.ReadFile(o.distSecretFile)
	if err != nil {
		return invalid("--dist-secret-file: %w", err)
	}
	if c.GroupSecret = bytes.TrimSpace(b); len(c.GroupSecret) < 8 || len(c.GroupSecret) > maxSecret {
		return invalid("--dist-secret-file: %s has %d bytes: allowed is a secret of 8 to %d bytes", o.distSecretFile, len(c.GroupSecret), maxSecret)
	}
	return nil
}

func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n > 0 && n <= 65535
}

// awaitOwnEnd holds a process of a LeaderWorkerSet whose group was stopped, and has
// not failed, until its own pod is told to stop, as all of the group's are: if it
// ended now, its container would start again and join the group that comes next,
// only to be taken from it.
func (o *options) awaitOwnEnd(signalled <-chan struct{}, log *slog.Logger) {
	if !o.inSet || o.engine.Nodes < 2 {
		return
	}
	log.Info("the group has been stopped: waits for the end of its own pod", "at_most", setWait)
	select {
	case <-signalled:
	case <-time.After(setWait):
	}
}
