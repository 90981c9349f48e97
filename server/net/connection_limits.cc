#include "server/net/connection_limits.h"

#include "server/base/client_of.h"
#include "server/dispatch/parameters.h"

namespace mayfly {

void ConnectionLimits::RegisterParameters(ParameterRegistry& parameters) {
  parameters.AddInt(
      "maxConnectionsPerAddress", &per_address_, 0, 1'000'000,
      "Connections of one address (IPv6: of one /64); further ones are closed. 0: no limit.");
  parameters.AddInt(
      "maxConnectionsPerUser", &per_user_, 0, 1'000'000,
      "Connections on which one user may be logged in; further logins fail. 0: no limit.");
}

std::shared_ptr<void> ConnectionLimits::EnterAddress(std::string_view address) {
  return Enter(addresses_, ClientOf(address), per_address());
}

std::shared_ptr<void> ConnectionLimits::EnterUser(const UserName& user) {
  return Enter(users_, user.Id(), per_user());
}

std::shared_ptr<void> ConnectionLimits::Enter(const std::shared_ptr<Table>& table, std::string key,
                                              int64_t limit) {
  {
    std::lock_guard l(table->mutex);
    int64_t& n = table->connections[key];
    if (limit > 0 && n >= limit) return nullptr;
    ++n;
  }
  return std::shared_ptr<void>(table.get(), [table, key = std::move(key)](void*) {
    std::lock_guard l(table->mutex);
    if (auto at = table->connections.find(key); at != table->connections.end() && --at->second <= 0)
      table->connections.erase(at);
  });
}

}  // namespace mayfly
