#pragma once
#include "protocol/error.h"
#include "protocol/instant.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// Adds to the batch the removal of one member's own data: its `local` collections, profiles and
/// settings.
void DropMembersOwnRows(KvBatch& batch);

/// Turns an unopened store into that of a new node: without a set, log, vote or configuration,
/// and without anything that clients of the old one could continue with (sessions, keys that
/// signed cluster times). A store that was a standalone's keeps its `local` collections. Synced.
/// `now`: change streams of a set that is made of it do not resume from before. Errors: the
/// store's.
Result<void> BecomeNewNode(KvStore& kv, Instant now);

/// The time up to which the store's data is from a former set, without its log; 0: no former set.
/// Errors: the store's.
Result<uint64_t> FormerSetUntil(KvStore& kv);

}  // namespace mayfly
