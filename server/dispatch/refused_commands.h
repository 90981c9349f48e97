#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/seeded_hash.h"
#include "security/names.h"

namespace mayfly {

/// Decides which refused commands get an entry in the audit log: anybody with a login, even without
/// a role, may cause any number of them, of up to 20 kB each. Each user has, from each address (as
/// limits count it), `limit` entries of kBytesOfEach on average in a minute, and all together have
/// kShares times these bytes. The others are counted; the counts are logged after the minute.
/// Seconds are of the monotonic clock. Threads: any.
class RefusedCommands {
 public:
  static constexpr int64_t kDefaultLimit = 200, kMaxLimit = 1'000'000;
  static constexpr int64_t kBytesOfEach = 2048, kShares = 8;
  static constexpr size_t kMaxClients = 200;  ///< counted apart; the others together

  /// Entries of a minute; 0: all have one.
  void SetLimit(int64_t entries) { limit_.store(entries, std::memory_order_relaxed); }

  /// Whose command it is. Views live as long as the call.
  struct Client {
    const UserName& user;            ///< an empty one: nobody has logged in
    std::string_view local, remote;  ///< "ip:port"
  };
  /// Whether a command that was refused at `second` has an entry.
  bool Admit(const Client& client, int64_t second);
  /// That entry took this much. Of an earlier minute by now: counts in this one.
  void Wrote(const Client& client, size_t bytes);

  /// How many of one client had none.
  struct Repeated {
    UserName user;  ///< an empty one: of several, or not logged in
    int64_t count = 0;
    std::string local, remote;  ///< of the last one
    bool several = false;
  };
  /// The counts that are due at `second`, or with `all` also those that are not yet; each once.
  /// Looks at one atomic when there are none.
  std::vector<Repeated> TakeRepeated(int64_t second, bool all = false);

 private:
  struct Entry {
    int64_t written = 0, bytes = 0;
    Repeated repeated;
  };
  std::atomic<int64_t> limit_{kDefaultLimit};
  std::mutex mutex_;
  /// Of the current minute, by user and address; those beyond kMaxClients are in "".
  ClientStringMap<Entry> entries_;
  int64_t minute_ = 0, bytes_ = 0;
  std::atomic<int64_t> due_{0};  ///< the second when counts are due; 0: there are none
};

}  // namespace mayfly
