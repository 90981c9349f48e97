#pragma once
#include <cstddef>

namespace mayfly::test {

/// How often this thread has asked for memory; of this program's operator new.
size_t Allocations();

}  // namespace mayfly::test
