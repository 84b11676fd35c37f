package dl

import "unsafe"

// goString copies the C string at p; an address of C's memory, which Go's
// collector does not know, is turned into a pointer by its own bits.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	base := *(**byte)(unsafe.Pointer(&p))
	n := 0
	for n < 4096 && *(*byte)(unsafe.Add(unsafe.Pointer(base), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(base, n))
}
