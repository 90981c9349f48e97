#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/seeded_hash.h"
#include "security/failed_logins.h"
#include "security/names.h"

namespace mayfly {

/// Makes guessing slow, however many connections guess at once. What fails is counted for a user
/// tried from an address, for the address (one password tried with many users) and for the user (a
/// user tried from many addresses). Beyond its free failures, each of the three lets only one
/// attempt through at a time, with a growing pause; attempts in progress count as failed until they
/// end. Guessing locks out nobody else: a user who has logged in from an address before waits there
/// only for guesses at this user from this address, and not long; a user's first attempt from an
/// address does not wait for guesses from other addresses. Times are of a monotonic clock, in
/// milliseconds. Threads: any; no call waits, the caller does.
class LoginBackoff {
 public:
  /// An attempt whose password is being looked at. Unless told otherwise, it has failed. Lives
  /// shorter than the LoginBackoff.
  class Attempt {
   public:
    Attempt(Attempt&& other) noexcept;
    Attempt& operator=(Attempt&&) = delete;
    ~Attempt();
    /// The password was right.
    void Succeeded();
    /// Nobody has looked at the password.
    void Abandon();

   private:
    friend class LoginBackoff;
    Attempt(LoginBackoff* owner, std::string address, UserName user, int64_t now);
    LoginBackoff* owner_;  ///< null: it has ended
    std::string address_;
    UserName user_;
    int64_t now_;
  };

  /// An attempt that arrived at `since`, if it may go on: its password may be checked. None:
  /// `*wait` is the milliseconds after which to ask again; 0: never, the attempt has failed without
  /// a check of its password.
  std::optional<Attempt> Begin(std::string_view address, const UserName& user, int64_t since,
                               int64_t now, int64_t* wait);
  /// Which failures the log tells of; the audit log counts its own.
  FailedLogins& told() { return told_; }
  /// Entries of all tables.
  size_t size() const;
  /// How often all entries were looked at for some that may go.
  uint64_t rooms_made() const;

  static constexpr int kFreeOfPair = 5;       ///< failures of a user from an address
  static constexpr int kFreeOfKnown = 50;     ///< the same of one who has logged in from there
  static constexpr int kFreeOfAddress = 100;  ///< of all users of an address
  static constexpr int kFreeOfUser = 100;     ///< of a user from all addresses
  static constexpr int64_t kFirstDelayMillis = 50;   ///< between the first two that wait
  static constexpr int64_t kMaxDelayMillis = 5000;   ///< of a pair, of an address
  static constexpr int64_t kShortDelayMillis = 100;  ///< the longest of a known pair, of a user
  static constexpr int64_t kMaxWaitMillis = 10'000;  ///< then it fails without a look
  static constexpr int64_t kAskAgainMillis = 500;    ///< the longest wait that is reported
  static constexpr int64_t kForgetMillis = 60'000;   ///< after the last failure
  static constexpr size_t kMaxEntries = 30'000;      ///< beyond: the oldest half goes
  static constexpr size_t kMaxKnown = 20'000;        ///< users of addresses that have logged in

 private:
  struct Entry {
    int failures = 0;
    int under_way = 0;
    int64_t last = 0;  ///< when an attempt was let through or failed
  };
  struct Known {
    int64_t last = 0;      ///< login
    int64_t forgiven = 0;  ///< when a login last cleared its failures
  };
  struct Keys {
    std::string pair, address, user;
  };
  static constexpr size_t kLanes = 3;  ///< keys
  static Keys KeysOf(std::string_view address, const UserName& user);

  /// How long an attempt waits for one lane; 0: not at all.
  int64_t Wait(const std::string& key, int free, int64_t max, int64_t now);
  void Enter(const std::string& key, int64_t now);
  void Leave(const std::string& key, bool failed, int64_t now);
  void End(const Attempt& a, bool failed);
  void Learn(const Attempt& a);
  /// Whether the entries of one more attempt fit in.
  bool HasRoom() const;
  void MakeRoom(int64_t now);

  mutable std::mutex mutex_;
  ClientStringMap<Entry> entries_;
  ClientStringMap<Known> known_;  ///< by Keys::pair
  FailedLogins told_;
  uint64_t rooms_made_ = 0;
};

}  // namespace mayfly
