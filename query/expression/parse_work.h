#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "protocol/error.h"
#include "protocol/large_memory.h"

namespace mayfly {

class Operation;

/// Limits the parsing and planning of one operation: filters, expressions, projections, updates,
/// pipelines. A request of 100 kB on the wire may unpack to millions of elements, and each becomes
/// a node of some hundred bytes. This class ends such a parse when it needs too much memory, or
/// when the operation is interrupted.
///
///   ParseWork work(&op);            // where a parse begins; inner ones count for the outermost
///   MAYFLY_TRY(ParseWork::Step());  // in every loop over a client's data
///   ParseWork::Made(kNodeBytes);    // where a node is made
///   MAYFLY_TRY(work.Keep(&hold_));  // at the end: `hold_` is of the parsed form, which lives on
///
/// One thread: must not live across a co_await.
class ParseWork {
 public:
  /// The most bytes of nodes that one operation may make in one parse.
  static constexpr uint64_t kMaxBytes = uint64_t{256} << 20;

  /// `op` null: that of the one around it, if there is one.
  explicit ParseWork(Operation* op);
  ~ParseWork();
  ParseWork(const ParseWork&) = delete;

  /// Errors: ExceededMemoryLimit 146; those of Operation::CheckInterrupt. `cost`: in elements, or
  /// work of the same time. Only counts, and calls Look from time to time.
  static Result<void> Step(size_t cost = 1) {
    if (cost < left_) [[likely]] {
      left_ -= static_cast<uint32_t>(cost);
      return Ok();
    }
    return Look();
  }
  /// The same, but always checks. After an error every step and look fails until the outermost
  /// ParseWork ends, also where room has become free meanwhile: callers without an error path may
  /// just stop, and what they answer then counts for nothing, because somebody looks again.
  static Result<void> Look();

  /// The operation that is checked, also by matchers on its behalf; null: there is none.
  static Operation* Asked() { return current_ == nullptr ? nullptr : current_->op_; }

  /// Something of this size was made. Charged to the process (large_memory) until the outermost
  /// ParseWork ends, or for longer where it is kept.
  static void Made(size_t bytes) { made_ += bytes; }
  /// A variable with a value of so many bytes was made. Returns how many of them are counted here:
  /// a large value counts by itself. Errors: those of Step.
  static Result<size_t> MadeVariable(std::string_view name, size_t value_bytes) {
    // Its name and its slot, in lists that double.
    const size_t counted =
        256 + name.size() + (value_bytes < large_memory::kLarge ? value_bytes : 0);
    Made(counted);
    MAYFLY_TRY(Step(1 + counted / 1024));
    return counted;
  }
  /// What was made in this one so far.
  uint64_t bytes() const { return made_ - begin_; }
  /// Of these, what Keep has handed over to parsed forms. They may be gone again.
  uint64_t kept_bytes() const { return outermost_->kept_ - kept_before_; }
  /// What was made in this one, and is not kept yet, is charged to `*hold` from now on, in
  /// addition to what it holds, and no longer to the parse. The parsed form owns the hold, so that
  /// the charge lasts as long as it does. Less than large_memory::kLarge: nothing is done. `most`:
  /// of the bytes, where the rest is not part of the parsed form. Errors: ExceededMemoryLimit 146;
  /// what was made must then be dropped.
  Result<void> Keep(large_memory::Hold* hold, uint64_t most = UINT64_MAX) {
    const uint64_t more = bytes() - kept_bytes();
    if (more < large_memory::kLarge || most < large_memory::kLarge) [[likely]]
      return Ok();
    return HandOver(hold, more < most ? more : most);
  }
  /// How many patterns were compiled in this parse, with this one.
  static uint32_t CountPattern() {
    return current_ == nullptr ? 1 : ++current_->outermost_->patterns_;
  }

 private:
  static constexpr uint32_t kSteps = 256;  ///< between two looks

  Result<void> HandOver(large_memory::Hold* hold, uint64_t more);

  static thread_local constinit ParseWork* current_;
  static thread_local constinit uint32_t left_;
  static thread_local constinit uint64_t made_;  ///< bytes by this thread, ever

  ParseWork* const outer_;
  ParseWork* const outermost_;
  Operation* const op_;
  const uint64_t begin_;
  uint64_t kept_ = 0;           ///< of the outermost: the bytes that parsed forms hold
  const uint64_t kept_before_;  ///< the outermost's, when this one began
  uint32_t patterns_ = 0;
  bool full_ = false;  ///< of the outermost: there was no room once, so every look fails
  large_memory::Hold held_;
};

}  // namespace mayfly
