#include "server/base/login_lines.h"

#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error_codes.h"
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

void WriteRepeatedLogins(Log& log, FailedLogins& failed) {
  WriteRepeatedLines(log, failed.TakeRepeated(0, true));
}

}  // namespace mayfly
