#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/instant.h"
#include "storage/expiry/expiry_head.h"

namespace mayfly {

/// The reaper's knowledge of one time-ordered index (or clustered collection). In memory only:
/// after start-up the first look begins at the smallest date. Shared by all versions of an index's
/// definition. Threads: any.
///
/// The reaper raises `resume` and `next` *before* it takes its snapshot. Writers lower them after
/// their batch is visible. So each entry is either in the snapshot or lowers the marks, and none is
/// missed. While the reaper works, the two marks do not cover what it has not removed yet. `floor`
/// does: the reaper raises it when it has finished, and readers call Earliest().
struct ExpiryState {
  /// Below this date there is no entry left. Without it, the seek to the head of an index after a
  /// million deletes has to step over a million tombstones.
  std::atomic<int64_t> resume_millis{INT64_MIN};
  /// No entry is earlier than this date; INT64_MIN: not known, look; INT64_MAX: there is none.
  std::atomic<int64_t> next_millis{INT64_MIN};
  /// The earliest date that the reaper has skipped and does not visit again by itself, because a
  /// hold covers the document; INT64_MAX: none. The entries still exist, although resume_millis may
  /// be later.
  std::atomic<int64_t> left_millis{INT64_MAX};
  /// In ExpiryWaker's list: the reaper has not looked at next_millis since it was lowered.
  std::atomic<bool> noted{false};

  /// As next_millis, but good while the reaper works.
  std::atomic<int64_t> floor_millis{INT64_MIN};

  /// Documents removed for this rule by others than the reaper: writers that met them, `compact`.
  std::atomic<int64_t> removed_on_access{0};
  /// What readers of the index need not walk over.
  ExpiryHead head;

  /// An entry with this date became visible, or was left where it is. True when none was known to
  /// be as early. The order matters to Settled().
  bool Lower(int64_t millis) {
    LowerTo(resume_millis, millis);
    const bool earlier = LowerTo(next_millis, millis);
    LowerTo(floor_millis, millis);
    return earlier;
  }
  /// For readers: no entry is earlier than this date, not even one that the reaper skipped, because
  /// its hold may have ended. INT64_MIN: not known; INT64_MAX: there is none.
  int64_t Earliest() const {
    const int64_t left = left_millis.load(std::memory_order_acquire);
    const int64_t floor = floor_millis.load(std::memory_order_acquire);
    return std::min({left, floor, next_millis.load(std::memory_order_acquire)});
  }
  /// False only when there has been no entry since the start or since SetEmpty.
  bool HadEntries() const { return resume_millis.load(std::memory_order_acquire) != INT64_MAX; }
  /// The reaper returns to the documents it had left.
  void TakeLeft() {
    int64_t left = left_millis.load(std::memory_order_acquire);
    if (left == INT64_MAX) return;
    Lower(left);  // first: readers find it here or there
    left_millis.compare_exchange_strong(left, INT64_MAX, std::memory_order_acq_rel);
  }
  /// Everything before `entry`, whose date is `millis` (empty: every earlier date), was removed by
  /// a batch that is visible now, or lowered a mark. REQUIRES: called by whoever applies batches,
  /// after the notes of what is visible.
  void RaiseHead(ExpiryHead::Order order, uint32_t id, int64_t millis, std::string_view entry,
                 uint64_t sequence, uint64_t epoch) {
    const int64_t left = std::min(resume_millis.load(std::memory_order_acquire),
                                  left_millis.load(std::memory_order_acquire));
    if (left <= millis)
      head.Raise(order, id, left, {}, sequence, epoch);
    else
      head.Raise(order, id, millis, entry, sequence, epoch);
  }
  /// The reaper has looked and next_millis is right again. What a writer lowered in between is in
  /// `next` before it is in `floor`, so it is found here or by Earliest().
  void Settled() {
    floor_millis.store(next_millis.load(std::memory_order_acquire), std::memory_order_release);
    LowerTo(floor_millis, next_millis.load(std::memory_order_acquire));
  }
  /// There is no entry yet: for a new collection.
  void SetEmpty() {
    resume_millis = INT64_MAX;
    next_millis = INT64_MAX;
    floor_millis = INT64_MAX;
  }
  /// At start-up: no entry is earlier than this.
  void SetEarliest(int64_t millis) {
    resume_millis = millis;
    next_millis = millis;
    floor_millis = millis;
  }
  /// Sets `mark` to the earlier of the two. True when it was lowered, by this call and not another
  /// thread's.
  static bool LowerTo(std::atomic<int64_t>& mark, int64_t millis) {
    int64_t now = mark.load(std::memory_order_acquire);
    while (millis < now)
      if (mark.compare_exchange_weak(now, millis, std::memory_order_acq_rel)) return true;
    return false;
  }
};

/// a + seconds, without overflow.
inline int64_t SaturatingDeadline(int64_t millis, int64_t seconds) {
  int64_t ms, sum;
  if (__builtin_mul_overflow(seconds, int64_t{1000}, &ms)) ms = seconds < 0 ? INT64_MIN : INT64_MAX;
  if (__builtin_add_overflow(millis, ms, &sum)) return ms < 0 ? INT64_MIN : INT64_MAX;
  return sum;
}

/// By how much `now` is past the deadline, both ms; 0: not at all. Without overflow: a date may be
/// the first there is.
inline int64_t LagMillis(int64_t deadline, int64_t now) {
  int64_t lag;
  if (deadline >= now) return 0;
  return __builtin_sub_overflow(now, deadline, &lag) ? INT64_MAX : lag;
}

/// Writers use it to notify the reaper of earlier deadlines: of the indexes that got one, and to
/// wake it if one is due before the end of its sleep. Nearly all entries are later than the
/// earliest of their index, and cost nothing here. Threads: any.
struct ExpiryWaker {
  std::atomic<int64_t> wake_below{
      INT64_MIN};  ///< deadlines (ms) before this one wake; set by the reaper before it sleeps
  std::function<void()> wake;  ///< any thread; must not block. Set once, before the first client

  /// An entry with this date (and so this deadline) became visible.
  void Entered(ExpiryState& state, int64_t millis, int64_t deadline) {
    if (!state.Lower(millis)) return;
    if (!state.noted.exchange(true, std::memory_order_acq_rel)) {
      std::lock_guard l(mutex_);
      noted_.push_back(&state);
    }
    Note(deadline);
  }
  /// A document with this deadline exists: a reader met it, or it was added.
  void Note(int64_t deadline) {
    if (deadline < wake_below.load(std::memory_order_acquire) && wake) wake();
  }
  /// The states noted since the last call. An index and its state may be gone by now: follow a
  /// pointer only if something else keeps the state alive, and clear `noted` before reading
  /// next_millis.
  std::vector<const ExpiryState*> TakeNoted() {
    std::lock_guard l(mutex_);
    return std::exchange(noted_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<const ExpiryState*> noted_;
};

/// The date in an encoded index value (storage/keys/key_encoding.cc); false when it is of another
/// type.
bool DecodeDate(std::string_view encoded, bool descending, Instant* date);

}  // namespace mayfly
