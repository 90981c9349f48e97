#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "replication/resume_token.h"
#include "storage/storage.h"
#include "storage/write/log_format.h"

namespace mayfly {

/// The options of `$changeStream` (manual: Change Streams, Change Events; the expiry options:
/// docs/expiry.md, "Events").
struct ChangeStreamSpec {
  enum class Scope : uint8_t { kCollection, kDatabase, kCluster };
  enum class FullDocument : uint8_t { kDefault, kUpdateLookup, kWhenAvailable, kRequired };
  enum class BeforeChange : uint8_t { kOff, kWhenAvailable, kRequired };
  Scope scope = Scope::kCollection;
  std::string db, collection;
  FullDocument full_document = FullDocument::kDefault;
  BeforeChange before_change = BeforeChange::kOff;
  bool expanded = false;   ///< showExpandedEvents
  bool expiry = false;     ///< showExpiryEvents
  bool deadlines = false;  ///< showExpireAt
};

/// How long documents as they were before a change are shown (cluster parameter
/// changeStreamOptions). They are part of the log and go with it; one that is older than this by
/// the time of the set's log is absent at once, on every member alike.
struct ImageLife {
  int64_t expire_after_seconds = -1;  ///< -1: as long as the log has them
  int64_t now_millis = 0;             ///< of the newest record applied
  /// Whether an image of a change at `wall_millis` is still shown.
  bool Kept(int64_t wall_millis) const {
    return expire_after_seconds < 0 || now_millis - wall_millis < expire_after_seconds * 1000;
  }
};

/// Which records of the log a stream shows. Looks at names only. Threads: one.
class ChangeStreamFilter {
 public:
  explicit ChangeStreamFilter(const ChangeStreamSpec& spec);
  /// "db.collection".
  bool Watches(std::string_view ns) const;
  bool WatchesDatabase(std::string_view db) const;

 private:
  const ChangeStreamSpec::Scope scope_;
  const std::string ns_;  ///< kDatabase: "db."
};

/// One event of a change stream, and where the stream can go on behind it.
struct ChangeEvent {
  StreamPosition position;
  BsonDocument document;
};

/// Appends the events of one record of a unit: none, one, or one and the `invalidate` behind it.
/// `at`: the record's place, kind kEvent. `op`: whose clock decides what fullDocument
/// "updateLookup" sees. Views into the log are good as long as the call. Errors: NoMatchingDocument
/// 47 (a required image that is not there); the storage's.
Result<void> AppendChangeEvents(const ChangeStreamSpec& spec, const ChangeStreamFilter& filter,
                                Storage& storage, Operation& op, const ImageLife& images,
                                const LogUnit& unit, const LogRecord& record, StreamPosition at,
                                std::vector<ChangeEvent>* out);

/// `updateDescription` of a diff as storage/write/document_diff.h writes it. `expanded`: with
/// disambiguatedPaths.
void AppendUpdateDescription(BsonView diff, bool expanded, BsonBuilder& out);

}  // namespace mayfly
