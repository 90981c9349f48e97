#pragma once
#include <vector>

#include "security/names.h"
#include "security/privilege_set.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// A command that somebody asks for, as a privilege function sees it. Views live as long as the
/// request.
struct AuthorizationRequest {
  const CommandRequest& req;
  const PrivilegeSet& privileges;  ///< of whoever asks; of a client that has not logged in: empty
  const UserName* user;            ///< null: has not logged in
  /// Those that the user was given, not those that they are made of; null: none.
  const std::vector<RoleName>* roles = nullptr;
};

}  // namespace mayfly
