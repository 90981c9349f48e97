#include "replication/replica_set.h"
#include "security/restrictions.h"
#include "server/access/login.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/config.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"

namespace mayfly {

namespace {
/// Whether clusterIpSourceAllowlist, which was checked at the start, lets members come from there.
/// `remote`: "ip:port".
bool MemberMayComeFrom(BsonView options, std::string_view remote) {
  const BsonValue security = options["security"];
  const BsonValue list =
      security.IsDocument() ? security.Document()["clusterIpSourceAllowlist"] : BsonValue();
  if (list.missing()) return true;
  const std::optional<IpAddress> address = OriginOf(remote, {}).client;
  if (!address) return false;
  const auto one_of = [&](std::string_view text) {  // "a, b/8"
    for (size_t at = 0; at <= text.size();) {
      const size_t comma = std::min(text.find(',', at), text.size());
      std::string_view one = text.substr(at, comma - at);
      one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
      one = one.substr(0, one.find_last_not_of(' ') + 1);
      const Result<AddressRange> range = ParseAddressRange(one);
      if (range && range.value().Contains(*address)) return true;
      at = comma + 1;
    }
    return false;
  };
  if (list.IsString()) return one_of(list.String());
  for (const BsonElement& e : list.Document())
    if (one_of(e.value.String())) return true;
  return false;
}

/// Another member asks for the connection. Who it is, it proves afterwards
/// (replication/member_link.h): a stranger gets no further than the first frame.
Result<void> MemberStream(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  ReplicaSet* set = ctx.data.replica_set();
  if (set == nullptr)
    return Error{ErrorCode::kNoReplicationEnabled,
                 "not running with --replSet: start this server with the name of the set"};
  if (ctx.connection == nullptr || ctx.connection->unix_socket())
    return Error{ErrorCode::kIllegalOperation, "members talk over TCP"};
  if (!MemberMayComeFrom(ctx.server.config().parsed.view(), ctx.client->address))
    return Error{ErrorCode::kAuthenticationFailed,
                 "members may not connect from this address: see clusterIpSourceAllowlist"};
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
