#pragma once
#include <cstdint>

#include "storage/write/write_unit.h"

namespace mayfly {

/// The most that a unit staged on an io thread may cost, in index keys (about a microsecond each,
/// including the commit). A unique key counts four times, because it is looked up.
inline constexpr int64_t kInlineKeys = 500;
/// The most for bytes of a document times indexed fields of its collection: the document is
/// searched for each field.
inline constexpr uint64_t kInlineFieldBytes = 512 << 10;
/// The longest `_id`: its key is made of all of it.
inline constexpr uint64_t kInlineIdBytes = 64 << 10;

/// Before the first call of the unit: it does not wait for locks, and calls that would take long
/// fail with WriteConflict 112 in advance. The caller then drops the unit and does the write on a
/// worker thread.
void KeepShort(WriteUnit& unit);

}  // namespace mayfly
