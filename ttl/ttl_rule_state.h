#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "ttl/ttl_rule.h"

namespace mayfly {

/// Why a rule with something due is not worked on.
enum class TtlWait : uint8_t {
  kNothing,
  kControl,  ///< TtlEnvironment::may_reap says so (paused, held by the guard)
  kWindow,   ///< outside its window of the day
  kLimit,    ///< its documents a second are used up
};

/// What the monitor reports of one rule.
struct TtlRuleFigures {
  int64_t next_deadline =
      INT64_MAX;           ///< ms; INT64_MAX: nothing will expire; INT64_MIN: not looked yet
  int64_t lag_millis = 0;  ///< how long the earliest document is past its deadline
  int64_t deleted = 0, bytes_deleted = 0;  ///< since start-up
  double rate_per_second = 0;              ///< documents deleted, over the last ten seconds
  int64_t last_visit = INT64_MIN;          ///< ms, when it was last worked on; INT64_MIN: never
  std::string last_error;  ///< of the last visit, or of what it had to leave; empty: it went well
  TtlWait waits_for = TtlWait::kNothing;
  int64_t waits_until = INT64_MIN;  ///< ms; INT64_MAX: until something changes
  bool left_behind = false;         ///< documents past their deadline were passed over
  int64_t locked = 0;               ///< by open transactions, as of the last look at what is due
  int64_t refused = 0;  ///< of those: what the archive does not take, as of the last look at them
  int64_t refused_earliest = INT64_MAX;  ///< their earliest date, ms
};

/// What is known of one rule since start-up beyond its ExpiryState. Survives changes of the rule's
/// definition. Threads: any.
class TtlRuleState {
 public:
  /// A visit has ended at `now` (ms). `error`: empty when it went well; replaces the one before.
  void Visited(int64_t now, int64_t deleted, int64_t bytes, std::string error) {
    std::lock_guard l(mutex_);
    figures_.last_visit = now;
    figures_.deleted += deleted;
    figures_.bytes_deleted += bytes;
    figures_.last_error = std::move(error);
    Second& s = SecondOf(now);
    s.count += deleted;
  }
  /// A visit begins at this date (ms): it meets documents refused from there on again.
  void Begins(int64_t from) {
    std::lock_guard l(mutex_);
    if (from > figures_.refused_earliest) return;
    figures_.refused = 0;
    figures_.refused_earliest = INT64_MAX;
    refused_error_.clear();
  }
  /// A document with this date has to stay.
  void Refused(int64_t date, std::string_view error) {
    std::lock_guard l(mutex_);
    ++figures_.refused;
    figures_.refused_earliest = std::min(figures_.refused_earliest, date);
    refused_error_ = error;
  }
  /// Whether documents stay because the archive does not take them, as of the last look.
  bool HasRefused() const {
    std::lock_guard l(mutex_);
    return figures_.refused > 0;
  }
  /// A visit has met this many documents that open transactions have locked.
  void Locked(int64_t documents) {
    std::lock_guard l(mutex_);
    figures_.locked = documents;
  }
  /// Where a visit that is not finished goes on (a date, ms); INT64_MAX: none is.
  void Unfinished(int64_t date) { unfinished_.store(date, std::memory_order_relaxed); }
  int64_t unfinished() const { return unfinished_.load(std::memory_order_relaxed); }
  void Waits(TtlWait why, int64_t until) {
    std::lock_guard l(mutex_);
    figures_.waits_for = why;
    figures_.waits_until = until;
  }
  /// Everything that does not follow from the rule's ExpiryState.
  TtlRuleFigures Read(int64_t now) const {
    std::lock_guard l(mutex_);
    TtlRuleFigures f = figures_;
    if (f.last_error.empty()) f.last_error = refused_error_;
    int64_t recent = 0;
    for (const Second& s : seconds_)
      if (s.second > now / 1000 - kSeconds && s.second <= now / 1000) recent += s.count;
    f.rate_per_second = static_cast<double>(recent) / kSeconds;
    return f;
  }

 private:
  static constexpr int kSeconds = 10;
  struct Second {
    int64_t second = INT64_MIN, count = 0;
  };
  Second& SecondOf(int64_t now) {
    const int64_t second = now / 1000;
    Second& s = seconds_[static_cast<size_t>(second % kSeconds + kSeconds) % kSeconds];
    if (s.second != second) s = {second, 0};
    return s;
  }
  std::atomic<int64_t> unfinished_{INT64_MAX};
  mutable std::mutex mutex_;
  TtlRuleFigures figures_;
  std::string refused_error_;
  std::array<Second, kSeconds> seconds_;
};

/// The states of all rules. Threads: any.
class TtlRuleStates {
 public:
  /// Made on the first call for the rule.
  std::shared_ptr<TtlRuleState> Of(const TtlRule& rule) {
    std::lock_guard l(mutex_);
    auto& s = states_[&rule.state()];
    if (!s) s = std::make_shared<TtlRuleState>();
    return s;
  }
  /// What ttlStatus shows of the rule; deletions on access are counted in.
  TtlRuleFigures Figures(const TtlRule& rule, Instant now) const {
    std::shared_ptr<TtlRuleState> s;
    {
      std::lock_guard l(mutex_);
      if (auto it = states_.find(&rule.state()); it != states_.end()) s = it->second;
    }
    TtlRuleFigures f;
    if (s) f = s->Read(now.millis);
    f.deleted += rule.state().removed_on_access.load(std::memory_order_relaxed);
    int64_t next = rule.state().next_millis.load(std::memory_order_acquire);
    if (s) next = std::min({next, s->unfinished(), f.refused_earliest});
    f.next_deadline = next == INT64_MIN || next == INT64_MAX ? next : rule.Deadline(next);
    if (next != INT64_MIN) f.lag_millis = LagMillis(f.next_deadline, now.millis);
    f.left_behind = rule.state().left_millis.load(std::memory_order_acquire) != INT64_MAX;
    return f;
  }
  /// Forgets what is in no rule any more.
  template <class Keep>
  void Prune(Keep keep) {
    std::lock_guard l(mutex_);
    std::erase_if(states_, [&](const auto& e) { return !keep(e.first); });
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const ExpiryState*, std::shared_ptr<TtlRuleState>> states_;
};

}  // namespace mayfly
