#pragma once
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <source_location>
#include <string>

namespace mayfly::test {

/// The processor time of this thread in microseconds: what it has worked, which other programs do
/// not stretch.
inline int64_t ThreadMicros() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

/// How many times longer than an ordinary machine this one takes now, from 1 to 50: by a piece of
/// work that takes 60 ms there, or by what has measured it before and says so in MAYFLY_SLOWNESS
/// (tests/golden/waits.py); five times as much with a sanitizer.
inline double Slowness() {
  static const double slowness = [] {
    double out = 1;
    if (const char* given = std::getenv("MAYFLY_SLOWNESS"); given != nullptr) {
      out = std::atof(given);
    } else {
      const auto began = std::chrono::steady_clock::now();
      volatile uint64_t mixed = 1;
      for (int i = 0; i < 25'000'000; ++i) mixed = mixed * 6364136223846793005u + 1;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      out = took.count() / 0.06;
    }
    return std::clamp(out, 1.0, 10.0) * (kSanitized ? 5 : 1);
  }();
  return slowness;
}

/// How long a test waits for what another thread brings about. It is for what hangs, and decides
/// nothing else. Threads: one, which made it.
class Deadline {
 public:
  /// It is time that passes, of the machine, as often as that is slow (Slowness); a minute unless a
  /// test knows of something that takes longer. `waits`: the line that says for what; whoever waits
  /// for others hands theirs on.
  explicit Deadline(std::chrono::seconds patience = std::chrono::minutes(1),
                    std::source_location waits = std::source_location::current())
      : at(Now() + Scaled(patience)), patience_(Scaled(patience)), waits_(waits) {}
  bool Holds() const {
    return Now() < at;  // clock: a deadline that only a hang misses
  }
  /// What to say when it holds no more: how long was waited, and the line that says for what.
  std::string InVain() const {
    std::string line;
    std::ifstream source(waits_.file_name());
    for (uint32_t i = 0; i < waits_.line() && std::getline(source, line);) ++i;
    if (!source) line = waits_.function_name();  // the sources are elsewhere
    line.erase(0, line.find_first_not_of(' '));
    return "waited " + std::to_string(patience_.count()) + " s in vain: " + waits_.file_name() +
           ":" + std::to_string(waits_.line()) + ": " + line;
  }

  const std::chrono::steady_clock::time_point at;

 private:
  static std::chrono::steady_clock::time_point Now() { return std::chrono::steady_clock::now(); }
  static std::chrono::seconds Scaled(std::chrono::duration<double> patience) {
    return std::chrono::ceil<std::chrono::seconds>(patience * Slowness());
  }
  const std::chrono::seconds patience_;
  const std::source_location waits_;
};

}  // namespace mayfly::test
