#pragma once
#include <string>
#include <vector>

#include "storage/catalog.h"
#include "storage/storage.h"

namespace mayfly {

/// One reason for documents to go: a TTL index, or a clustered collection with expireAfterSeconds.
struct TtlRule {
  CollectionInfoPtr coll;
  IndexInfoPtr index;  ///< null: the clustered collection's own
  int64_t seconds = 0;

  ExpiryState& state() const { return index ? *index->expiry : *coll->expiry; }
  /// Unique among indexes, or among collections for a clustered one.
  uint32_t id() const { return index ? index->id : coll->id; }
  std::string Name() const { return coll->ns + (index ? "." + index->name : ""); }
  /// The latest date that is due at `now` (EXPIRY rule R2: due when field <= now - seconds).
  int64_t Threshold(Instant now) const { return SaturatingDeadline(now.millis, -seconds); }
  int64_t Deadline(int64_t millis) const { return SaturatingDeadline(millis, seconds); }
};

/// A TTL index that cannot be worked on, and why.
struct InvalidTtlRule {
  CollectionInfoPtr coll;
  IndexInfoPtr index;
  const char* reason;
};

/// All rules there are now. Indexes that are being built are left out; special index types come
/// back in `invalid`.
std::vector<TtlRule> ListTtlRules(Catalog& catalog, std::vector<InvalidTtlRule>* invalid);

/// Walks what a rule covers in order of date, earliest first. Not thread-safe.
class TtlCursor {
 public:
  /// Dates in [from, to], both inclusive (milliseconds), as of now.
  TtlCursor(Storage& storage, const TtlRule& rule, int64_t from, int64_t to);
  Result<bool> Next();
  int64_t millis() const { return millis_; }
  std::string_view record_key() const;

 private:
  const bool descending_;
  std::unique_ptr<IndexCursor> index_;
  std::unique_ptr<RecordCursor> records_;
  int64_t millis_ = 0;
};

/// Whether the document is due by this rule at `threshold`: what a candidate is checked against
/// once it is locked, so that one changed meanwhile survives (EXPIRY rule T6).
bool IsDue(const TtlRule& rule, BsonView doc, int64_t threshold);

}  // namespace mayfly
