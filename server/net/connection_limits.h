#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/seeded_hash.h"
#include "security/names.h"

namespace mayfly {

class ParameterRegistry;

/// How many connections one address and one user may have, by parameters. Threads: any.
class ConnectionLimits {
 public:
  /// maxConnectionsPerAddress and maxConnectionsPerUser. This must outlive the registry's use.
  void RegisterParameters(ParameterRegistry& parameters);

  int64_t per_address() const { return per_address_.load(std::memory_order_relaxed); }
  int64_t per_user() const { return per_user_.load(std::memory_order_relaxed); }
  /// One more of the address ("ip:port"), until the result goes; null when it is at its limit
  /// have.
  std::shared_ptr<void> EnterAddress(std::string_view address);
  /// The same of a user that logs in.
  std::shared_ptr<void> EnterUser(const UserName& user);

 private:
  struct Table {
    std::mutex mutex;
    ClientStringMap<int64_t> connections;
  };
  static std::shared_ptr<void> Enter(const std::shared_ptr<Table>& table, std::string key,
                                     int64_t limit);
  const std::shared_ptr<Table> addresses_ = std::make_shared<Table>(),
                               users_ = std::make_shared<Table>();
  std::atomic<int64_t> per_address_{0}, per_user_{0};  ///< 0: no limit
};

}  // namespace mayfly
