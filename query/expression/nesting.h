#pragma once
#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// How deep documents between two stages may nest, values of variables, and what a command answers:
/// more than a stored document, which a pipeline may put into others. With what a reply puts around
/// it, no driver meets more than 200 levels. Whatever walks a value by recursion relies on it: an
/// expression adds what is written, which is what a message may nest, a few levels for each of its
/// own.
inline constexpr int kMaxValueDepth = kMaxBsonDepth + 16;

/// The least bytes of a value that nests in more than `levels`: {"": {"": {}}}.
constexpr uint32_t LeastBytesOfDeeper(int levels) {
  return 7 * static_cast<uint32_t>(levels < 0 ? 0 : levels) + 5;
}

/// Whether documents and arrays nest in `v` in more than `levels` (a scalar: 0, {} and [1]: 1).
/// Only looks into what has the bytes for it, which is next to nothing in most documents.
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
