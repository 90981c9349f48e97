#pragma once
#include <vector>

#include "security/names.h"
#include "security/privilege_set.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// A requested command, as a privilege function sees it. Views live as long as the
/// request.
struct AuthorizationRequest {
  const CommandRequest& req;
  const PrivilegeSet& privileges;  ///< of the user; empty for a client that has not logged in
  const UserName* user;            ///< null: has not logged in
  /// Roles granted directly, without nested ones, sorted (UserAccess::user); null: none.
  const std::vector<RoleName>* roles = nullptr;
};

}  // namespace mayfly
