#include "protocol/large_memory.h"

namespace mayfly::large_memory {
namespace {

std::atomic<int64_t> g_used{0};
std::atomic<int64_t> g_limit{int64_t{1} << 30};

}  // namespace

void SetLimit(int64_t bytes) { g_limit.store(bytes, std::memory_order_relaxed); }
int64_t Limit() { return g_limit.load(std::memory_order_relaxed); }
int64_t Used() { return g_used.load(std::memory_order_relaxed); }
bool Full() { return Used() > Limit(); }

Error TooMuch() {
  return Error{ErrorCode::kExceededMemoryLimit,
               "Operations in progress use more memory for large values than the " +
                   std::to_string(Limit() >> 20) +
                   " MB they may have together: make arrays and documents smaller as early as "
                   "possible, or try again later"};
}

Result<void> Hold::Change(size_t bytes) {
  const bool more = bytes > held_;
  g_used.fetch_add(static_cast<int64_t>(bytes) - static_cast<int64_t>(held_),
                   std::memory_order_relaxed);
  held_ = bytes;
  if (more && Full()) return TooMuch();
  return Ok();
}

void Hold::Release() {
  if (held_ != 0) g_used.fetch_sub(static_cast<int64_t>(held_), std::memory_order_relaxed);
  held_ = 0;
}

}  // namespace mayfly::large_memory
