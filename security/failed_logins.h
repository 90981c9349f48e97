#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/seeded_hash.h"

namespace mayfly {

/// As many at once, and some each second. Threads: the owner's lock.
struct Allowance {
  const int64_t burst, per_second;
  int64_t left = burst, at = 0;
  /// Takes one if one is left at that second of the monotonic clock.
  bool Take(int64_t second);
};

/// Decides which failed logins get a separate line in a log, because anybody can cause any number.
/// Each client (its address, as limits count it) gets kOfMinute a minute, and all together kBurst
/// at once and one a second. The others are counted by client; the counts are logged after the
/// minute. Seconds are of the monotonic clock. Threads: any.
class FailedLogins {
 public:
  static constexpr int64_t kOfMinute = 20, kBurst = 1000;
  static constexpr size_t kMaxClients = 200;  ///< counted apart; the others together

  /// Whether a login of `client` that failed at `second` has a line. `local`, `remote`: "ip:port".
  bool Admit(std::string client, std::string_view local, std::string_view remote, int64_t second);

  /// How many of one client had none.
  struct Repeated {
    std::string client;  ///< empty: of several
    int64_t count = 0;
    std::string local, remote;  ///< of the last one
  };
  /// The counts that are due at `second`, or with `all` also those that are not yet; each once.
  /// Looks at one atomic when there are none.
  std::vector<Repeated> TakeRepeated(int64_t second, bool all = false);

  /// How many had no line, since the start.
  int64_t suppressed() const { return suppressed_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    int64_t written = 0, repeated = 0;
    std::string local, remote;
  };
  std::mutex mutex_;
  Allowance allowance_{kBurst, 1};
  /// The counts of the current minute, by client; clients beyond kMaxClients are in "".
  ClientStringMap<Entry> entries_;
  int64_t minute_ = 0;
  std::atomic<int64_t> due_{0};  ///< the second when counts are due; 0: there are none
  std::atomic<int64_t> suppressed_{0};
};

}  // namespace mayfly
