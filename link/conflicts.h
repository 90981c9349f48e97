#pragma once
#include "link/change_reader.h"
#include "link/target_writer.h"

namespace mayfly {

/// Tries documents again that the target refused for a value of a unique index. Events carry
/// documents as they are now, not as they were: two documents that exchange their values each meet
/// the other's old value at the target, and would be refused forever. Threads: one.
class ConflictSolver {
 public:
  /// `deadlines`: the source shows them.
  ConflictSolver(const LinkOptions& options, const Selection& selection, Cluster& source,
                 Cluster& target, TargetWriter& writer, const EventTranslator& translator,
                 bool deadlines)
      : options_(options),
        selection_(selection),
        source_(source),
        target_(target),
        writer_(writer),
        translator_(translator),
        deadlines_(deadlines) {}

  /// The latest 100 of those in kLinkDatabase.refused. A document of the target that has the value
  /// only because it is older than the source's makes room, and comes back as the source has it:
  /// it is named among the refused before it goes, so that this survives any end of the link.
  /// Written documents are no longer named; conflicts with the present source remain.
  ClusterResult<void> Run();

 private:
  struct Row {
    std::string ns;
    BsonDocument id;  ///< {id: value}
  };
  ClusterResult<std::vector<Row>> Read();
  /// Whether something has changed.
  ClusterResult<bool> TryAgain(const Row& row);
  /// As the source has it now; none if it is gone, or is not sent.
  ClusterResult<std::optional<LinkOperation>> Current(std::string_view ns, BsonValue id);
  /// The target's error; empty: written.
  ClusterResult<BsonDocument> Put(const LinkOperation& op);
  ClusterResult<BsonDocument> Holder(std::string_view ns, BsonView key);
  ClusterResult<void> Remember(std::string_view ns, BsonValue id);
  ClusterResult<void> Forget(const Row& row);

  const LinkOptions& options_;
  const Selection& selection_;
  Cluster &source_, &target_;
  TargetWriter& writer_;
  const EventTranslator& translator_;
  const bool deadlines_;
};

}  // namespace mayfly
