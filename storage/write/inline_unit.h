#pragma once
#include <cstdint>

#include "storage/write/write_unit.h"

namespace mayfly {

/// What a unit that is staged on a thread others wait for may cost, in index keys (about a
/// microsecond each, with its part of the commit); a unique one counts four times, because it is
/// looked up.
inline constexpr int64_t kInlineKeys = 500;
/// And bytes of a document times the fields of its collection's indexes: each of these fields is
/// looked for in it.
inline constexpr uint64_t kInlineFieldBytes = 512 << 10;

/// Before the first call of the unit: it does not wait for locks, and what it cannot do quickly
/// fails with WriteConflict 112 before it is done. The unit is then to be dropped, and the write to
/// be done by a worker thread.
void KeepShort(WriteUnit& unit);

}  // namespace mayfly
