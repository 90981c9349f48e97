#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "security/names.h"

namespace mayfly {

/// Makes guessing slow: after a few failures each further attempt has to wait, twice as long as the
/// one before. What counts is a user tried from an address, and the address itself (for somebody
/// who tries one password with many users), which may fail more often. An attempt from elsewhere,
/// or for another user, waits for nobody, so that guessing locks no one out. Threads: any; no call
/// waits, the caller does.
class LoginBackoff {
 public:
  /// How long (milliseconds) an attempt has to wait before its proof is looked at. `now`: of a
  /// monotonic clock, in milliseconds.
  int64_t DelayMillis(std::string_view address, const UserName& user, int64_t now);
  void Failed(std::string_view address, const UserName& user, int64_t now);
  /// Forgets the failures of this user from this address.
  void Succeeded(std::string_view address, const UserName& user);
  size_t size() const;

  static constexpr int kFreeOfUser = 5;             ///< failures that cost nothing
  static constexpr int kFreeOfAddress = 100;        ///< of all users of an address
  static constexpr int64_t kFirstDelayMillis = 50;  ///< of the first that costs
  static constexpr int64_t kMaxDelayMillis = 5000;
  static constexpr int64_t kForgetMillis = 60'000;  ///< after the last failure
  static constexpr size_t kMaxEntries = 20'000;     ///< beyond: the oldest half goes

 private:
  struct Entry {
    int failures = 0;
    int64_t last = 0;
  };
  static std::string UserKey(std::string_view address, const UserName& user);
  static std::string AddressKey(std::string_view address) { return "a" + std::string(address); }
  int64_t Delay(const std::string& key, int free, int64_t now);
  void Add(std::string key, int64_t now);
  void MakeRoom(int64_t now);

  mutable std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace mayfly
