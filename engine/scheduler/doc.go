// Package scheduler decides, step by step, which rows of which requests the
// next forward pass computes, and turns its tokens into each request's events.
package scheduler
