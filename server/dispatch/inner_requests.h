#pragma once
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/large_memory.h"
#include "server/dispatch/command.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// A command that stands in another one, ready to be decided about and to be run.
struct InnerRequest {
  BsonDocument made;  ///< the bytes of a command that the outer one only describes; else empty
  CommandRequest request;
  BsonDocument read_concern;  ///< that of explain together with this one's; else empty
};

/// One entry of the oplog as applyOps takes it; its other fields (ts, t, v, wall, lsid …) concern
/// its origin only. Views live as long as the request.
struct OplogEntry {
  enum class Kind : uint8_t { kInsert, kUpdate, kDelete, kCommand, kNoop } kind = Kind::kNoop;
  std::string_view db, collection;  ///< kCommand: collection is "$cmd"
  BsonView o, o2;
  std::optional<Uuid> uuid;
  // Of kCommand, one of three; none: there is nothing to do.
  std::unique_ptr<InnerRequest> command;
  std::vector<OplogEntry> nested;  ///< the command is an applyOps
  std::unique_ptr<Error> refused;  ///< no command that applyOps knows, or one that cannot be read
};

/// The requests within a request: of explain one, of applyOps one for each entry that is a command.
/// They are made once, by Of. What a privilege function decides about is therefore the same object
/// that the command runs: two readers of the same bytes could see different commands in them.
struct InnerRequests {
  /// Those of `req`, made when they are first asked for; they live as long as it, until it is
  /// parsed again. In time that the request bounds; large ones can be interrupted where a ParseWork
  /// is around the call, and are charged (large_memory). The thread that has the request.
  static const InnerRequests& Of(const CommandRequest& req);

  /// What ended the reading, and the command's answer before it does anything: the errors of
  /// ParseCommandFields and ArgReader, of applyOps also FailedToParse 9, InvalidNamespace 73,
  /// NoSuchKey 4; 146; those of an interrupt. Nothing else is set then.
  std::optional<Error> error;
  std::unique_ptr<InnerRequest> explained;  ///< null: explain's first field is no command
  std::vector<OplogEntry> entries;          ///< of applyOps

 private:
  Result<void> ReadExplained(const CommandRequest& req);
  Result<void> ReadEntries(BsonView list, std::vector<OplogEntry>& out);
  Result<OplogEntry> ReadEntry(BsonView doc);
  Result<void> ReadCommand(OplogEntry& entry);
  /// Charges `bytes` more. Errors: 146.
  Result<void> Made(size_t bytes);

  size_t bytes_ = 0;
  large_memory::Hold hold_;
};

}  // namespace mayfly
