#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "query/expression/expression.h"

namespace mayfly {

/// The most bytes that the large values of one operation's expressions may have together, those
/// that only grow and those that are finished and still held.
inline constexpr int64_t kMaxOperationValues = int64_t{256} << 20;

/// The memory of all large values of one operation; they share it.
struct ValueAccount {
  std::atomic<int64_t> used{0};  ///< bytes
};

/// Counts work, and checks for interrupts at intervals. Without an operation it never interrupts.
class Pace {
 public:
  explicit Pace(EvalContext& ctx) : op_(ctx.op) {}
  /// `bytes` have been looked at or written; also for a step of a loop that does next to nothing.
  Result<void> Step(size_t bytes = 0) {
    left_ -= static_cast<int64_t>(bytes) + 16;
    if (left_ > 0) [[likely]]
      return Ok();
    return Look();
  }

 private:
  static constexpr int64_t kBetween = 64 << 10;
  Result<void> Look();
  Operation* op_;
  int64_t left_ = kBetween;
};

/// After a step that may have looked at `bytes` at once.
Result<void> CheckAfterLarge(EvalContext& ctx);
inline Result<void> CheckAfter(EvalContext& ctx, size_t bytes) {
  if (bytes < (size_t{64} << 10)) [[likely]]
    return Ok();
  return CheckAfterLarge(ctx);
}

/// One holder's share of the memory that the operation and the process may take. Given back when it
/// is destroyed, by any thread. Not thread-safe.
class Charge {
 public:
  explicit Charge(EvalContext& ctx) : op_(ctx.op) {}
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() { Release(); }
  /// It holds `bytes` now. Errors: ExceededMemoryLimit 146, when that is more than before and there
  /// is no room for it.
  Result<void> Set(size_t bytes) {
    // In steps, as large_memory::Hold.
    if (bytes < held_ + large_memory::kLarge && bytes + large_memory::kLarge > held_) [[likely]]
      return Ok();
    return Change(bytes);
  }
  /// Gives the share back now instead of at the end; Set() may take one again.
  void Release();

 private:
  Result<void> Change(size_t bytes);
  const Operation* op_;  ///< until there is an account
  std::shared_ptr<ValueAccount> account_;
  size_t held_ = 0;
  large_memory::Hold hold_;
};

/// std::stable_sort that can be interrupted. `size` says how many bytes comparing an item may look
/// at.
template <class T, class Less, class Size>
Result<void> SortItems(EvalContext& ctx, std::vector<T>& items, Less less, Size size) {
  constexpr size_t kRun = 32;
  Pace pace(ctx);
  for (size_t at = 0; at < items.size(); at += kRun) {
    const size_t end = std::min(at + kRun, items.size());
    size_t bytes = 0;
    for (size_t i = at; i < end; ++i) bytes += size(items[i]);
    MAYFLY_TRY(pace.Step(8 * bytes));
    std::stable_sort(items.begin() + static_cast<ptrdiff_t>(at),
                     items.begin() + static_cast<ptrdiff_t>(end), less);
  }
  if (items.size() <= kRun) return Ok();
  Charge charge(ctx);
  MAYFLY_TRY(charge.Set(items.size() * sizeof(T)));
  std::vector<T> other(items.size());
  for (size_t run = kRun; run < items.size(); run *= 2) {
    size_t to = 0;
    for (size_t at = 0; at < items.size(); at += 2 * run) {
      const size_t middle = std::min(at + run, items.size()),
                   end = std::min(at + 2 * run, items.size());
      size_t a = at, b = middle;
      while (a < middle || b < end) {
        const bool second = a >= middle || (b < end && less(items[b], items[a]));
        T& next = items[second ? b++ : a++];
        MAYFLY_TRY(pace.Step(size(next)));
        other[to++] = std::move(next);
      }
    }
    items.swap(other);
  }
  return Ok();
}
}  // namespace mayfly
