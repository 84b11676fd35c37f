package failure

import "testing"

func TestWithFields(t *testing.T) {
	for message, want := range map[string]string{
		"--tp-size is 3: this model allows 1 2 4":    "--tp-size (spec.parallelism.tensor) is 3: this model allows 1 2 4",
		"--page-size is 8 and --page-size must be 4": "--page-size (spec.kvCache.pageSize) is 8 and --page-size must be 4",
		"--dtype: --quantization clashes":            "--dtype (spec.model.dtype): --quantization (spec.model.quantization) clashes",
		"unknown flag: --no-such-flag":               "unknown flag: --no-such-flag",
		"--model-name is no flag, nor -- or --M":     "--model-name is no flag, nor -- or --M",
		"check bucket, prefix and AWS_ENDPOINT_URL":  "check bucket, prefix and AWS_ENDPOINT_URL (spec.model.source.s3.endpoint)",
		"NCCL_ALGO_X=1, X_NCCL_ALGO=2 and HOME":      "NCCL_ALGO_X=1, X_NCCL_ALGO=2 and HOME",
		"":                                           "",
	} {
		if got := withFields(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}
