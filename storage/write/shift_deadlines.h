#pragma once
#include <cstdint>
#include <functional>

#include "protocol/error.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// Moves the deadline of every document that has one by `millis`: records and queues, in a store
/// that nobody else uses and no Storage has open. In several batches, so an interruption leaves the
/// store unusable. `step` is called regularly and may stop it. Returns the number moved. Errors:
/// the store's; InternalError 1 for a damaged record.
Result<int64_t> ShiftDeadlines(KvStore& kv, int64_t millis,
                               const std::function<Result<void>()>& step);

}  // namespace mayfly
