package failure

import "time"

// Limits of the operator's patience.
const (
	// BackoffFirst is the wait after the first crash; each further one in a row doubles it, up to BackoffMax.
	BackoffFirst = 5 * time.Second
	BackoffMax   = 5 * time.Minute
	// StableAfter is how long a pod must have been verified for its crash to count as the first of a row.
	StableAfter = 10 * time.Minute
)

// Backoff is the wait after the n-th crash in a row, from 1.
func Backoff(n int32) time.Duration {
	d := BackoffFirst
	for ; n > 1 && d < BackoffMax; n-- {
		d *= 2
	}
	return min(d, BackoffMax)
}

// Exhausted says that the n-th crash in a row is the last: the budget is spent,
// and the crash is not from outside. A budget of 0 has no end.
func Exhausted(v *Verdict, n, budget int32) bool {
	return budget > 0 && n >= budget && !v.Outside
}
