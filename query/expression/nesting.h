#pragma once
#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// The maximum nesting of documents between two stages, of values of variables, and of what a
/// command returns. It is more than a stored document may have, because a pipeline can put
/// documents into others. Together with the levels of the reply, a driver never sees more than 200.
/// Everything that walks a value by recursion relies on this limit. An expression may add levels of
/// its own, but no more than its text has, which the limit of a message bounds.
inline constexpr int kMaxValueDepth = kMaxBsonDepth + 16;

/// The least bytes of a value that nests in more than `levels`: {"": {"": {}}}.
constexpr uint32_t LeastBytesOfDeeper(int levels) {
  return 7 * static_cast<uint32_t>(levels < 0 ? 0 : levels) + 5;
}

/// Whether `v` nests in more than `levels` levels (a scalar has 0, {} and [1] have 1). Only values
/// that are long enough to nest so deep are visited: almost none in most documents.
bool NestsDeeper(BsonValue v, int levels);

/// Errors: Overflow 15.
Error NestedTooDeep();

/// `v` lies `within` so many documents. Errors: Overflow 15 beyond kMaxValueDepth.
inline Result<void> CheckNesting(BsonValue v, int within = 0) {
  if (v.size() < LeastBytesOfDeeper(kMaxValueDepth - within) && within <= kMaxValueDepth) [[likely]]
    return Ok();
  if (!NestsDeeper(v, kMaxValueDepth - within)) return Ok();
  return NestedTooDeep();
}

}  // namespace mayfly
