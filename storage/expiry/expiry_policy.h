#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

struct CollectionInfo;
struct IndexInfo;

/// Decides, besides the deadline, whether a document is hidden or may be removed (docs/expiry.md,
/// docs/expiry-control.md). One object a Storage; the layer above may put its own in its place
/// before the first client. Threads: any; the fields are read at every operation, so a change takes
/// effect at once.
class ExpiryPolicy {
 public:
  virtual ~ExpiryPolicy() = default;

  /// The clock is not trusted: nothing past its deadline is hidden or
  /// removed.
  std::atomic<bool> suspended{false};
  /// ttlMonitorEnabled: TTL indexes with exact reads hide only while it is on. Per-document
  /// deadlines always do.
  std::atomic<bool> monitor_enabled{true};
  /// ttlReadFilter: TTL indexes that do not say otherwise have exact reads.
  std::atomic<bool> index_reads_exact_default{false};
  /// metadataPurgeIntervalSecs: how long tombstones are kept; 0: none are written.
  std::atomic<int64_t> tombstone_seconds{259'200};
  /// metrics.ttl.expiredReadsHidden: documents that were there and past their deadline when a read
  /// met them.
  std::atomic<int64_t> hidden_reads{0};
  /// The newest deadline for which a read has hidden a document, in milliseconds: a replica set
  /// moves its log's time past it, so that a session does not see the document again on another
  /// member.
  std::atomic<int64_t> hidden_deadline{INT64_MIN};
  void NoteHidden(int64_t deadline) {
    int64_t newest = hidden_deadline.load(std::memory_order_relaxed);
    while (newest < deadline &&
           !hidden_deadline.compare_exchange_weak(newest, deadline, std::memory_order_relaxed)) {
    }
  }

  /// Called with the number of documents and BSON bytes that a writer or `compact` has removed
  /// because they were past their deadline. The reaper counts its own removals. Set before the
  /// first client; must not block; may be null.
  std::function<void(int64_t documents, int64_t bytes)> on_removed;
  /// Told when a document was put into an archive. Likewise.
  std::function<void(int64_t documents)> on_archived;
  /// A document's own deadline as a new document of `into`, an archive, by its rules for inserts
  /// (docs/expiry.md C24, C4). Errors: DocumentValidationFailure 121.
  virtual Result<std::optional<Instant>> ArchiveDeadline(const CollectionInfo& into, BsonView doc,
                                                         Instant now) const {
    (void)into, (void)doc, (void)now;
    return std::optional<Instant>();
  }

  /// Whether the document is held: it neither expires nor hides. Asked only for documents that were
  /// found past their deadline. Must not block.
  virtual bool Held(const CollectionInfo& coll, BsonView doc, Instant now) const {
    (void)coll, (void)doc, (void)now;
    return false;
  }
  /// Whether there may be held documents at all, in whichever collection.
  virtual bool HasHolds() const { return false; }
  /// Whether there may be held documents in this one: while false, Held is not worth asking. Hot:
  /// asked by each read and write that could have to ask Held.
  virtual bool HasHolds(const CollectionInfo& coll) const {
    (void)coll;
    return HasHolds();
  }
  /// Whether a TTL index (null: the clustered collection's own rule) may hide documents now: a rule
  /// that is held or paused may not. Asked once per operation, for rules with exact reads that are
  /// overdue.
  virtual bool RuleActive(const CollectionInfo& coll, const IndexInfo* index) const {
    (void)coll, (void)index;
    return true;
  }
};

}  // namespace mayfly
