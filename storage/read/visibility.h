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
/// earliest deadline at the operation's clock reading is absent (docs/expiry.md, "Exact reads").
/// Deadlines are the document's own (in its record header) and those of TTL indexes with exact
/// reads. Made once an operation (a getMore is one of its own) and collection; borrows the
/// collection. One thread.
class Visibility {
 public:
  /// Shows everything.
  Visibility() = default;
  /// `view`: what is read. With an earlier one the present marks do not apply: the reaper may have
  /// removed documents that it still shows, and the marks do not cover uncommitted ones.
  Visibility(Storage& storage, const CollectionInfo& coll, Instant now,
             bool include_expired = false, const ReadView& view = Storage::kNow)
      : storage_(&storage), counted_(&coll), earlier_(view.earlier()) {
    const ExpiryPolicy& policy = storage.expiry_policy();
    if (include_expired || policy.suspended.load(std::memory_order_relaxed)) return;
    coll_ = &coll;
    now_ = held_at_ = now;
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

  /// The same rule for another thread that works for the operation; `op` stops that one. Must
  /// outlive it.
  Visibility ForThread(Operation& op) const {
    Visibility v = *this;
    if (v.op_ != nullptr) v.op_ = &op;
    return v;
  }

  /// As of `horizon`, but holds as of `now`: Expired gives the deadline of a document that expires
  /// before `horizon`.
  static Visibility Until(Storage& storage, const CollectionInfo& coll, Instant now,
                          Instant horizon) {
    Visibility v(storage, coll, horizon);
    v.held_at_ = now;
    return v;
  }

  /// Whether a document is there for this operation. Hot: two comparisons where nothing is overdue.
  /// If the operation must stop, false has no meaning: see Stopped.
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
  /// After Shows has said no, before acting on it. Errors: those of an interrupt.
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
  /// A unit that is on its way has given it a later deadline in time (KeptDocuments).
  bool Kept(BsonView doc, const DeleteCause& cause) const;
  Result<void> Look() const;
  Result<int64_t> CountHidden(Operation& op, const ReadView& view) const;

  void AddRules(const ExpiryPolicy& policy);

  Storage* storage_ = nullptr;
  const CollectionInfo* counted_ = nullptr;
  const CollectionInfo* coll_ = nullptr;  ///< null: everything shows
  Operation* op_ = nullptr;               ///< checked for interrupts; null: none
  bool earlier_ = false, own_deadlines_ = false;
  mutable bool asks_filters_ = false;  ///< a filter has run, which may have taken long
  Instant now_{INT64_MIN}, held_at_{INT64_MIN};
  std::vector<Rule> rules_;  ///< exact ones that may be overdue
};

/// Why rules of a time series do nothing once there was a point of such a date (docs/expiry.md S1).
inline constexpr const char* kExpirySuspended =
    "a point before 1970 or after 2038-01-19T03:14:07Z was stored: nothing of this time series "
    "expires; delete such points, then set its expireAfterSeconds with collMod to what it is, or "
    "to 'off' if only TTL indexes have one";
/// Null if the index can expire documents: what a rule of the reaper and of reads needs. Else why
/// not.
const char* CheckTtlRule(const CollectionInfo& coll, const IndexInfo& index);

/// The earliest date that a TTL index has of a document; false when it has none, or when the
/// operation of FilteringFor is to stop. REQUIRES: one field.
bool EarliestDate(const IndexInfo& index, BsonView doc, int64_t* millis);

}  // namespace mayfly
