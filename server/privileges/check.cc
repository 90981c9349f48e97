#include "server/privileges/check.h"

#include "server/dispatch/redacted_command.h"

namespace mayfly::privileges {

Error NotAuthorized(const AuthorizationRequest& r) {
  return {ErrorCode::kUnauthorized, "not authorized on " + std::string(r.req.db) +
                                        " to execute command " + ShortCommandText(r.req.body)};
}

Result<void> LoggedIn(const AuthorizationRequest& r) { return Decide(r.user != nullptr, r); }

}  // namespace mayfly::privileges
