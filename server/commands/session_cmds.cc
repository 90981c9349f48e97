#include <functional>

#include "protocol/seeded_hash.h"
#include "query/expression/parse_work.h"
#include "server/access/login.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/session_store.h"
#include "server/execution/transactions.h"
#include "server/net/connection.h"
#include "server/privileges/privileges.h"

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

std::string_view ClientAddress(const CommandContext& ctx) {
  return ctx.client != nullptr ? std::string_view(ctx.client->address) : std::string_view();
}

/// Sessions named by their ids alone are the client's own.
std::string_view OwnDigest(const CommandContext& ctx) {
  return ctx.access != nullptr && ctx.connection != nullptr
             ? std::string_view(ctx.connection->login.digest)
             : std::string_view();
}

/// The key of {id: UUID, uid: digest}. Another user's needs `killAnySession`; `killing`: may name
/// one at all.
Result<std::string> ReadKey(const CommandContext& ctx, const std::string& where, BsonView lsid,
                            bool killing) {
  MAYFLY_TRY(ArgReader(where, lsid).FinishLoose());  // none of them is there twice
  const BsonValue id = lsid["id"], uid = lsid["uid"];
  if (id.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field '" + where + ".id' is missing but a required field"};
  if (!id.Is(BsonType::kBinary) || id.BinarySubtype() != 4 || id.BinaryData().size() != 16)
    return Error{ErrorCode::kTypeMismatch, "BSON field '" + where + ".id' must be a UUID"};
  std::string_view digest = OwnDigest(ctx);
  if (!uid.missing() && ctx.access != nullptr) {
    if (!uid.Is(BsonType::kBinary) || uid.BinaryData().size() != kSessionUidBytes)
      return Error{ErrorCode::kTypeMismatch,
                   "BSON field '" + where + ".uid' must be binary data of 32 bytes"};
    if (uid.BinaryData() != digest &&
        !(killing && ctx.access->privileges.AllowsOnCluster({Action::killAnySession})))
      return Error{ErrorCode::kUnauthorized,
                   "not authorized to use another user's session in '" + where + "'"};
    digest = uid.BinaryData();
  }
  char buffer[kSessionKeyBytes];
  return std::string(SessionKey(id.BinaryData(), digest, buffer));
}

/// [{id: UUID}, …] as sessions' keys.
Result<std::vector<std::string>> ReadKeys(const CommandContext& ctx, std::string_view command,
                                          BsonValue v, bool killing = false) {
  MAYFLY_TRY(CheckList(command, v));
  std::vector<std::string> keys;
  for (const BsonElement& e : v.Document()) {
    const std::string where = std::string(command) + "." + std::string(e.name);
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, "BSON field '" + where + "' is the wrong type '" +
                                                 std::string(BsonTypeName(e.value.type())) +
                                                 "', expected type 'object'"};
    MAYFLY_TRY(std::string key, ReadKey(ctx, where, e.value.Document(), killing));
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<void> StartSession(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(SessionPtr s,
             ctx.data.sessions().Start(ctx.op.now, ClientAddress(ctx), OwnDigest(ctx)));
  {
    BsonBuilder id = reply.OpenDocument("id");
    id.AppendBinary("id", 4, SessionUuid(s->id()));
  }
  reply.Append("timeoutMinutes",
               static_cast<int32_t>(ctx.data.settings().local_session_timeout_minutes.load()));
  return Ok();
}

Result<void> RunRefreshSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(auto keys, ReadKeys(ctx, req.name, req.fields[0].value));
  for (const std::string& key : keys) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    MAYFLY_TRY(ctx.data.sessions().Use(key, ctx.op.now, ClientAddress(ctx)));
  }
  return Ok();
}

/// endSessions comes at the end of every client: the operation that carries it may itself belong to
/// one of the sessions.
Result<void> EndSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(auto keys, ReadKeys(ctx, req.name, req.fields[0].value));
  // Sessions belong to users: before a login there are none.
  if (ctx.connection != nullptr && ctx.connection->BeforeLogin()) return Ok();
  for (const std::string& key : keys) {
    // A session may have a great many cursors.
    MAYFLY_TRY(ctx.op.CheckInterruptNow());
    ctx.data.sessions().End(key);
  }
  return RemoveSessionRecords(ctx.data, ctx.op, keys);
}

Result<void> RefreshCacheNow(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  return RefreshSessionRecords(ctx.expiry, ctx.op);
}

Result<void> ReapCacheNow(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(SweepTransactions(ctx.data, ctx.op,
                               ctx.data.settings().local_session_timeout_minutes * 60'000));
  return Ok();
}

/// Stops the running operations and closes the cursors of the sessions that `of` is true for, by
/// their keys. The operation that asks goes on, whatever its own session.
void KillOf(CommandContext& ctx, const std::function<bool(std::string_view key)>& of) {
  ctx.data.cursors().KillSessions(of);
  if (TransactionsOf(ctx.data) != nullptr) TransactionsOf(ctx.data)->AbortSessions(of);
  ctx.server.operations().KillWhere(
      [&](const ClientSlot::View& v) {
        return !v.session.empty() && &v.slot != ctx.client && of(v.session);
      },
      ErrorCode::kInterrupted);
}

Result<void> KillSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  MAYFLY_TRY(auto keys, ReadKeys(ctx, req.name, req.fields[0].value, true));
  // An empty list: every session of the user, and without access control all are one user's.
  if (keys.empty()) {
    const std::string own(OwnDigest(ctx));
    KillOf(ctx, [&](std::string_view key) { return SessionUid(key) == own; });
    return Ok();
  }
  const ClientStringSet wanted(keys.begin(), keys.end());
  KillOf(ctx, [&](std::string_view key) { return wanted.contains(std::string(key)); });
  return Ok();
}

Result<void> KillAllSessions(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  const BsonValue v = req.fields[0].value;
  MAYFLY_TRY(CheckList(req.name, v));
  const bool all = v.Document().empty();
  ClientStringSet users;  // their digests; without access control no session has one
  for (const BsonElement& e : v.Document()) {
    if (!e.value.IsDocument() || !e.value.Document()["user"].IsString() ||
        !e.value.Document()["db"].IsString())
      return Error{ErrorCode::kMissingField, "killAllSessions takes documents {user, db}"};
    MAYFLY_TRY(UserName name, ParseUserName(e.value, req.db));
    users.insert(UserDigestOf(name));
  }
  KillOf(ctx,
         [&](std::string_view key) { return all || users.contains(std::string(SessionUid(key))); });
  return Ok();
}

/// The combined meaning of killAllSessionsByPattern's patterns.
struct SessionPatterns {
  bool all = false;
  ClientStringSet ids;      ///< lsid.id, of any user
  ClientStringSet digests;  ///< every session of these users
  ClientStringSet keys;     ///< one session of one user
  bool Match(std::string_view key) const {
    return all || ids.contains(std::string(SessionUuid(key))) ||
           digests.contains(std::string(SessionUid(key))) || keys.contains(std::string(key));
  }
};

/// A user's digest, once in a vector that doubles and once in a set.
constexpr size_t kDigestBytes = 256;

Result<void> ReadPattern(const CommandRequest& req, BsonValue value, SessionPatterns* out) {
  if (!value.IsDocument())
    return Error{ErrorCode::kTypeMismatch, "killAllSessionsByPattern takes documents"};
  ArgReader in("KillAllSessionsByPatternItem", value.Document());
  const auto lsid = in.OptDocument("lsid");
  BsonValue uid = in.Any("uid");
  const auto users = in.OptArray("users");
  const auto roles = in.OptArray("roles");  // whom a router acts for; a member looks at users
  MAYFLY_TRY(in.Finish());
  if (roles)
    for (const BsonElement& e : *roles) {
      MAYFLY_TRY(ParseWork::Step());
      if (!e.value.IsDocument()) continue;
      MAYFLY_TRY(ArgReader("KillAllSessionsByPatternItem.roles", e.value.Document()).FinishLoose());
    }
  std::string id;
  if (lsid) {
    // Another session than the one that is named first would go on.
    MAYFLY_TRY(ArgReader("KillAllSessionsByPatternItem.lsid", *lsid).FinishLoose());
    const BsonValue v = (*lsid)["id"];
    if (!v.Is(BsonType::kBinary) || v.BinaryData().size() != kSessionIdBytes)
      return Error{ErrorCode::kTypeMismatch, "BSON field 'lsid.id' must be a UUID"};
    id = v.BinaryData();
    if (uid.missing()) uid = (*lsid)["uid"];
  }
  std::vector<std::string> digests;
  if (!uid.missing()) {
    if (!uid.Is(BsonType::kBinary) || uid.BinaryData().size() != kSessionUidBytes)
      return Error{ErrorCode::kTypeMismatch, "BSON field 'uid' must be binary data of 32 bytes"};
    digests.emplace_back(uid.BinaryData() == NobodysDigest() ? std::string_view()
                                                             : uid.BinaryData());
  }
  if (users)
    for (const BsonElement& e : *users) {
      MAYFLY_TRY(ParseWork::Step());
      ParseWork::Made(kDigestBytes);
      MAYFLY_TRY(UserName name, ParseUserName(e.value, req.db));
      digests.push_back(UserDigestOf(name));
    }
  if (id.empty()) {
    out->all = out->all || digests.empty();
    out->digests.insert(digests.begin(), digests.end());
  } else if (digests.empty()) {
    out->ids.insert(id);
  } else {
    for (const std::string& digest : digests) out->keys.insert(id + digest);
  }
  return Ok();
}

Result<void> KillAllSessionsByPattern(CommandContext& ctx, const CommandRequest& req,
                                      BsonBuilder&) {
  MAYFLY_TRY(NoArguments(req));
  const BsonValue v = req.fields[0].value;
  MAYFLY_TRY(CheckList(req.name, v));
  SessionPatterns patterns;
  patterns.all = v.Document().empty();
  for (const BsonElement& e : v.Document()) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    MAYFLY_TRY(ReadPattern(req, e.value, &patterns));
  }
  KillOf(ctx, [&](std::string_view key) { return patterns.Match(key); });
  return Ok();
}

}  // namespace

void RegisterSessionCommands(CommandRegistry& registry) {
  constexpr uint32_t kFlags = kSecondaryOk;
  registry.Add({.name = "startSession",
                .flags = kFlags,
                .help = "Starts a logical session.",
                .run = &StartSession,
                .privileges = &privileges::LoggedIn});
  registry.Add({.name = "refreshSessions",
                .flags = kFlags | kApiV1 | kWorker,
                .help = "Keeps sessions alive: [{id}, …].",
                .run = &RunRefreshSessions,
                .privileges = &privileges::LoggedIn});
  registry.Add({.name = "endSessions",
                .flags = kFlags | kNoAuth | kApiV1 | kWorker,
                .help = "Ends sessions and closes their cursors: [{id}, …].",
                .run = &EndSessions});
  registry.Add({.name = "killSessions",
                .flags = kFlags | kApiV1 | kWorker,
                .help = "Ends the operations and cursors of sessions: [{id}, …].",
                .run = &KillSessions,
                .privileges = &privileges::LoggedIn});
  registry.Add({.name = "killAllSessions",
                .flags = kFlags | kWorker,
                .help = "Ends the operations and cursors of all sessions, or of users' sessions: "
                        "[{user, db}, …].",
                .run = &KillAllSessions,
                .privileges = &privileges::OnCluster<Action::killAnySession>});
  registry.Add({.name = "killAllSessionsByPattern",
                .flags = kFlags | kWorker,
                .help = "Ends the operations and cursors of the sessions that match.",
                .run = &KillAllSessionsByPattern,
                .privileges = &privileges::KillAllSessionsByPattern});
  registry.Add({.name = "refreshLogicalSessionCacheNow",
                .flags = kFlags | kWorker,
                .help = "Writes the sessions in use to config.system.sessions now.",
                .run = &RefreshCacheNow,
                .privileges = &privileges::OnCluster<Action::killAnySession>});
  registry.Add({.name = "reapLogicalSessionCacheNow",
                .flags = kFlags | kWorker,
                .help = "Forgets what was kept for retries of sessions that are gone.",
                .run = &ReapCacheNow,
                .privileges = &privileges::OnCluster<Action::killAnySession>});
}

}  // namespace mayfly
