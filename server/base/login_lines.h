#pragma once
#include <cstdint>
#include <string_view>

#include "protocol/bson_view.h"
#include "security/failed_logins.h"
#include "security/user_cache.h"
#include "server/base/log.h"

namespace mayfly {

/// The log's lines about logins that have ended, like MongoDB's 5286306 and 5286307.
struct LoginLine {
  bool good = false;
  std::string_view local, remote;  ///< "ip:port"
  BsonView attributes;
  std::string_view context;  ///< as of Log::Write
};
/// Writes the line, unless the login failed and `failed` allows none. Before it come due lines
/// about logins without one ("repeated": their number).
void WriteLoginLine(Log& log, FailedLogins& failed, int64_t second, const LoginLine& line);
/// The line about roles that do not count for a user who logs in (`was` null), or for one who is
/// logged in after a change of roles; none if there are none, or the same as before.
void TellRolesLeftOut(Log& log, const UserAccess* was, const UserAccess& now,
                      std::string_view context);
/// The lines about those that had none, at the end of the log.
void WriteRepeatedLogins(Log& log, FailedLogins& failed);

}  // namespace mayfly
