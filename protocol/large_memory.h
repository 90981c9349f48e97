#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "protocol/error.h"

namespace mayfly {

/// The memory of large values, documents and buffers in use, over a whole server: a limit on their
/// sum keeps the process alive, since a thousand requests may have a thousand stages each, and each
/// stage its own limit. Small values are not counted. A thread charges the budget of its server
/// (SetThreadBudget), or that of the process if none was set. Threads: any.
namespace large_memory {

inline constexpr size_t kLarge = size_t{1} << 20;  ///< bytes from which on something counts

/// One server's. Outlives what was charged to it.
class Budget {
 public:
  // Counters for other limits of a whole server; the code that checks a limit explains it.
  std::atomic<int64_t> compiled_filter_bytes{0};  ///< query/match/record_filter.h
  std::atomic<int64_t> spilled_bytes{0};          ///< query/sort/spill_file.h, as the next two
  std::atomic<int64_t> spill_limit{0}, spill_operation_limit{0};
  std::atomic<int64_t> folded_bytes{0};  ///< query/expression/parse.cc
  /// query/expression/regex.cc. Patterns that a thread remembers may outlive the server.
  const std::shared_ptr<std::atomic<int64_t>> machine_code_bytes =
      std::make_shared<std::atomic<int64_t>>(0);

  /// The maximum number of bytes; set once at start, before that 1 GiB.
  void SetLimit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  void Add(int64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> used_{0}, limit_{int64_t{1} << 30};
};

/// What the calling thread charges from now on; null: the process's own.
void SetThreadBudget(Budget* budget);
Budget& ThreadBudget();
/// `f`, to run on a thread that charges the same budget as the calling one: a server's threads are
/// made with it.
template <class F>
auto WithThisBudget(F f) {
  // Asked for now, on the calling thread: the one that runs `f` does not know it.
  return [budget = &ThreadBudget(), f = std::move(f)]() mutable {
    SetThreadBudget(budget);
    f();
  };
}
/// The calling thread charges another budget as long as this lives.
class BudgetScope {
 public:
  explicit BudgetScope(Budget& budget);
  ~BudgetScope();
  BudgetScope(const BudgetScope&) = delete;

 private:
  Budget* const before_;
};

// These use the calling thread's budget.
inline void SetLimit(int64_t bytes) { ThreadBudget().SetLimit(bytes); }
inline int64_t Limit() { return ThreadBudget().limit(); }
inline int64_t Used() { return ThreadBudget().used(); }
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

/// One holder's share, given back when it is destroyed, to the budget that it came from. Not
/// thread-safe.
class Hold {
 public:
  Hold() = default;
  Hold(Hold&& o) noexcept : budget_(o.budget_), held_(o.held_) { o.held_ = 0; }
  Hold& operator=(Hold&& o) noexcept {
    if (this != &o) {
      Release();
      budget_ = o.budget_;
      held_ = o.held_;
      o.held_ = 0;
    }
    return *this;
  }
  ~Hold() { Release(); }
  /// It holds `bytes` now. An error when that is more than before and there is no room: 146.
  Result<void> Set(size_t bytes) {
    // Counts in steps, so that small growth costs nothing.
    if (bytes < held_ + kLarge && bytes + kLarge > held_) [[likely]]
      return Ok();
    return Change(bytes);
  }
  /// Gives the share back now instead of at the end; Set() may take one again.
  void Release();
  size_t held() const { return held_; }

 private:
  Result<void> Change(size_t bytes);
  Budget* budget_ = nullptr;  ///< of held_, when that is not 0
  size_t held_ = 0;
};

/// The memory of one holder, small parts included, and the part that Holds already count.
struct Kept {
  size_t bytes = 0, held = 0;
  /// One more part of `more` bytes, for which `hold` is charged. A Hold counts in steps, so the
  /// larger of both numbers is what is kept.
  void Add(size_t more, const Hold& hold) {
    bytes += more > hold.held() ? more : hold.held();
    held += hold.held();
  }
};

}  // namespace large_memory
}  // namespace mayfly
