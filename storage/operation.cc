#include "storage/operation.h"

#include <algorithm>

namespace mayfly {

Error Operation::Killed(ErrorCode code) {
  switch (code) {
    case ErrorCode::kMaxTimeMSExpired:
      return {code, "operation exceeded time limit"};
    case ErrorCode::kInterruptedAtShutdown:
      return {code, "interrupted at shutdown"};
    case ErrorCode::kInterrupted:
      return {code, "operation was interrupted"};
    default:
      return {code, "operation was interrupted"};
  }
}

Result<void> Operation::CheckTime() {
  checks_left_ = in_slice() ? kChecksInSlice : kChecks;
  if (deadline_micros == 0 && !in_slice()) return Ok();
  const int64_t micros = clock_.MonotonicMicros();
  if (deadline_micros != 0 && micros > deadline_micros) return Killed(ErrorCode::kMaxTimeMSExpired);
  if (in_slice() && micros > slice_end_) {
    checks_left_ = 0;  // every later check comes here too
    return Error{ErrorCode::kInternalError, "the operation's slice of time is spent"};
  }
  return Ok();
}

Result<void> Operation::ChargeLarge(size_t bytes) {
  largest_in_slice_ = std::max(largest_in_slice_, bytes);
  checks_left_ -= static_cast<int32_t>(bytes / kLargeDocument);
  if (bytes < kVeryLargeDocument) return Ok();
  slice_end_ = 1;
  return CheckTime();
}

void Operation::BeginSlice(int64_t micros) {
  slice_end_ = clock_.MonotonicMicros() + micros;
  checks_left_ = kChecksInSlice;
  largest_in_slice_ = 0;
}

void Operation::EndSlice(bool finished) {
  slice_end_ = 0;
  checks_left_ = 0;
  if (finished) {
    for (auto& counter : uses_) counter->fetch_add(1, std::memory_order_relaxed);
  } else {
    keys_examined = docs_examined = n_returned = 0;
    n_inserted = n_deleted = n_matched = n_modified = 0;
    keys_inserted = keys_deleted = write_conflicts = yields = 0;
    sorted_keys = sorted_bytes = sort_spills = 0;
    // A race counts even so: its plan is known by now, and serves the same query at once.
    has_sort_stage = used_disk = false;
  }
  uses_.clear();
}

}  // namespace mayfly
