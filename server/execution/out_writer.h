#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/dispatch/expiry_services.h"
#include "server/execution/write_ops.h"

namespace mayfly {

/// Where $out writes to: a temporary collection that takes its target's place in the end. A
/// collection or time series that is there keeps its options, its indexes and what was said about
/// its rules of expiry. One thread. Begin, Write …, Commit; whatever is not committed is dropped.
class OutWriter {
 public:
  OutWriter(ExpiryServices& server, bool bypass_validation)
      : server_(server), bypass_validation_(bypass_validation) {}
  ~OutWriter() { Abandon(); }
  OutWriter(const OutWriter&) = delete;
  OutWriter& operator=(const OutWriter&) = delete;

  /// Makes the temporary collection. `series`: the options of the time series that it is to be, as
  /// `create` takes them; nothing: what is there stays of its kind. Errors: InvalidOptions 72 when
  /// the one that is there is no time series, or one with other options; those of OpenCollection
  /// and of Catalog's changes.
  Result<void> Begin(Operation& op, std::string_view db, std::string_view collection,
                     std::optional<BsonView> series);
  /// Errors: of the first document that cannot be stored.
  Result<void> Write(std::span<const BsonView> documents);
  /// Puts it in the place of the target, in one step. Errors: NamespaceNotFound 26 when somebody
  /// has dropped it, those of Catalog::Rename and PutSeries.
  Result<void> Commit(Operation& op);
  void Abandon();

 private:
  Result<CollectionInfoPtr> Create(Operation& op, const CollectionInfo* old);
  Result<CollectionInfoPtr> CreateSeries(Operation& op, const CollectionInfo* old,
                                         std::optional<BsonView> given);
  Result<void> CopyIndexes(Operation& op, const CollectionInfo& from, const CollectionInfo& to);

  ExpiryServices& server_;
  const bool bypass_validation_;
  std::optional<WriteCommand> out_;
  std::string db_, name_, target_;
};

}  // namespace mayfly
