// What the libraries of the emulation share. Device memory is memory of the process:
// a device pointer is a host pointer, on every device. Work of a stream runs on a
// thread of its own, in the stream's order.
#pragma once
#include <cstddef>

extern "C" {

// outrider_emulation_enqueue has a stream call run(arg) when all its earlier work has
// ended, on the stream's thread, and then drop(arg). While the stream is captured the
// call becomes a part of the graph instead: run is called at each launch of it, as
// often as there are launches, and drop when the last thing goes that has it. drop may
// be null. run may block until other streams, or a call of the host, let it go on.
// Its result is a CUresult: 0, or 201 or 400 for a stream that is none.
int outrider_emulation_enqueue(void *stream, void (*run)(void *), void (*drop)(void *), void *arg);

// outrider_emulation_fail ends a device as a fault of its work does: from then on every
// call for it that waits returns code, a CUresult. The text goes to standard error.
int outrider_emulation_fail(void *stream, int code, const char *text);

// outrider_emulation_memory says how many bytes a device has, and how many are free.
// Its result is a CUresult: 101 if there is no such device.
int outrider_emulation_memory(int device, size_t *free, size_t *total);

// outrider_emulation_devices is how many there are: OUTRIDER_EMULATION_DEVICES, or 1.
int outrider_emulation_devices(void);
}
