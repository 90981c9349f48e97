#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace mayfly {

/// How far the target is behind the source, and whether anything goes through: worked out when it
/// is asked for, because the link may be waiting for one of the two. Threads: any.
class LinkProgress {
 public:
  /// Milliseconds: of a clock that only goes forward, and since 1970.
  struct Times {
    int64_t steady = 0, wall = 0;
  };
  /// So long may the source be silent when nothing changes: it answers each second.
  static constexpr int64_t kSilentMillis = 3'000;
  /// And so long nothing may go through before that is shown.
  static constexpr int64_t kStalledMillis = 15'000;

  explicit LinkProgress(std::function<Times()> now = Now);

  /// The source's clock is so much ahead of the one of this machine.
  void SetSkew(int64_t millis);
  /// Another process runs the link: this one is not behind. Until Advanced.
  void StandBy();
  /// The target has taken something, if only the lease.
  void Advanced();
  /// A copy runs, of what was there at this time of the source (since 1970); nullopt: none does.
  void Copies(std::optional<int64_t> since);
  /// The changes of the source are read from now on, until StandBy or a copy.
  void Reads();
  /// The source has answered, with changes of which the oldest is of that time (of the source's
  /// clock, since 1970); nullopt: with none.
  void Heard(std::optional<int64_t> oldest);
  /// All changes that were taken are at the target: the last one was so old then (0: there was
  /// none). `oldest`: of those that wait; nullopt: none does.
  void Written(int64_t lag, std::optional<int64_t> oldest);
  /// The time of an event that does not have one.
  int64_t SourceNow() const;

  struct Shown {
    /// The age of the oldest change that is known to wait. If none is: the age of the last one when
    /// it was written; or since when the source is silent, if it is.
    int64_t lag_millis = 0;
    std::string stalled;  ///< why nothing goes through; empty: it does, or nothing has to
  };
  /// What there is to say of now.
  Shown Look() const;

 private:
  static Times Now();

  const std::function<Times()> now_;
  mutable std::mutex mutex_;
  int64_t skew_ = 0;
  bool stands_by_ = false, reads_ = false;
  int64_t advanced_ = 0, heard_ = 0;  ///< steady
  int64_t last_lag_ = 0;
  std::optional<int64_t> copies_since_, oldest_;  ///< the source's clock
};

}  // namespace mayfly
