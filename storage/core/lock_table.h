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
/// Set in owners that are transactions: they hold locks as long as their clients like.
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
  /// `changed`: what was locked may have changed by a batch numbered up to this
  /// (KvStore::LatestSequence); 0: it has not.
  void Unlock(uint64_t hash, LockOwner owner, uint64_t changed = 0);

  /// From here on, every change under these locks is reported to Unlock; changes before the batch
  /// numbered `now` are not known. Cheap after the first call for `reign`.
  void BeginReign(uint64_t reign, uint64_t now);
  /// Whether it was never unlocked with a change after `sequence`. In doubt false. REQUIRES: the
  /// caller holds the lock.
  bool UnchangedSince(uint64_t hash, uint64_t sequence);

  /// Counts open transactions up or down. While any is open, a writer that changes a record calls
  /// NoteChanged before its lock is released.
  void Watch(int by) { watchers_.fetch_add(by, std::memory_order_relaxed); }
  bool Watched() const { return watchers_.load(std::memory_order_relaxed) > 0; }
  void NoteChanged(uint64_t hash, uint64_t sequence);
  /// Whether it is known to have changed after `sequence`, whatever it is now. The latest changes
  /// of each stripe are known.
  bool KnownChanged(uint64_t hash, uint64_t sequence);

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
    /// The latest change reported to Unlock, for all hashes that share a place.
    std::array<uint64_t, 16> changed{};
    uint64_t& ChangedOf(uint64_t hash) { return changed[hash >> 56 & 15]; }
    /// NoteChanged, in turns.
    struct Noted {
      uint64_t hash = 0, sequence = 0;
    };
    std::array<Noted, 32> noted{};
    uint32_t next = 0;
  };
  Stripe& StripeOf(uint64_t hash) { return stripes_[(hash >> 40) & (stripes_.size() - 1)]; }
  static Outcome TryLocked(Stripe& s, uint64_t hash, LockOwner owner);
  std::vector<Stripe> stripes_;
  std::mutex reign_mutex_;
  std::atomic<uint64_t> reign_{UINT64_MAX}, known_from_{UINT64_MAX};
  std::atomic<int> watchers_{0};
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
