#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "storage/kv/kv.h"

namespace mayfly {

/// Who holds a lock: one number a write unit. Not a thread: a unit may be begun on one and
/// committed on another.
using LockOwner = uint64_t;
/// Of the owners that are transactions: they hold locks as long as their clients like.
inline constexpr LockOwner kTransactionOwner = LockOwner{1} << 63;

/// The 64-bit hash under which a key of a keyspace is locked.
uint64_t LockHash(Keyspace ks, std::string_view key);

/// Exclusive locks on 64-bit hashes of keys, in stripes. An entry is an exact hash, so two units
/// that change thousands of documents each do not collide by accident, as they would with one lock
/// for each stripe. There is no queue and no deadlock detection: waits are bounded, and a unit
/// whose wait times out releases all its locks and tries again. Threads: any.
class LockTable {
 public:
  explicit LockTable(size_t stripes = 1024);  ///< a power of two

  enum class Outcome : uint8_t { kTaken, kHeldAlready, kBusy, kBusyTransaction };
  /// kHeldAlready: `owner` has it from before; it must be unlocked once only. kBusyTransaction: a
  /// transaction has it.
  Outcome TryLock(uint64_t hash, LockOwner owner);
  /// Waits at most `timeout_us`, then kBusy or kBusyTransaction.
  Outcome Lock(uint64_t hash, LockOwner owner, int64_t timeout_us);
  void Unlock(uint64_t hash, LockOwner owner);

 private:
  struct Entry {
    uint64_t hash;
    LockOwner owner;
  };
  struct Stripe {
    std::mutex mutex;
    std::vector<Entry> entries;  ///< few: searched one by one
    int waiters = 0;
    std::condition_variable free;
  };
  Stripe& StripeOf(uint64_t hash) { return stripes_[(hash >> 40) & (stripes_.size() - 1)]; }
  static Outcome TryLocked(Stripe& s, uint64_t hash, LockOwner owner);
  std::vector<Stripe> stripes_;
};

/// One gate a collection: any number of writers, or one change of its definition. A change that
/// waits keeps new writers out, but not while it waits for a transaction, which may take long.
/// Holders keep count of what they hold: shared twice by one owner counts twice. Threads: any.
class GateTable {
 public:
  /// timeout 0: at once or not at all. `transaction`: who holds it is one.
  bool LockShared(uint32_t collection, int64_t timeout_us, bool transaction = false);
  void UnlockShared(uint32_t collection, bool transaction = false);
  /// `shared_held`: shared holds of the caller that do not stand in its way (an upgrade).
  bool LockExclusive(uint32_t collection, int64_t timeout_us, int shared_held = 0);
  void UnlockExclusive(uint32_t collection);

 private:
  struct Gate {
    uint32_t collection;
    int shared = 0;
    int transactions = 0;  ///< of `shared`
    int waiting_exclusive = 0;
    int waiting_shared = 0;
    bool exclusive = false;
  };
  struct Stripe {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Gate> gates;  ///< those in use
  };
  static constexpr size_t kStripes = 64;
  Stripe& StripeOf(uint32_t collection) { return stripes_[collection % kStripes]; }
  static Gate& Find(Stripe& s, uint32_t collection);
  static void DropIfIdle(Stripe& s, Gate& g);
  std::array<Stripe, kStripes> stripes_;
};

}  // namespace mayfly
