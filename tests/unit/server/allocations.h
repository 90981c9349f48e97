#pragma once
#include <cstddef>

namespace mayfly::test {

/// How often this thread has asked for memory; of this program's operator new.
size_t Allocations();

/// While it lives, this thread is refused all memory.
class NoMemory {
 public:
  NoMemory();
  ~NoMemory();
  NoMemory(const NoMemory&) = delete;
};

}  // namespace mayfly::test
