package engine

import (
	"cmp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/model"
)

// FormatAuto is the number format or quantization that there is.
const FormatAuto = "auto"

// Formats that a Config may name. An engine converts nothing: naming one makes
// sure of it, and a start with another one ends.
var (
	DTypes        = []string{FormatAuto, "bfloat16", "float32"}
	Quantizations = []string{FormatAuto, "none", "compressed-tensors", "fp8"}
)

// validateFormats reports a name that is none.
func (c Config) validateFormats() error {
	for _, v := range []struct {
		flag, value string
		allowed     []string
	}{{"dtype", c.DType, DTypes}, {"quantization", c.Quantization, Quantizations}, {"kv-cache-dtype", c.KVCacheDType, DTypes}} {
		if !slices.Contains(v.allowed, cmp.Or(v.value, FormatAuto)) {
			return fault.Errorf(fault.InvalidConfig, "--%s is %q: allowed are %s", v.flag, v.value, strings.Join(v.allowed, ", "))
		}
	}
	return nil
}

// format is the number format of activations and of the KV cache.
func (b backend) format() string {
	if b.element == 2 {
		return "bfloat16"
	}
	return "float32"
}

// checkFormats refuses formats that the device or the files, whose quantization
// is q, do not have.
func (e *Engine) checkFormats(q *model.Quantization) error {
	has := e.backend.format()
	for _, v := range []struct{ flag, want string }{{"dtype", e.cfg.DType}, {"kv-cache-dtype", e.cfg.KVCacheDType}} {
		if want := cmp.Or(v.want, FormatAuto); want != FormatAuto && want != has {
			return fault.Errorf(fault.InvalidConfig, "--%s is %q, and this device has %s: leave it out, or give auto or %s", v.flag, want, has, has)
		}
	}
	method := "none"
	if q != nil {
		method = q.Method
	}
	if want := cmp.Or(e.cfg.Quantization, FormatAuto); want != FormatAuto && want != method {
		return fault.Errorf(fault.InvalidConfig, "--quantization is %q, and the files of %s are of %q, which is not converted: give auto, or a model that has been quantized that way", want, e.cfg.Model, method)
	}
	return nil
}
