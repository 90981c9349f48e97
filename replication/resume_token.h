#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mayfly {

// clang-format off
/// A place in a change stream, which is a place in the set's log: the same on every member, whatever the stream watches. In
/// order. In `_data` as 28 or 32 hexadecimal digits, so that tokens compare as text:
///
///   token := version:u8 (1) ts:be64 step:be32 kind:u8 [fragment:be16]
///     ts        of the log's record: seconds since 1970 << 32 | increment
///     step      which of the events with this ts (deletes by expiry share one), from 0; FFFFFFFF with kind 2
///     kind      0 an event, 1 the `invalidate` behind it, 2 everything up to `ts` (a high-water mark, no event)
///     fragment  of an event that was split ($changeStreamSplitLargeEvent): the last one given, from 1; FFFF: all of them,
///               however many the event has by then
///
/// The same grammar is in docs/on-disk-format.md. DO NOT RENUMBER: change kVersion instead.
// clang-format on
struct StreamPosition {
  static constexpr uint8_t kVersion = 1;
  enum Kind : uint8_t { kEvent = 0, kInvalidate = 1, kHighWater = 2 };
  static constexpr uint16_t kAllFragments = 0xFFFF;
  uint64_t ts = 0;
  uint32_t step = 0;
  Kind kind = kEvent;
  uint16_t fragment = 0;  ///< 0: the event was not split
  auto operator<=>(const StreamPosition&) const = default;

  /// Behind everything up to `ts`.
  static StreamPosition After(uint64_t ts) { return {ts, UINT32_MAX, kHighWater}; }
  std::string ToToken() const;
  /// Errors: InvalidResumeToken 260.
  static Result<StreamPosition> FromToken(std::string_view token);
};

}  // namespace mayfly
