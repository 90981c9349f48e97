#include <algorithm>
#include <boost/asio/use_awaitable.hpp>

#include "protocol/field_once.h"
#include "query/expression/parse_work.h"
#include "server/base/login_lines.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/authorization.h"
#include "server/dispatch/inner_requests.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "server/net/dispatcher.h"

namespace mayfly {

/// Whether a client from this machine may do it, because no user exists: create the first user or
/// a role, and initiate their set (manual: "Localhost Exception", "Deploy Replica Set With Keyfile
/// Authentication").
static bool IsOfLocalhostException(AccessControl& access, const CommandRow& row,
                                   const CommandRequest& req) {
  if (req.db != "admin") return false;
  if (row.name == "createUser" || row.name == "createRole") return access.LocalhostMayMakeUsers();
  return (row.name == "replSetInitiate" || row.name == "replSetGetStatus") &&
         access.LocalhostExceptionOpen();
}

Result<void> Dispatcher::Authorize(Connection& c, RequestState& s) {
  const CommandRow& row = *s.row;
  RunFor(*s.op, c.login.access);
  const UserAccess* const access = c.login.access.get();
  if ((row.flags & kNoAuth) != 0) return Ok();
  if (access == nullptr) {
    if (c.FromThisMachine() && IsOfLocalhostException(server_.access(), row, s.request))
      return Ok();
    return Error{ErrorCode::kUnauthorized,
                 "Command " + std::string(row.name) + " requires authentication"};
  }
  if (row.privileges != nullptr)
    return row.privileges({s.request, access->privileges, &access->user.name, &access->user.roles});
  // A row without its function is a bug: only users with all privileges may run it.
  if (access->privileges.Allows(Resource::Any(), ActionSet::All())) return Ok();
  return Error{ErrorCode::kUnauthorized, "not authorized on " + std::string(s.request.db) +
                                             " to execute command " +
                                             ShortCommandText(s.request.body)};
}

Result<std::string_view> Dispatcher::SessionId(const Connection& c, const RequestState& s) {
  std::string_view id;
  // The session of one of them would be used, and that of the other one looked at.
  constexpr std::string_view kFields[] = {"id", "uid", "txnNumber", "txnUUID"};
  unsigned seen = 0;
  for (const BsonElement& e : s.request.generic.lsid.Document()) {
    MAYFLY_TRY(FieldOnce("lsid", kFields, e.name, &seen));
    if (e.name == "id") {
      if (!e.value.Is(BsonType::kBinary) || e.value.BinarySubtype() != 4)
        return Error{ErrorCode::kTypeMismatch, "BSON field 'lsid.id' is the wrong type '" +
                                                   std::string(BsonTypeName(e.value.type())) +
                                                   "', expected a UUID"};
      if (e.value.BinaryData().size() != kSessionIdBytes)
        return Error{ErrorCode::kInvalidUUID,
                     "uuid must be a 16-byte binary field with UUID (4) subtype"};
      id = e.value.BinaryData();
    } else if (e.name == "uid" && s.ctx->access != nullptr) {
      if (!e.value.Is(BsonType::kBinary) || e.value.BinaryData() != c.login.digest)
        return Error{ErrorCode::kUnauthorized,
                     "lsid.uid is another user's: leave it out, sessions are those of who is "
                     "logged in"};
    } else if (e.name != "uid" && e.name != "txnNumber" && e.name != "txnUUID") {
      return Error{ErrorCode::kUnknownField,
                   "BSON field 'lsid." + ShownName(e.name) + "' is an unknown field."};
    }
  }
  if (id.empty())
    return Error{ErrorCode::kMissingField, "BSON field 'lsid.id' is missing but a required field"};
  return id;
}

std::string_view Dispatcher::DecidingSession(Connection& c, RequestState& s) {
  if ((!s.user_again && !s.decides_long) || s.request.generic.lsid.missing()) return {};
  const Result<std::string_view> id = SessionId(c, s);
  if (!id) return {};  // UseSession says why
  return server_.access().enforced() ? SessionKey(id.value(), c.login.digest, s.session_key)
                                     : id.value();
}

/// REQUIRES: the request names a session or a transaction.
Result<void> Dispatcher::UseSession(Connection& c, RequestState& s) {
  const GenericArguments& g = s.request.generic;
  // A session belongs to a user: commands before a login have none.
  if (c.BeforeLogin()) return Ok();
  if (g.lsid.missing())
    return Error{ErrorCode::kInvalidOptions,
                 g.txn_number ? "Transaction number requires a session ID to also be specified"
                              : "'autocommit' and 'startTransaction' require a transaction number"};
  MAYFLY_TRY(std::string_view id, SessionId(c, s));
  char of_user[kSessionKeyBytes];
  if (s.ctx->access != nullptr) id = SessionKey(id, c.login.digest, of_user);
  if (!c.last_session || c.last_session->id() != id || c.last_session->ended()) {
    MAYFLY_TRY(c.last_session, server_.sessions().Use(id, s.op->now, c.slot().address));
  } else {
    c.last_session->Touch(s.op->now);
  }
  s.session_use = SessionUse(c.last_session);
  // It ended in the same moment. Now that it is in use it does not end to make room.
  for (int again = 0; again < 3 && c.last_session->ended(); ++again) {
    MAYFLY_TRY(c.last_session, server_.sessions().Use(id, s.op->now, c.slot().address));
    s.session_use = SessionUse(c.last_session);
  }
  s.ctx->session = c.last_session.get();
  if (g.txn_number || g.autocommit_given || g.start_transaction) return CheckTransaction(s);
  return Ok();
}

/// Fields that API version 1 leaves out of commands it has (manual: "Stable API", parameters).
struct StrictRow {
  std::string_view command;
  std::initializer_list<std::string_view> refused;
};
static const StrictRow kStrictRows[] = {
    {"create", {"autoIndexId", "capped", "indexOptionDefaults", "max", "size", "storageEngine"}},
    {"find",
     {"awaitData", "max", "min", "noCursorTimeout", "oplogReplay", "returnKey", "showRecordId",
      "tailable"}},
};
static constexpr std::string_view kStrictIndexFields[] = {"background", "bucketSize", "sparse",
                                                          "storageEngine"};

static Error NotInV1(std::string_view command, std::string_view field) {
  return {ErrorCode::kAPIStrictError, "BSON field '" + std::string(command) + "." +
                                          std::string(field) +
                                          "' is not allowed with apiStrict:true."};
}

static Result<void> CheckStrictFields(std::string_view command, const CommandFields& fields) {
  for (const StrictRow& row : kStrictRows) {
    if (row.command != command) continue;
    for (const CommandField& f : fields)
      for (std::string_view refused : row.refused)
        if (f.name == refused && (!f.value.Is(BsonType::kBool) || f.value.Truthy()))
          return NotInV1(command, refused);
  }
  if (command != "createIndexes") return Ok();
  for (const CommandField& f : fields) {
    if (f.name != "indexes" || !f.value.IsArray()) continue;
    for (const BsonElement& index : f.value.Document()) {
      MAYFLY_TRY(ParseWork::Step());
      if (!index.value.IsDocument()) continue;
      for (std::string_view refused : kStrictIndexFields)
        if (!index.value.Document()[refused].missing())
          return NotInV1("createIndexes.indexes", refused);
      if (const BsonValue key = index.value.Document()["key"]; key.IsDocument())
        for (const BsonElement& k : key.Document())
          if (k.value.IsString() && k.value.String() == "text")
            return Error{ErrorCode::kAPIStrictError,
                         "The index type 'text' is not allowed with apiStrict:true."};
    }
  }
  return Ok();
}

/// The version that a command names, whatever the command.
static Result<void> CheckVersion(const GenericArguments& g) {
  if (g.api_version.empty()) {
    if (g.api_strict || g.api_deprecation_errors)
      return Error{LocationCode(4886600),
                   "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion"};
    return Ok();
  }
  if (g.api_version != "1") return Error{ErrorCode::kAPIVersionError, "API version must be \"1\""};
  return Ok();
}

/// What apiStrict and apiDeprecationErrors leave out.
static Result<void> CheckInVersion(const CommandRow& row, const CommandRequest& req) {
  const GenericArguments& g = req.generic;
  if (g.api_strict && !(row.flags & kApiV1))
    return Error{ErrorCode::kAPIStrictError, "Provided apiStrict:true, but the command " +
                                                 std::string(row.name) +
                                                 " is not in API Version 1"};
  if (g.api_strict) {
    MAYFLY_TRY(CheckStrictFields(row.name, req.fields));
  }
  if (g.api_deprecation_errors && (row.flags & kDeprecatedInV1))
    return Error{ErrorCode::kAPIDeprecationError,
                 "Provided apiDeprecationErrors:true, but the command " + std::string(row.name) +
                     " is deprecated in API Version 1"};
  return Ok();
}

Result<void> Dispatcher::CheckApiVersion(const RequestState& s) {
  const GenericArguments& g = s.request.generic;
  MAYFLY_TRY(CheckVersion(g));
  if (g.api_version.empty() &&
      server_.settings().require_api_version.load(std::memory_order_relaxed) &&
      !(s.row->flags & kNoAuth))
    return Error{
        LocationCode(498870),
        "The apiVersion parameter is required, please configure your MongoClient's API version"};
  return CheckInVersion(*s.row, s.request);
}

/// A document of the explained command counts as one of explain, which may have the same.
static Result<void> TakeExplained(std::string_view name, BsonValue inner, BsonValue* outer) {
  if (inner.missing()) return Ok();
  if (!outer->missing() && !outer->BinaryEquals(inner))
    return Error{ErrorCode::kInvalidOptions, "'" + std::string(name) +
                                                 "' of the explain command is another than that of "
                                                 "the command that it explains"};
  *outer = inner;
  return Ok();
}

/// Drivers put the level into the command, and the time to read after into explain: both count.
static Result<void> JoinReadConcerns(InnerRequest& within, BsonValue* outer) {
  const BsonValue inner = within.request.generic.read_concern;
  if (inner.missing() || outer->missing()) return TakeExplained("readConcern", inner, outer);
  const BsonView of_explain = outer->Document();
  // More fields than there are cannot be right, and each is looked for among the others.
  constexpr int kMostFields = 8;
  if (of_explain.Count() > kMostFields || inner.Document().Count() > kMostFields)
    return TakeExplained("readConcern", inner, outer);
  MAYFLY_TRY(ArgReader("readConcern", inner.Document()).FinishLoose());  // none is there twice
  for (const BsonElement& e : inner.Document()) {
    BsonValue same = of_explain[e.name];
    if (!same.missing()) {
      MAYFLY_TRY(TakeExplained("readConcern", e.value, &same));
    }
  }
  within.read_concern = BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : of_explain) b.Append(e);
    for (const BsonElement& e : inner.Document())
      if (of_explain[e.name].missing()) b.Append(e);
  });
  *outer = within.read_concern.view().AsValue();
  return Ok();
}

/// Sessions and transactions are those of explain. `same`: it has the argument, too, as it is here.
static Result<void> CheckOfExplain(std::string_view name, bool given, bool same) {
  if (!given || same) return Ok();
  return Error{ErrorCode::kInvalidOptions, "'" + std::string(name) +
                                               "' is an argument of the explain command, and not "
                                               "of the command that it explains"};
}

Result<void> Dispatcher::JoinExplained(RequestState& s) {
  const InnerRequests& within = InnerRequests::Of(s.request);
  if (within.error) return *within.error;
  if (within.explained == nullptr) return Ok();  // the command says what is wrong
  CommandRequest& sub = within.explained->request;
  GenericArguments &in = sub.generic, &out = s.request.generic;
  const CommandRow* const row =
      sub.name.size() > kShownName ? nullptr : server_.commands().Find(sub.name);
  MAYFLY_TRY(CheckOfExplain("lsid", !in.lsid.missing(),
                            !out.lsid.missing() && in.lsid.BinaryEquals(out.lsid)));
  MAYFLY_TRY(
      CheckOfExplain("txnNumber", in.txn_number.has_value(), in.txn_number == out.txn_number));
  MAYFLY_TRY(CheckOfExplain("autocommit", in.autocommit_given,
                            out.autocommit_given && in.autocommit == out.autocommit));
  MAYFLY_TRY(CheckOfExplain("startTransaction", in.start_transaction, out.start_transaction));
  MAYFLY_TRY(CheckOfExplain("help", in.help, out.help));
  MAYFLY_TRY(JoinReadConcerns(*within.explained, &out.read_concern));
  MAYFLY_TRY(TakeExplained("$readPreference", in.read_preference, &out.read_preference));
  MAYFLY_TRY(TakeExplained("$clusterTime", in.cluster_time, &out.cluster_time));
  if (!in.write_concern.missing()) {
    // Nothing is written: it is only one that the command could have.
    if (row != nullptr && !(row->flags & kTakesWriteConcern))
      return Error{ErrorCode::kInvalidOptions,
                   "Command " + std::string(row->name) + " does not support writeConcern"};
    if (row != nullptr && row->name == "aggregate")
      return Error{ErrorCode::kFailedToParse,
                   "Aggregation explain does not support the 'writeConcern' option"};
    MAYFLY_TRY(ParseWriteConcern(in.write_concern, server_.replica_set() != nullptr));
  }
  MAYFLY_TRY(CheckVersion(in));
  if (in.api_version.empty()) in.api_version = out.api_version;
  in.api_strict = in.api_strict || out.api_strict;
  in.api_deprecation_errors = in.api_deprecation_errors || out.api_deprecation_errors;
  if (row != nullptr) {
    MAYFLY_TRY(CheckInVersion(*row, sub));
  }
  if (in.max_time_ms != 0) {
    const int64_t end = s.start_micros + in.max_time_ms * 1000;
    // The server's default is for those who name no time.
    s.op->deadline_micros = out.max_time_ms != 0 ? std::min(s.op->deadline_micros, end) : end;
  }
  return Ok();
}

Result<void> Dispatcher::Decide(Connection& c, RequestState& s) {
  const CommandRequest& req = s.request;
  if (server_.access().enforced()) {
    MAYFLY_TRY(Authorize(c, s));
  }
  const uint32_t flags = s.row->flags;
  if ((flags & kTestOnly) && !server_.config_allows_test_commands())
    return Error{ErrorCode::kCommandNotFound,
                 "no such command: '" + std::string(req.name) + "' (it needs --testClock)"};
  if ((flags & kTestCommand) && !server_.settings().enable_test_commands)
    return Error{ErrorCode::kCommandNotFound, "no such command: '" + std::string(req.name) + "'"};
  if ((flags & kAdminOnly) && req.db != "admin")
    return Error{ErrorCode::kUnauthorized,
                 std::string(s.row->name) + " may only be run against the admin database."};
  if (server_.shutting_down())
    return Error{ErrorCode::kInterruptedAtShutdown, "interrupted at shutdown"};
  if (AuditLog* audit = server_.audit(); audit != nullptr) {
    if ((flags & kWrites) && req.db == "admin") [[unlikely]] {
      MAYFLY_TRY(s.writes_users, UsersWritten(*s.row, req));
    }
    if (audit->watches_commands()) [[unlikely]] {
      MAYFLY_TRY(AuditAllowedCommand(*s.ctx, *s.row, req, s.writes_users));
    }
  }
  const GenericArguments& g = req.generic;
  if (!g.api_version.empty() || g.api_strict || g.api_deprecation_errors ||
      server_.settings().require_api_version.load(std::memory_order_relaxed)) {
    MAYFLY_TRY(CheckApiVersion(s));
  }
  if (s.row->name == "explain") [[unlikely]]
    return JoinExplained(s);
  return Ok();
}

bool Dispatcher::DecidesLong(Connection& c, const RequestState& s) const {
  if (s.row == nullptr || s.header.length <= kShortDecision || c.BeforeLogin()) return false;
  const AuditLog* const audit = server_.audit();
  // An insert is decided about by its first field, but the audit log shows its documents, too.
  if (!IsLong(s)) return audit != nullptr && audit->all_checks();
  return server_.access().enforced() || audit != nullptr || s.request.generic.api_strict;
}

/// Under a ParseWork: what is read and made of the request can be interrupted, and is charged.
Result<void> Dispatcher::DecideNow(Connection& c, RequestState& s) {
  ParseWork work(&*s.op);
  // Users may have changed while it waited for the worker. One load where they have not.
  if ((s.row->flags & kNoAuth) == 0) {
    MAYFLY_TRY(c.RefreshLogin(*s.ctx));
  }
  MAYFLY_TRY(CheckCommand(s));
  Result<void> decided = Decide(c, s);
  // One that was interrupted has not looked at all of the request.
  MAYFLY_TRY(ParseWork::Look());
  return decided;
}

Awaitable<Result<void>> Dispatcher::DecideOnWorker(Connection& c, RequestState& s) {
  co_await s.ctx->MoveToWorker();
  Result<void> decided = Ok();
  try {
    decided = DecideNow(c, s);
  } catch (...) {
    decided = Unexpected(s);
  }
  if (!decided) {
    s.request.inner.reset();              // of a large request it takes long
    s.request.generic.read_concern = {};  // may be of that (JoinReadConcerns)
  }
  co_await s.ctx->MoveToIo();
  co_return decided;
}

Result<void> Connection::RefreshLogin(CommandContext& ctx) {
  AccessControl& access = ctx.server.access();
  if (login.access == nullptr || login.access->generation == access.users().generation())
    return Ok();
  const UserAccessPtr was = login.access;
  MAYFLY_TRY(const std::string_view ended, mayfly::RefreshLogin(access, login, login_origin()));
  if (ended.empty())
    TellRolesLeftOut(ctx.server.log(), was.get(), *login.access, slot_.desc);
  else
    LogOut(ended);
  if (ctx.access == nullptr) return Ok();
  RunFor(ctx.op, login.access);
  return Ok();
}

}  // namespace mayfly
