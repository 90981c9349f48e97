#pragma once
#include <time.h>

#include <chrono>
#include <cstdint>

namespace mayfly::test {

/// How long a test waits for what another thread brings about. It is for what hangs, and decides
/// nothing else. Threads: one, which made it.
class Deadline {
 public:
  /// It is time that passes, of the machine; a minute unless a test knows of something that takes
  /// longer.
  explicit Deadline(std::chrono::seconds patience = std::chrono::minutes(1))
      : at(Now() + patience) {}
  bool Holds() const {
    return Now() < at;  // clock: a deadline that only a hang misses
  }
  const std::chrono::steady_clock::time_point at;

 private:
  static std::chrono::steady_clock::time_point Now() { return std::chrono::steady_clock::now(); }
};

/// The processor time of this thread in microseconds: what it has worked, which other programs do
/// not stretch.
inline int64_t ThreadMicros() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

}  // namespace mayfly::test
