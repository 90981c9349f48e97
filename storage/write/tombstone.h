#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/value.h"
#include "storage/keys/key_format.h"
#include "storage/write/write_unit.h"

namespace mayfly {

class Storage;

// clang-format off
/// The remains of a deleted or expired document, kept for metadataPurgeIntervalSecs
/// (docs/expiry.md, "Tombstones"). Written in the batch that removes the document. Ordered by time,
/// so that purging drops one range.
///
///   Keyspace::kTombstones
///   key   := at:time64 collection:be32 value of `_id`
///   val   := reason:u8 [index:be32 deadline:time64 if reason is an expiry] rest
///   rest  := type_bits of `_id` | bson: {"": the _id}, if it is cut in the key
///   reason := 0 deleted | 1 by a TTL index | 2 by its own deadline | 3 clustered collection
///
/// If one `_id` is removed twice in the same millisecond, the later tombstone is kept.
// clang-format on
inline void AppendTombstoneKey(Instant at, uint32_t collection, std::string& out) {
  AppendTime64(out, at);
  AppendBe32(out, collection);
}
/// The value in the grammar above, to `key`. `id`: only its type bits are kept; the rest is in the
/// key, unless it is cut there.
void AppendTombstoneValue(const DeleteCause& cause, BsonValue id, std::string_view key,
                          std::string& out);

/// A decoded tombstone.
struct Tombstone {
  Instant at;
  uint32_t collection = 0;
  Value id;
  DeleteCause cause;
};
/// Errors: InternalError 1 on bytes that cannot be a tombstone.
Result<Tombstone> DecodeTombstone(std::string_view key, std::string_view value);

/// Calls `each` for the tombstones behind `*position` (a key; empty: all), oldest first, until it
/// answers false. `*position` is then the key of the last one. `collection`: 0 for all. Blocking.
Result<void> ForEachTombstone(Storage& storage, Operation& op, uint32_t collection,
                              std::string* position,
                              const std::function<Result<bool>(const Tombstone&)>& each);

/// Drops all tombstones that are older than ExpiryPolicy::tombstone_seconds at `op.now`, as one
/// range. True when there were any. Costs one seek when there are none. Blocking: shortly.
Result<bool> PurgeTombstones(Storage& storage, Operation& op);

}  // namespace mayfly
