#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/instant.h"
#include "storage/read/read_view.h"

namespace mayfly {

/// The points in time that SnapshotReads keeps, and who took each. Whoever takes many is refused
/// more before anybody else loses one. Threads: one at a time.
class SnapshotPoints {
 public:
  static constexpr size_t kMostUnused = 256;  ///< that no cursor or operation uses
  static constexpr size_t kMostUsed = 4096;
  /// Of these, as long as others have any, too. Whoever is alone has up to three quarters.
  static constexpr size_t kMostUsedOfOwner = 512;

  using Gone = std::vector<std::shared_ptr<ReadPoint>>;

  /// Moves to `gone`, which the caller releases outside its lock: all that were taken before
  /// `micros` (Clock::MonotonicMicros()) or `time`, and of the unused ones above kMostUnused the
  /// oldest of the owner that has the most.
  void Sweep(int64_t micros, Instant time, Gone* gone);
  /// Null: there is none of this time.
  ReadViewPtr Find(uint64_t ts);
  /// Whether the owner (OwnerOf) may take one more.
  bool MayTake(std::string_view owner) const;
  /// `of_transaction`: it was taken by a transaction, which goes on without it and has limits of
  /// its own. It counts as unused.
  void Add(std::shared_ptr<ReadPoint> point, std::string_view owner, int64_t micros, Instant time,
           bool of_transaction = false);
  /// A read that is no transaction's uses the point of this time: one of a transaction belongs to
  /// the reader from now on. False: he may not take one more.
  bool Use(uint64_t ts, std::string_view owner);
  /// All of them, to be released.
  Gone Clear();

  size_t size() const { return kept_.size(); }
  /// Clock::MonotonicMicros() of the oldest. REQUIRES: there is one.
  int64_t oldest_micros() const { return kept_.front().taken_micros; }

 private:
  struct Kept {
    std::shared_ptr<ReadPoint> point;
    std::string owner;
    int64_t taken_micros;
    Instant taken;  ///< tests move this clock
    bool of_transaction;
    bool used() const { return !of_transaction && point.use_count() > 1; }
  };
  void SweepUnused(Gone* gone);

  std::vector<Kept> kept_;  ///< the oldest first
};

}  // namespace mayfly
