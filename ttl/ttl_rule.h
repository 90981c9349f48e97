#pragma once
#include <string>
#include <vector>

#include "storage/catalog/catalog.h"
#include "storage/storage.h"

namespace mayfly {

/// An expiry rule: a TTL index, a clustered collection with expireAfterSeconds, or the documents'
/// own deadlines.
struct TtlRule {
  enum class Kind : uint8_t { kTtlIndex, kClustered, kDocument };
  Kind kind = Kind::kTtlIndex;
  CollectionInfoPtr coll;
  IndexInfoPtr index;  ///< of a kTtlIndex, else null
  /// From the date (or deadline) of a document to its removal. kDocument: the collection's
  /// recoverSeconds. From the lower bound of a bucket: its span is in it.
  int64_t seconds = 0;

  /// The state of the index, the clustered collection or the documents' own deadlines; lives as
  /// long as the index or collection that the rule holds.
  ExpiryState& state() const {
    return index                      ? *index->expiry
           : kind == Kind::kClustered ? *coll->expiry
                                      : *coll->document_expiry;
  }
  /// Unique among rules.
  uint64_t id() const {
    return uint64_t{index ? index->id : coll->id} << 8 | static_cast<uint64_t>(kind);
  }
  /// As tombstones and logs say which rule it was: the index's name, "clustered" or "document".
  std::string_view RuleName() const {
    return index                      ? std::string_view(index->name)
           : kind == Kind::kClustered ? "clustered"
                                      : "document";
  }
  std::string Name() const { return coll->ns + (index ? "." + index->name : ""); }
  /// The latest date that is due at `now` (docs/expiry.md R2: due when field <= now - seconds).
  int64_t Threshold(Instant now) const { return SaturatingDeadline(now.millis, -seconds); }
  int64_t Deadline(int64_t millis) const { return SaturatingDeadline(millis, seconds); }
};

/// A rule that cannot be worked on, and why.
struct InvalidTtlRule {
  CollectionInfoPtr coll;
  IndexInfoPtr index;  ///< null: the collection's own rule
  const char* reason;
};

/// All rules there are now. Indexes that are being built are left out; special index types come
/// back in `invalid`.
std::vector<TtlRule> ListTtlRules(Catalog& catalog, std::vector<InvalidTtlRule>* invalid);
/// Those of one collection, appended.
void ListTtlRulesOf(const CollectionInfoPtr& coll, std::vector<TtlRule>* rules,
                    std::vector<InvalidTtlRule>* invalid);

/// Walks what a rule covers in order of date, earliest first. Not thread-safe.
class TtlCursor {
 public:
  /// Dates in [from, to], both inclusive (milliseconds), as of now.
  /// `at_entry` (as EntryKey gave it): begins there instead of at the first entry of `from`.
  /// `fill_cache`: what it reads stays in the block cache; not for what is about to go.
  TtlCursor(Storage& storage, const TtlRule& rule, int64_t from, int64_t to,
            std::string_view at_entry = {}, bool fill_cache = false);
  Result<bool> Next();
  int64_t millis() const { return millis_; }
  std::string_view record_key() const;
  /// The key of the entry in its keyspace (a record for a clustered collection).
  void EntryKey(std::string* out) const;

 private:
  const IndexInfoPtr rule_index_;
  const RecordDates dates_;
  const bool descending_;
  std::unique_ptr<IndexCursor> index_;
  std::unique_ptr<RecordCursor> records_;
  std::unique_ptr<KvIterator> queue_;
  bool started_ = false;
  std::string record_key_;  ///< of the queue's entry
  int64_t millis_ = 0;
};

/// Whether the document is due by this rule at `threshold`, and then why it goes: what a candidate
/// is checked against once it is locked, so that one changed meanwhile survives (docs/expiry.md
/// T6). Holds and a suspended clock are not asked.
std::optional<DeleteCause> IsDue(const TtlRule& rule, BsonView doc,
                                 std::optional<Instant> expire_at, int64_t threshold);

}  // namespace mayfly
