// What the emulation's compiler makes instead of machine code for a GPU: a head, and a
// shared object.
#pragma once
#include <cstdint>

namespace emulated {
constexpr char IMAGE[9] = "emulated";
struct Image {
    char magic[8];
    uint64_t size; // of the shared object, which follows
};
} // namespace emulated
