#include <boost/asio/use_awaitable.hpp>

#include "server/dispatch/authorization.h"
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
  const UserAccess* access = c.login.access.get();
  s.ctx->access = access != nullptr ? access : &NobodysAccess();
  s.op->user_roles = &s.ctx->access->role_documents;
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

Awaitable<Result<void>> Dispatcher::ReadUserAgain(Connection& c, RequestState& s) {
  co_await s.ctx->MoveToWorker();
  Result<void> read = Ok();
  try {
    read = c.RefreshLogin(*s.ctx);
  } catch (...) {
    read = Unexpected(s);
  }
  co_await s.ctx->MoveToIo();
  co_return read;
}

Result<void> Connection::RefreshLogin(CommandContext& ctx) {
  AccessControl& access = ctx.server.access();
  if (login.access == nullptr || login.access->generation == access.users().generation())
    return Ok();
  MAYFLY_TRY(const std::string_view ended, mayfly::RefreshLogin(access, login, login_origin()));
  if (!ended.empty()) LogOut(ended);
  if (ctx.access == nullptr) return Ok();
  ctx.access = login.access != nullptr ? login.access.get() : &NobodysAccess();
  ctx.op.user_roles = &ctx.access->role_documents;
  return Ok();
}

}  // namespace mayfly
