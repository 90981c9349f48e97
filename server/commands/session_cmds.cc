#include "server/arg_reader.h"
#include "server/command.h"
#include "server/connection.h"
#include "server/retryable_writes.h"
#include "server/server_context.h"
#include "server/session_store.h"

namespace mayfly {

namespace {

/// [{id: UUID}, …] as 16-byte ids. `command` is the array's field as well.
Result<std::vector<std::string_view>> ReadIds(std::string_view command, BsonValue v) {
  if (!v.IsArray())
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field '" + std::string(command) + "' is the wrong type '" +
                     std::string(BsonTypeName(v.type())) + "', expected type 'array'"};
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

Result<void> StartSession(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(SessionPtr s, ctx.server.sessions().Start(ctx.op.now));
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
    MAYFLY_TRY(ctx.server.sessions().Use(id, ctx.op.now));
  }
  return Ok();
}

/// endSessions comes at the end of every client: the operation that carries it may itself belong to
/// one of the sessions.
Result<void> EndSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(auto ids, ReadIds(req.name, req.fields[0].value));
  for (std::string_view id : ids) ctx.server.sessions().End(id);
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

Result<void> KillSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(auto ids, ReadIds(req.name, req.fields[0].value));
  std::vector<std::string> all;
  if (ids.empty()) {
    // An empty list: every session of the user, and without access control all are one user's.
    for (auto& [id, last] : ctx.server.sessions().List()) all.push_back(id);
    ids.assign(all.begin(), all.end());
  }
  for (std::string_view id : ids) {
    ctx.server.cursors().KillSession(id);
    ctx.server.operations().KillSession(id);
  }
  return Ok();
}

Result<void> KillAll(CommandContext& ctx) {
  for (auto& [id, last] : ctx.server.sessions().List()) {
    ctx.server.cursors().KillSession(id);
    ctx.server.operations().KillSession(id);
  }
  return Ok();
}

Result<void> KillAllSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  const BsonValue v = req.fields[0].value;
  if (!v.IsArray())
    return Error{ErrorCode::kTypeMismatch, "BSON field 'killAllSessions' is the wrong type '" +
                                               std::string(BsonTypeName(v.type())) +
                                               "', expected type 'array'"};
  if (v.Document().empty()) return KillAll(ctx);
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
  if (!v.IsArray())
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field 'killAllSessionsByPattern' is the wrong type '" +
                     std::string(BsonTypeName(v.type())) + "', expected type 'array'"};
  if (v.Document().empty()) return KillAll(ctx);
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
      ctx.server.cursors().KillSession(id.BinaryData());
      ctx.server.operations().KillSession(id.BinaryData());
    } else if (uid.missing()) {
      MAYFLY_TRY(KillAll(ctx));
    }  // a uid names a user, of whom there are none
  }
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
                .flags = kFlags | kApiV1,
                .help = "Keeps sessions alive: [{id}, …].",
                .run = &RefreshSessions});
  registry.Add({.name = "endSessions",
                .flags = kFlags | kApiV1 | kWorker,
                .help = "Ends sessions and closes their cursors: [{id}, …].",
                .run = &EndSessions});
  registry.Add({.name = "killSessions",
                .flags = kFlags | kApiV1,
                .help = "Ends the operations and cursors of sessions: [{id}, …].",
                .run = &KillSessions});
  registry.Add({.name = "killAllSessions",
                .flags = kFlags,
                .help = "Ends the operations and cursors of all sessions, or of users' sessions: "
                        "[{user, db}, …].",
                .run = &KillAllSessions});
  registry.Add({.name = "killAllSessionsByPattern",
                .flags = kFlags,
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
