#include <boost/asio/use_awaitable.hpp>

#include "server/dispatch/authorization.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "server/net/dispatcher.h"

namespace mayfly {

/// What a client from this machine may do while there is no user yet: make the first, or a role,
/// and initiate the set that they are to be in (manual: "Localhost Exception", "Deploy Replica Set
/// With Keyfile Authentication").
static bool IsOfLocalhostException(const CommandRow& row, const CommandRequest& req) {
  return req.db == "admin" && (row.name == "createUser" || row.name == "createRole" ||
                               row.name == "replSetInitiate" || row.name == "replSetGetStatus");
}

Result<void> Dispatcher::Authorize(Connection& c, RequestState& s) {
  const CommandRow& row = *s.row;
  const UserAccess* access = c.login.access.get();
  s.ctx->access = access != nullptr ? access : &NobodysAccess();
  s.op->user_roles = &s.ctx->access->role_documents;
  if ((row.flags & kNoAuth) != 0) return Ok();
  if (access == nullptr) {
    if (c.FromThisMachine() && IsOfLocalhostException(row, s.request) &&
        server_.access().LocalhostExceptionOpen())
      return Ok();
    return Error{ErrorCode::kUnauthorized,
                 "Command " + std::string(row.name) + " requires authentication"};
  }
  if (row.privileges != nullptr)
    return row.privileges({s.request, access->privileges, &access->user.name, &access->user.roles});
  // A row without its function is a mistake of ours: only who may do everything may do it.
  if (access->privileges.Allows(Resource::Any(), ActionSet::All())) return Ok();
  return Error{ErrorCode::kUnauthorized, "not authorized on " + std::string(s.request.db) +
                                             " to execute command " +
                                             ShortCommandText(s.request.body)};
}

Awaitable<Result<void>> Dispatcher::ReadUserAgain(Connection& c, RequestState& s) {
  co_await s.ctx->MoveToWorker();
  Result<bool> there = false;
  try {
    there = RefreshLogin(server_.access(), c.login, c.login_origin());
  } catch (...) {
    there = Unexpected(s);
  }
  co_await s.ctx->MoveToIo();
  if (!there) co_return there.error();
  if (!there.value()) c.LoggedOut();
  co_return Ok();
}

}  // namespace mayfly
