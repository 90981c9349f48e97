#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/seeded_hash.h"
#include "security/scram.h"
#include "security/user_cache.h"
#include "server/access/change_queue.h"
#include "server/access/stored_users.h"

namespace mayfly {

class LoginBackoff;
class Operation;
class TimeKeys;

/// Parameters of logins. Threads: any.
struct AccessParameters {
  std::atomic<int64_t> sha1_iterations{kDefaultScramSha1Iterations};
  std::atomic<int64_t> sha256_iterations{kDefaultScramSha256Iterations};
  std::atomic<bool> localhost_bypass{true};     ///< enableLocalhostAuthBypass
  std::atomic<int64_t> failed_delay_millis{0};  ///< authFailedDelayMs
  std::atomic<int64_t> login_timeout_millis{10'000};
  std::atomic<int64_t> connections_before_login{1000};  ///< of one address
  /// authenticationMechanisms, by ScramMechanism. Before the first client.
  std::array<bool, 2> mechanisms{true, true};
  bool x509 = true;                                    ///< MONGODB-X509 of authenticationMechanisms
  std::atomic<int64_t> time_key_seconds{90 * 86'400};  ///< KeysRotationIntervalSec
  /// allowRolesFromX509Certificates and enforceUserClusterSeparation. Before the first client.
  bool certificate_roles = true, members_are_no_users = true;

  /// For credentials made from now on; stored ones contain their own number.
  int iterations(ScramMechanism m) const {
    return static_cast<int>(m == ScramMechanism::kSha1 ? sha1_iterations : sha256_iterations);
  }
  bool Offers(ScramMechanism m) const { return mechanisms[static_cast<size_t>(m)]; }
};

/// Connections of each address that have not logged in. Threads: any.
class UnknownClients {
 public:
  /// One more of the address ("ip:port"), until the result goes; null when it has `limit` already.
  std::shared_ptr<void> Enter(std::string_view address, int64_t limit);

 private:
  struct Table {
    std::mutex mutex;
    ClientStringMap<int64_t> connections;
  };
  const std::shared_ptr<Table> table_ = std::make_shared<Table>();
};

/// Access to this server: stored users and roles, their cache, the decoys for unknown users, and
/// the back-off for passwords. One per server; logins work whether or not access control is on.
/// Threads: any.
class AccessControl {
 public:
  AccessControl();
  ~AccessControl();

  /// Access control is on: a client that has not logged in may do nothing. Before the first client.
  void set_enforced(bool on) { enforced_ = on; }
  bool enforced() const { return enforced_; }

  /// Storage is there; from now on every change of users and roles, also by the replication log,
  /// raises the cache's generation.
  void Open(Storage& storage);
  void Close();

  UserCache& users() { return users_; }
  StoredUsers& stored() { return stored_; }
  LoginBackoff& backoff() { return *backoff_; }
  AccessParameters& parameters() { return parameters_; }
  UnknownClients& unknown_clients() { return unknown_clients_; }
  /// The decoys for users who do not exist.
  std::shared_ptr<const ScramDecoys> decoys() const;

  /// Whether a client from this machine may create the first user now. Closed for good once a user
  /// or a role has existed. Reads memory only.
  bool LocalhostExceptionOpen();
  /// Whether it is open for what makes users and roles.
  bool LocalhostMayMakeUsers() { return !first_user_comes_ && LocalhostExceptionOpen(); }
  /// The server makes the first user itself. Before the first client.
  void ExpectFirstUser() { first_user_comes_ = true; }
  /// The same, for a change that is about to be made: REQUIRES: the lock of changes.
  bool AnyUserOrRole() { return stored_.Any(); }

  /// The secret behind the decoys is stored, so that restarts and other members show the same.
  /// Only where writes are possible; reads and writes storage.
  Result<void> KeepDecoySecret(Operation& op);
  /// Reads it again: the replication log has brought it.
  void LoadDecoySecret();
  static constexpr std::string_view kDecoySetting = "access/decoySecret";

  /// Whether replies of this member sign cluster times: with access control on, and while a set is
  /// switching to it. Before the first client.
  void set_signs_times(bool on) { signs_times_ = on; }
  bool signs_times() const { return signs_times_; }
  TimeKeys& time_keys() { return *time_keys_; }
  /// The keys of the time `seconds` and of the next are stored, and shown. Only where writes are
  /// possible; reads and writes storage.
  Result<void> KeepTimeKeys(Operation& op, int64_t seconds);
  /// `admin.system.keys` has the documents that MongoDB has there, for tools and people: this
  /// server itself never reads them. Where writes are possible; reads and writes storage.
  Result<void> ShowTimeKeys(Operation& op);
  /// Reads them again: the replication log has brought them. Errors: UnsupportedFormat 12.
  Result<void> LoadTimeKeys();
  static constexpr std::string_view kTimeKeysSetting = "access/timeKeys";

  /// Changes of users and roles are made one after another, because each first reads the present
  /// state: the lock of changes.
  ChangeQueue& changes() { return changes_; }

 private:
  void UseDecoySecret(std::string secret);

  bool enforced_ = false, signs_times_ = false;
  Storage* storage_ = nullptr;
  StoredUsers stored_;
  UserCache users_;
  const std::unique_ptr<LoginBackoff> backoff_;
  AccessParameters parameters_;
  UnknownClients unknown_clients_;
  std::atomic<bool> localhost_closed_{false};
  bool first_user_comes_ = false;
  ChangeQueue changes_;
  std::mutex keeping_times_;
  const std::unique_ptr<TimeKeys> time_keys_;
  mutable std::mutex decoys_mutex_;
  std::string decoy_secret_;
  std::shared_ptr<const ScramDecoys> decoys_;
};

}  // namespace mayfly
