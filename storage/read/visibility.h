#pragma once
#include <optional>
#include <vector>

#include "storage/core/open_storage.h"
#include "storage/expiry/delete_cause.h"
#include "storage/expiry/expiry_policy.h"
#include "storage/operation.h"
#include "storage/read/read_view.h"

namespace mayfly {

/// The one rule for which documents of a collection an operation sees: one that is past its
/// earliest deadline at the operation's clock reading is absent (EXPIRY C.1, C.2). Deadlines are
/// the document's own (in its record header) and those of TTL indexes with exact reads. Made once
/// an operation (a getMore is one of its own) and collection; borrows the collection. One thread.
class Visibility {
 public:
  /// Shows everything.
  Visibility() = default;
  /// `view`: what is read. With an earlier one the marks of what is left say nothing: the reaper
  /// may have removed what it still shows, and the marks do not know what is not committed.
  Visibility(Storage& storage, const CollectionInfo& coll, Instant now,
             bool include_expired = false, const ReadView& view = Storage::kNow)
      : storage_(&storage), counted_(&coll), earlier_(view.earlier()) {
    const ExpiryPolicy& policy = storage.expiry_policy();
    if (include_expired || policy.suspended.load(std::memory_order_relaxed)) return;
    coll_ = &coll;
    now_ = now;
    if (earlier_) own_deadlines_ = view.OwnDeadlines(coll);
    if (coll.HasTtlRules()) AddRules(policy);
  }

  /// The same, for an operation that may be stopped in the middle of a filter: of a partial TTL
  /// index, or of a hold. Must outlive it.
  Visibility(Storage& storage, const CollectionInfo& coll, Operation& op,
             bool include_expired = false, const ReadView& view = Storage::kNow)
      : Visibility(storage, coll, op.now, include_expired, view) {
    op_ = &op;
  }

  /// Whether a document is there for this operation. Hot: two comparisons where nothing is overdue.
  /// False says nothing of the document when the operation is to stop: see Stopped.
  bool Shows(BsonView doc, std::optional<Instant> expire_at) const {
    if ((!expire_at || expire_at->millis > now_.millis) && rules_.empty()) [[likely]]
      return true;
    return !Hides(doc, expire_at);
  }
  /// False when no document of the collection can be hidden now: then index entries and counters
  /// need no look at the records.
  bool MayHide() const {
    return coll_ != nullptr &&
           (!rules_.empty() || (earlier_ ? own_deadlines_ || coll_->document_expiry->HadEntries()
                                         : coll_->document_expiry->Earliest() <= now_.millis));
  }
  /// After Shows has said no, before anything follows from that. Errors: those of an interrupt.
  Result<void> Stopped() const {
    if (!asks_filters_) [[likely]]
      return Ok();
    return Look();
  }
  /// For writers, of a locked document: why it is absent; nullopt when it is there. Errors: those
  /// of an interrupt.
  Result<std::optional<DeleteCause>> Expired(BsonView doc, std::optional<Instant> expire_at) const;

  /// How many documents are there: the collection's counter, less what is hidden. Reads the overdue
  /// entries only. `view`: the one it was made for, or the state of now.
  Result<int64_t> CountVisible(Operation& op, const ReadView& view = Storage::kNow) const;

 private:
  struct Rule {
    const IndexInfo* index;  ///< null: the clustered collection's own
    int64_t seconds;
  };
  bool Hides(BsonView doc, std::optional<Instant> expire_at) const;
  Result<void> Look() const;
  Result<int64_t> CountHidden(Operation& op, const ReadView& view) const;

  void AddRules(const ExpiryPolicy& policy);

  Storage* storage_ = nullptr;
  const CollectionInfo* counted_ = nullptr;
  const CollectionInfo* coll_ = nullptr;  ///< null: everything shows
  Operation* op_ = nullptr;               ///< who is asked whether to stop; null: nobody
  bool earlier_ = false, own_deadlines_ = false;
  mutable bool asks_filters_ = false;  ///< a filter had its say, which may have taken long
  Instant now_{INT64_MIN};
  std::vector<Rule> rules_;  ///< exact ones that may be overdue
};

/// Whether the index can expire documents: what a rule of the reaper and of reads needs.
const char* CheckTtlRule(const CollectionInfo& coll, const IndexInfo& index);

/// The earliest date that a TTL index has of a document; false when it has none, or when the
/// operation of FilteringFor is to stop. REQUIRES: one field.
bool EarliestDate(const IndexInfo& index, BsonView doc, int64_t* millis);

}  // namespace mayfly
