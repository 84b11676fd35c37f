package failure

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestWithFields(t *testing.T) {
	for message, want := range map[string]string{
		"--tp-size is 3: this model allows 1, 2, 4":  "--tp-size (spec.parallelism.tensor) is 3: this model allows 1, 2, 4",
		"--page-size is 8 and --page-size must be 4": "--page-size (spec.kvCache.pageSize) is 8 and --page-size must be 4",
		"--dtype: --quantization clashes":            "--dtype (spec.model.dtype): --quantization (spec.model.quantization) clashes",
		"unknown flag: --no-such-flag":               "unknown flag: --no-such-flag",
		"--model-name is no flag, nor -- or --M":     "--model-name is no flag, nor -- or --M",
		"check bucket, prefix and AWS_ENDPOINT_URL":  "check bucket, prefix and AWS_ENDPOINT_URL (spec.model.source.s3.endpoint)",
		"NCCL_ALGO_X=1, X_NCCL_ALGO=2 and HOME":      "NCCL_ALGO_X=1, X_NCCL_ALGO=2 and HOME",
		"cannot join (NCCL_DEBUG=INFO says more)":    "cannot join (NCCL_DEBUG=INFO (spec.nccl.debug) says more)",
		"--page-size=8: HF_ENDPOINT=http://a:80/.":   "--page-size=8 (spec.kvCache.pageSize): HF_ENDPOINT=http://a:80/ (spec.model.source.huggingFace.endpoint).",
		"--device= is empty; \"--dtype=f8\" is not":  "--device (spec.device)= is empty; \"--dtype=f8 (spec.model.dtype)\" is not",
		"": "",
	} {
		if got := withFields(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

// TestEndsFitTheStatus: the API server takes 1024 characters of a failure's message,
// and refuses the whole status for more. Of a long one the end is kept.
func TestEndsFitTheStatus(t *testing.T) {
	long := strings.Repeat("--tp-size and --page-size, ", 100) + "as it ends"
	for name, pod := range map[string]func(*corev1.Pod){
		"told":    exited(2, "Error", contract("InvalidConfig", long)),
		"fields":  exited(2, "Error", contract("InvalidConfig", "--dtype and --model: "+strings.Repeat("x", 960)+" as it ends")),
		"log":     exited(1, "Error", long),
		"evicted": ended("Evicted", long),
	} {
		if v := Of(newPod(pod), ""); len(v.Message) > 1024 || !strings.HasSuffix(v.Message, "as it ends") {
			t.Errorf("%s: %d bytes: %s", name, len(v.Message), v.Message)
		}
	}
}
