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

// Formats that a Config may name. An engine converts nothing but the KV cache, to
// float8: naming one makes sure of it, and a start with another one ends.
var (
	DTypes        = []string{FormatAuto, "bfloat16", "float32"}
	KVCacheDTypes = []string{FormatAuto, "bfloat16", "float32", "fp8", formatFloat8}
	Quantizations = []string{FormatAuto, "none", "compressed-tensors", "fp8"}
)

// halves are names of float16 elsewhere. Nothing is computed in it, but files may be of it.
var halves = []string{"float16", "half", "fp16"}

// formatFloat8 is float8 with 4 bits of exponent and 3 of fraction, the only one.
const formatFloat8 = "fp8_e4m3"

// validateFormats reports a name that is none.
func (c Config) validateFormats() error {
	for _, v := range []struct {
		flag, value string
		allowed     []string
	}{{"dtype", c.DType, DTypes}, {"quantization", c.Quantization, Quantizations}, {"kv-cache-dtype", c.KVCacheDType, KVCacheDTypes}} {
		if !slices.Contains(v.allowed, cmp.Or(v.value, FormatAuto)) {
			hint := ""
			if v.flag == "dtype" && slices.Contains(halves, v.value) {
				hint = ": weights of float16 are read as they are under auto"
			}
			return fault.Errorf(fault.InvalidConfig, "--%s is %q: allowed are %s%s", v.flag, v.value, strings.Join(v.allowed, ", "), hint)
		}
	}
	return nil
}

// format is the number format of activations, and of the KV cache unless it is float8.
func (b backend) format() string {
	if b.element == 2 {
		return "bfloat16"
	}
	return "float32"
}

// cacheFormat is the number format of the KV cache.
func (b backend) cacheFormat() string {
	if b.float8 {
		return formatFloat8
	}
	return b.format()
}

// cacheElement is the size of a number in the KV cache, bytes.
func (b backend) cacheElement() int64 {
	if b.float8 {
		return 1
	}
	return b.element
}

// checkFormats refuses formats that the device or the files, whose quantization
// is q, do not have, and decides on the KV cache's: float8 if asked for, or if the
// files are made for it.
func (e *Engine) checkFormats(q *model.Quantization) error {
	has := e.backend.format()
	refuse := func(flag, want, others string) error {
		return fault.Errorf(fault.InvalidConfig, "--%s is %q, and this device has %s: leave it out, or give auto or %s%s", flag, want, has, has, others)
	}
	if want := cmp.Or(e.cfg.DType, FormatAuto); want != FormatAuto && want != has {
		return refuse("dtype", want, "")
	}
	switch want := cmp.Or(e.cfg.KVCacheDType, FormatAuto); want {
	case "fp8", formatFloat8:
		e.backend.float8 = true
	case FormatAuto:
		e.backend.float8 = q != nil && q.Float8Cache
	case has:
	default:
		return refuse("kv-cache-dtype", want, ", or fp8")
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
