#include <functional>
#include <unordered_set>

#include "protocol/seeded_hash.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/session_store.h"
#include "server/net/connection.h"

namespace mayfly {

namespace {

/// Whether it is an array of no more than SessionRegistry::kMaxIds. `command` is the array's field
/// as well.
Result<void> CheckList(std::string_view command, BsonValue v) {
  if (!v.IsArray())
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field '" + std::string(command) + "' is the wrong type '" +
                     std::string(BsonTypeName(v.type())) + "', expected type 'array'"};
  if (v.Document().Count() > static_cast<int>(SessionRegistry::kMaxIds))
    return Error{ErrorCode::kBadValue, "BSON field '" + std::string(command) +
                                           "' has more than the " +
                                           std::to_string(SessionRegistry::kMaxIds) +
                                           " sessions it may have: send the others after them"};
  return Ok();
}

/// [{id: UUID}, …] as 16-byte ids.
Result<std::vector<std::string_view>> ReadIds(std::string_view command, BsonValue v) {
  MAYFLY_TRY(CheckList(command, v));
  std::vector<std::string_view> ids;
  for (const BsonElement& e : v.Document()) {
    const std::string where = std::string(command) + "." + std::string(e.name);
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, "BSON field '" + where + "' is the wrong type '" +
                                                 std::string(BsonTypeName(e.value.type())) +
                                                 "', expected type 'object'"};
    const BsonValue id = e.value.Document()["id"];
    if (id.missing())
      return Error{ErrorCode::kMissingField,
                   "BSON field '" + where + ".id' is missing but a required field"};
    if (!id.Is(BsonType::kBinary) || id.BinarySubtype() != 4 || id.BinaryData().size() != 16)
      return Error{ErrorCode::kTypeMismatch, "BSON field '" + where + ".id' must be a UUID"};
    ids.push_back(id.BinaryData());
  }
  return ids;
}

std::string_view ClientAddress(const CommandContext& ctx) {
  return ctx.client != nullptr ? std::string_view(ctx.client->address) : std::string_view();
}

Result<void> StartSession(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(SessionPtr s, ctx.server.sessions().Start(ctx.op.now, ClientAddress(ctx)));
  {
    BsonBuilder id = reply.OpenDocument("id");
    id.AppendBinary("id", 4, s->id());
  }
  reply.Append("timeoutMinutes",
               static_cast<int32_t>(ctx.server.settings().local_session_timeout_minutes.load()));
  return Ok();
}

Result<void> RefreshSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(auto ids, ReadIds(req.name, req.fields[0].value));
  for (std::string_view id : ids) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    MAYFLY_TRY(ctx.server.sessions().Use(id, ctx.op.now, ClientAddress(ctx)));
  }
  return Ok();
}

/// endSessions comes at the end of every client: the operation that carries it may itself belong to
/// one of the sessions.
Result<void> EndSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(auto ids, ReadIds(req.name, req.fields[0].value));
  for (std::string_view id : ids) {
    // A session may have a great many cursors.
    MAYFLY_TRY(ctx.op.CheckInterruptNow());
    ctx.server.sessions().End(id);
  }
  return RemoveSessionRecords(ctx.server, ctx.op, ids);
}

Result<void> RefreshCacheNow(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  return RefreshSessionRecords(ctx.server, ctx.op);
}

Result<void> ReapCacheNow(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(SweepTransactions(ctx.server, ctx.op,
                               ctx.server.settings().local_session_timeout_minutes * 60'000));
  return Ok();
}

/// Stops the running operations and closes the cursors of the sessions that `of` is true for. The
/// operation that asks goes on, whatever its own session.
void KillOf(CommandContext& ctx, const std::function<bool(std::string_view id)>& of) {
  ctx.server.cursors().KillSessions(of);
  ctx.server.operations().KillWhere(
      [&](const ClientSlot::View& v) {
        return !v.session.empty() && &v.slot != ctx.client && of(v.session);
      },
      ErrorCode::kInterrupted);
}

void KillAll(CommandContext& ctx) {
  KillOf(ctx, [](std::string_view) { return true; });
}

Result<void> KillSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(auto ids, ReadIds(req.name, req.fields[0].value));
  // An empty list: every session of the user, and without access control all are one user's.
  if (ids.empty()) {
    KillAll(ctx);
    return Ok();
  }
  const ClientViewSet wanted(ids.begin(), ids.end());
  KillOf(ctx, [&](std::string_view id) { return wanted.contains(id); });
  return Ok();
}

Result<void> KillAllSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  const BsonValue v = req.fields[0].value;
  MAYFLY_TRY(CheckList(req.name, v));
  if (v.Document().empty()) {
    KillAll(ctx);
    return Ok();
  }
  // {user, db}: sessions of users, of whom there are none.
  for (const BsonElement& e : v.Document())
    if (!e.value.IsDocument() || !e.value.Document()["user"].IsString() ||
        !e.value.Document()["db"].IsString())
      return Error{ErrorCode::kMissingField, "killAllSessions takes documents {user, db}"};
  return Ok();
}

Result<void> KillAllSessionsByPattern(CommandContext& ctx, const CommandRequest& req,
                                      BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  const BsonValue v = req.fields[0].value;
  MAYFLY_TRY(CheckList(req.name, v));
  bool all = v.Document().empty();
  ClientViewSet wanted;
  for (const BsonElement& e : v.Document()) {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, "killAllSessionsByPattern takes documents"};
    ArgReader pattern("KillAllSessionsByPatternItem", e.value.Document());
    const auto lsid = pattern.OptDocument("lsid");
    const BsonValue uid = pattern.Any("uid");
    pattern.OptArray("users");
    pattern.OptArray("roles");
    MAYFLY_TRY(pattern.Finish());
    if (lsid) {
      const BsonValue id = (*lsid)["id"];
      if (!id.Is(BsonType::kBinary) || id.BinaryData().size() != 16)
        return Error{ErrorCode::kTypeMismatch, "BSON field 'lsid.id' must be a UUID"};
      wanted.insert(id.BinaryData());
    } else if (uid.missing()) {
      all = true;
    }  // a uid names a user, of whom there are none
  }
  KillOf(ctx, [&](std::string_view id) { return all || wanted.contains(id); });
  return Ok();
}

}  // namespace

void RegisterSessionCommands(CommandRegistry& registry) {
  constexpr uint32_t kFlags = kSecondaryOk | kNoAuth;
  registry.Add({.name = "startSession",
                .flags = kFlags,
                .help = "Starts a logical session.",
                .run = &StartSession});
  registry.Add({.name = "refreshSessions",
                .flags = kFlags | kApiV1 | kWorker,
                .help = "Keeps sessions alive: [{id}, …].",
                .run = &RefreshSessions});
  registry.Add({.name = "endSessions",
                .flags = kFlags | kApiV1 | kWorker,
                .help = "Ends sessions and closes their cursors: [{id}, …].",
                .run = &EndSessions});
  registry.Add({.name = "killSessions",
                .flags = kFlags | kApiV1 | kWorker,
                .help = "Ends the operations and cursors of sessions: [{id}, …].",
                .run = &KillSessions});
  registry.Add({.name = "killAllSessions",
                .flags = kFlags | kWorker,
                .help = "Ends the operations and cursors of all sessions, or of users' sessions: "
                        "[{user, db}, …].",
                .run = &KillAllSessions});
  registry.Add({.name = "killAllSessionsByPattern",
                .flags = kFlags | kWorker,
                .help = "Ends the operations and cursors of the sessions that match.",
                .run = &KillAllSessionsByPattern});
  registry.Add({.name = "refreshLogicalSessionCacheNow",
                .flags = kFlags | kWorker,
                .help = "Writes the sessions in use to config.system.sessions now.",
                .run = &RefreshCacheNow});
  registry.Add({.name = "reapLogicalSessionCacheNow",
                .flags = kFlags | kWorker,
                .help = "Forgets what was kept for retries of sessions that are gone.",
                .run = &ReapCacheNow});
}

}  // namespace mayfly
