#pragma once
#include <string>

namespace emulated {

// rewrite makes C++ of a preprocessed source: a variable of shared memory becomes a
// reference to the block's, and a table of all kernels is put at the end. Lines stay
// where they are. What it cannot read ends as an exception whose text begins with the
// line.
std::string rewrite(const std::string &source);
} // namespace emulated
