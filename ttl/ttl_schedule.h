#pragma once
#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "ttl/reap_limits.h"
#include "ttl/ttl_rule_state.h"

namespace mayfly {

/// One rule as the monitor works on it.
struct TtlSlot {
  TtlRule rule;
  std::shared_ptr<TtlRuleState> figures;
  ReapLimits limits;
  RateLimiter limiter;    ///< of limits.max_docs_per_second
  int64_t uncovered = 0;  ///< deletes since the last range delete over the head of its index
  int64_t left_until = INT64_MAX;  ///< ms; when documents that were left behind are looked at again

  /// The position, entry and date, at which the next visit continues an unfinished one. The marks
  /// of the rule's ExpiryState stay raised meanwhile, as during a visit; entries that come in
  /// before it lower them. Empty: the last visit was finished.
  std::string resume_entry;
  int64_t resume_date = INT64_MAX;
  /// The earliest date there is; INT64_MIN: not known, INT64_MAX: none.
  int64_t NextMillis() const {
    return std::min(rule.state().next_millis.load(std::memory_order_acquire), resume_date);
  }
  /// Clears the position: the next visit starts at the earliest date again.
  void DropResume() {
    if (resume_date != INT64_MAX) rule.state().Lower(resume_date);
    resume_entry.clear();
    resume_date = INT64_MAX;
  }

  std::string last_error;  ///< of the last visit: logged once
  // Work since the last log line.
  int64_t deleted = 0, keys_examined = 0, docs_examined = 0, keys_deleted = 0, micros = 0;

  // The schedule's own.
  int64_t key = INT64_MAX;         ///< ms, when it is to be visited; INT64_MAX: not in the order
  int64_t not_before = INT64_MIN;  ///< ms
  bool queued = false;
  uint64_t seen = 0;
};

/// All rules in the order of their next deadlines. The cost of a turn of the monitor depends on the
/// rules that are due and on those that writers have noted, not on the number of rules. Used by the
/// monitor's thread only.
class TtlSchedule {
 public:
  TtlSchedule(Storage& storage, TtlRuleStates& states) : storage_(storage), states_(states) {}
  ~TtlSchedule() {
    for (auto& [state, slot] : slots_) slot->DropResume();
  }

  /// Lists the rules again when the catalog has changed, and takes in what writers noted. True when
  /// slots may have gone: pointers to them are to be dropped.
  bool Refresh(int64_t now);
  /// Puts a slot where its next deadline says, not before `not_before` (ms).
  void Place(TtlSlot& slot, int64_t not_before = INT64_MIN);
  /// Tried again when RetryStalled is called: its documents were locked by others, or it failed.
  void Stall(TtlSlot& slot);
  bool HasStalled() const { return !stalled_.empty(); }
  void RetryStalled();
  /// Forgets every not_before, and looks again at what was left behind: controls, limits or the
  /// clock changed.
  void Reconsider();
  /// When the earliest slot is to be visited; INT64_MAX: none. Also INT64_MIN for one whose index
  /// has not been looked into.
  int64_t Next() const { return order_.empty() ? INT64_MAX : order_.begin()->first; }

  /// Moves what is due at `now` to the end of the queue of those at work, and returns the first of
  /// it; null when nothing is due.
  TtlSlot* Take(int64_t now);
  size_t QueueSize() const { return queue_.size(); }
  /// Back into the order with what is in the queue.
  void DropQueue();

  /// Every slot, by collection and rule, so that lists of them do not change order. The schedule
  /// owns them: valid until Refresh() returns true.
  std::vector<TtlSlot*> All();
  size_t size() const { return slots_.size(); }
  const std::vector<InvalidTtlRule>& invalid() const { return invalid_; }

 private:
  void SetKey(TtlSlot& slot, int64_t key);

  Storage& storage_;
  TtlRuleStates& states_;
  uint64_t version_ = UINT64_MAX, generation_ = 0;
  std::unordered_map<const ExpiryState*, std::unique_ptr<TtlSlot>> slots_;
  std::set<std::pair<int64_t, TtlSlot*>> order_;
  std::deque<TtlSlot*> queue_;
  std::vector<TtlSlot*> stalled_;
  std::vector<InvalidTtlRule> invalid_;
};

}  // namespace mayfly
