#include "server/base/login_lines.h"

#include <algorithm>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error_codes.h"
#include "protocol/utf8.h"
#include "server/base/client_of.h"

namespace mayfly {
namespace {

void WriteRepeatedLines(Log& log, const std::vector<FailedLogins::Repeated>& repeated) {
  for (const FailedLogins::Repeated& of : repeated) {
    log.Write(LogSeverity::kInfo, LogComponent::kAccess, 5286307, "Failed to authenticate",
              BuildBson([&](BsonBuilder& b) {
                b.Append("client", of.remote).Append("repeated", of.count);
                if (of.client.empty()) b.Append("severalAddresses", true);
                b.Append("result", static_cast<int32_t>(ErrorCode::kAuthenticationFailed));
              }));
  }
}

}  // namespace

void WriteLoginLine(Log& log, FailedLogins& failed, int64_t second, const LoginLine& line) {
  WriteRepeatedLines(log, failed.TakeRepeated(second));
  if (!line.good && !failed.Admit(ClientOf(line.remote), line.local, line.remote, second)) return;
  log.Write(LogSeverity::kInfo, LogComponent::kAccess, line.good ? 5286306 : 5286307,
            line.good ? "Successfully authenticated" : "Failed to authenticate", line.attributes,
            line.context);
}

void TellRolesLeftOut(Log& log, const UserAccess* was, const UserAccess& now,
                      std::string_view context) {
  constexpr size_t kShown = 10;
  const std::vector<RoleName>& left_out = now.roles.left_out;
  if (left_out.empty() || (was != nullptr && was->roles.left_out == left_out)) return;
  const BsonDocument attributes = BuildBson([&](BsonBuilder& b) {
    b.Append("user", PrintableUtf8(now.user.name.user)).Append("db", now.user.name.db);
    b.Append("leftOut", static_cast<int64_t>(left_out.size()));
    b.Append("limit", static_cast<int64_t>(kMaxResolvedPrivileges));
    BsonArrayBuilder roles = b.OpenArray("roles");
    for (size_t i = 0; i < std::min(kShown, left_out.size()); ++i)
      roles.Append(PrintableUtf8(left_out[i].Shown()));
  });
  log.Write(LogSeverity::kWarning, LogComponent::kAccess, 9000140,
            "A user's roles have more privileges than one user may have, so some of them grant "
            "nothing: revoke roles, or use privileges on whole databases. usersInfo with "
            "showPrivileges shows which",
            attributes, context);
}

void WriteRepeatedLogins(Log& log, FailedLogins& failed) {
  WriteRepeatedLines(log, failed.TakeRepeated(0, true));
}

}  // namespace mayfly
