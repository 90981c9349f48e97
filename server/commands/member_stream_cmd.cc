#include "replication/replica_set.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/net/connection.h"

namespace mayfly {

namespace {
/// Another member asks for the connection. Who it is, it proves afterwards
/// (replication/member_link.h): a stranger gets no further than the first frame.
Result<void> MemberStream(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  ReplicaSet* set = ctx.data.replica_set();
  if (set == nullptr)
    return Error{ErrorCode::kNoReplicationEnabled,
                 "not running with --replSet: start this server with the name of the set"};
  if (ctx.connection == nullptr || ctx.connection->unix_socket())
    return Error{ErrorCode::kIllegalOperation, "members talk over TCP"};
  ctx.connection->hand_over = [set](HandedConnection connection) {
    set->consensus().AdoptConnection(std::move(connection));
  };
  return Ok();
}
}  // namespace

void RegisterMemberStream(CommandRegistry& registry) {
  registry.Add({.name = "_mayflyMember",
                .flags = kNoAuth | kSecondaryOk | kAdminOnly | kNoProfile | kHidden,
                .help = "Internal: a connection between members of a replica set.",
                .run = &MemberStream});
}

}  // namespace mayfly
