#pragma once
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "link/cluster.h"
#include "link/echoes.h"
#include "link/operations.h"
#include "link/options.h"
#include "link/selection.h"

namespace mayfly {

/// The filter that names a document at the target; with a version field, an older one than
/// `version` (a missing version: any). `or_equal`: also the same.
BsonDocument DocumentFilter(BsonValue id, std::string_view version_field, BsonValue version,
                            bool or_equal);

/// Turns the source's documents and events into operations. Threads: one.
class EventTranslator {
 public:
  EventTranslator(const LinkOptions& options, const Selection& selection, Cluster& source)
      : options_(options), selection_(selection), source_(source) {}

  /// A change of a collection or database as commands for the target, or of documents.
  struct Change {
    std::vector<LinkOperation> operations;
    /// Commands to run behind the operations, with the database of each.
    std::vector<std::pair<std::string, BsonDocument>> commands;
    /// Collections to copy again: one that was renamed into the selection, or while it was copied.
    std::vector<std::string> copy;
  };
  /// Appends the operations of an event. `transient` errors of the source: from look-ups of rules
  /// (of a source that does not say what a rule was when a document expired),
  /// and ProtocolError 17 for an event that cannot be understood.
  ClusterResult<void> Append(BsonView event, Change* out);
  /// A document as it is copied; nullopt: it has no version that could be compared, or no `_id`.
  std::optional<LinkOperation> Put(std::string_view ns, BsonView document, BsonValue expire_at,
                                   LinkOperation::Why why) const;
  /// A document that cannot be sent, because it has no version or no `_id`, or whose expiry cannot:
  /// nothing says which date of it had expired.
  struct Unusable {
    std::string ns;
    BsonDocument id;  ///< {id: value}
    std::string why;
  };
  /// Those since the last call.
  std::vector<Unusable> TakeRefused() { return std::exchange(refused_, {}); }

  /// "No deadline" is sent explicitly, because both sides have deadlines. Otherwise the target
  /// could derive a deadline from a field (expiry.field).
  bool says_none = false;

  /// What the link in the other direction has written; with a version field, else null.
  Echoes* echoes = nullptr;
  /// Whether its documents are not sent back either. The target cannot tell them from those that it
  /// has deleted meanwhile, because it keeps no tombstones.
  bool without_echoes = false;

  /// Time series ("db.collection"). Neither they nor changes under their names are carried.
  std::set<std::string> not_carried;
  /// The cluster time at which the last copy had ended. A copy may have seen a collection under its
  /// old or its new name if it was renamed before then, or under neither.
  uint64_t copied_until = 0;

 private:
  ClusterResult<void> AppendExpiry(std::string_view ns, BsonView event, Change* out);
  /// The field of a TTL index as it is now, and the date in it of a document with that deadline;
  /// nullopt: there is no such index any more.
  ClusterResult<std::optional<std::pair<std::string, Instant>>> RuleOf(std::string_view ns,
                                                                       std::string_view index,
                                                                       int64_t deadline);
  void AppendDefinition(std::string_view type, std::string_view db, std::string_view collection,
                        BsonView event, Change* out);
  void AppendDrop(std::string_view type, std::string_view db, std::string_view collection,
                  BsonView event, Change* out);

  const LinkOptions& options_;
  const Selection& selection_;
  Cluster& source_;
  mutable std::vector<Unusable> refused_;
  /// The TTL indexes of the collection that an expiry event was about last.
  struct Rules {
    std::string ns;
    BsonDocument indexes;
  } rules_;
};

/// Follows what changes at the source. Threads: one.
class ChangeReader {
 public:
  ChangeReader(const LinkOptions& options, Cluster& source, bool mayfly)
      : options_(options), source_(source), mayfly_(mayfly) {}
  /// Starts after a resume token, or with the operation at `time`. Errors: those of the source;
  /// ChangeStreamHistoryLost 286.
  ClusterResult<void> Open(BsonView token, uint64_t time);
  /// The next events; waits for a second at most. None: there were none. `token`: to continue after
  /// them.
  ClusterResult<std::vector<BsonDocument>> Next(BsonDocument* token);
  void Close();

 private:
  ClusterResult<std::vector<BsonDocument>> Take(BsonView reply, BsonDocument* token);
  const LinkOptions& options_;
  Cluster& source_;
  const bool mayfly_;
  int64_t cursor_ = 0;
  std::vector<BsonDocument> first_;
  BsonDocument first_token_;
  std::string fragments_;       ///< the fields of a large event that came so far
  int64_t fragments_read_ = 0;  ///< how many fragments these are
};

}  // namespace mayfly
