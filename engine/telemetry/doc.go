// Package telemetry is what an engine says of itself while it runs: how far its
// start is, when each rank moved last, its facts, and its metrics.
package telemetry
