package seed

import "testing"

func TestNumbers(t *testing.T) {
	t.Setenv(Variable, "18446744073709551615")
	if seed := Of(t); seed != 1<<64-1 {
		t.Errorf("the seed is %d", seed)
	}
	if a, b := Numbers(t).Uint64(), Numbers(t).Uint64(); a != b {
		t.Errorf("%d and %d from one seed", a, b)
	}
	t.Setenv(Variable, "")
	if a, b := Of(t), Of(t); a == b {
		t.Errorf("%d twice from no seed", a)
	}
}
