#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "protocol/error.h"

namespace mayfly {

/// The memory of large values, documents and buffers in use, over the whole process. Each operator
/// and stage has its own limit, but a request may have a thousand of them, and there may be a
/// thousand requests. This limit on the sum keeps the process alive. Small values are not counted.
/// Threads: any.
namespace large_memory {

inline constexpr size_t kLarge = size_t{1} << 20;  ///< bytes from which on something counts

/// The most bytes there may be; set once at start, before that 1 GiB.
void SetLimit(int64_t bytes);
int64_t Limit();
int64_t Used();
/// True when the limit is exceeded: large work must not continue.
bool Full();
/// ExceededMemoryLimit 146.
Error TooMuch();

/// Checks a result of `bytes` bytes that was just made: an error when it is large and there is no
/// room for it.
inline Result<void> Check(size_t bytes) {
  if (bytes < kLarge || !Full()) [[likely]]
    return Ok();
  return TooMuch();
}

/// One holder's share, given back when it is destroyed. Not thread-safe.
class Hold {
 public:
  Hold() = default;
  Hold(Hold&& o) noexcept : held_(o.held_) { o.held_ = 0; }
  Hold& operator=(Hold&& o) noexcept {
    if (this != &o) {
      Release();
      held_ = o.held_;
      o.held_ = 0;
    }
    return *this;
  }
  ~Hold() { Release(); }
  /// It holds `bytes` now. An error when that is more than before and there is no room: 146.
  Result<void> Set(size_t bytes) {
    // Told in steps, so that what grows by little costs nothing.
    if (bytes < held_ + kLarge && bytes + kLarge > held_) [[likely]]
      return Ok();
    return Change(bytes);
  }
  void Release();
  size_t held() const { return held_; }

 private:
  Result<void> Change(size_t bytes);
  size_t held_ = 0;
};

/// What something keeps, small parts too, and what of it Holds have counted already.
struct Kept {
  size_t bytes = 0, held = 0;
  void Add(size_t more, const Hold& hold) {
    bytes += more > hold.held() ? more : hold.held();
    held += hold.held();
  }
};

}  // namespace large_memory
}  // namespace mayfly
