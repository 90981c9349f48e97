#include "ttl/ttl_monitor.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>

#include "protocol/bson_builder.h"
#include "protocol/large_memory.h"
#include "storage/write/tombstone.h"

namespace mayfly {
namespace {

/// The shortest time between two rounds, so that deadlines in quick succession are handled
/// together.
constexpr auto kPromptInterval = std::chrono::milliseconds(20);
/// How long the thread waits after an exception before it goes on.
constexpr auto kAfterException = std::chrono::milliseconds(1000);
/// How often whoever waits for the thread looks whether its operation is interrupted.
constexpr auto kLookAtInterrupt = std::chrono::milliseconds(20);
/// The longest sleep, so that a wall clock that was set forward is noticed.
constexpr auto kLongestSleep = std::chrono::milliseconds(1000);
/// A rule that failed is tried again after this time, or when the catalog changes.
constexpr int64_t kRetryMillis = 10'000;
/// All rules that have something due get a turn in about this time; a turn is not shorter than
/// kShortestTurn.
constexpr int64_t kRoundMillis = 500, kShortestTurn = 5, kLongestTurn = 50;

}  // namespace

TtlMonitor::TtlMonitor(Storage& storage, Clock& clock, const TtlParameters& parameters,
                       TtlMetrics& metrics, BatchedDeleteMetrics& batched,
                       TtlEnvironment environment)
    : storage_(storage),
      clock_(clock),
      parameters_(parameters),
      metrics_(metrics),
      env_(std::move(environment)),
      guard_(
          storage, clock, parameters, metrics,
          env_.elapsed_micros ? env_.elapsed_micros : [&clock] { return clock.MonotonicMicros(); },
          env_.log),
      schedule_(storage, states_),
      reaper_(storage, clock, parameters, metrics, batched, env_, [this] { return KeepOn(); }) {}

TtlMonitor::~TtlMonitor() { Stop(); }

void TtlMonitor::Start() {
  next_pass_ = SaturatingDeadline(clock_.Now().millis, parameters_.monitor_sleep_secs);
  storage_.expiry_waker().wake = [this] { Wake(); };
  storage_.catalog().OnChange([this] { Wake(); });
  guard_.Open();
  clock_.BeforeJump([this] { guard_.AboutToMove(); });
  clock_.OnJump([this] {
    guard_.AfterJump();
    ControlsChanged();
  });
  thread_ = std::thread(large_memory::WithThisBudget([this] { Run(); }));
}

void TtlMonitor::Stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  reaper_.Stop();
  {
    std::lock_guard l(mutex_);
    woken_ = true;
  }
  wake_.notify_all();
  thread_.join();
  done_.notify_all();
}

void TtlMonitor::Wake() {
  std::lock_guard l(mutex_);
  if (woken_) return;
  woken_ = true;
  wake_.notify_all();
}

void TtlMonitor::ControlsChanged() {
  std::lock_guard l(mutex_);
  woken_ = reconsider_ = true;
  wake_.notify_all();
}

bool TtlMonitor::ConfirmClock() {
  const bool was = guard_.Confirm();
  ControlsChanged();
  return was;
}

void TtlMonitor::Await(std::unique_lock<std::mutex>& l, const uint64_t* count, uint64_t wanted,
                       Operation* op) {
  woken_ = true;
  wake_.notify_all();
  const auto over = [&] { return *count >= wanted || Stopping(); };
  if (op == nullptr) return done_.wait(l, over);
  while (!done_.wait_for(l, kLookAtInterrupt, over))
    if (!op->CheckInterruptNow()) return;
}

void TtlMonitor::RunPass(Operation* op) {
  std::unique_lock l(mutex_);
  Await(l, &passes_done_, ++passes_wanted_, op);
}

void TtlMonitor::Settle(Operation* op) {
  std::unique_lock l(mutex_);
  Await(l, &settles_done_, ++settles_wanted_, op);
}

bool TtlMonitor::Enabled() const {
  return parameters_.monitor_enabled.load(std::memory_order_relaxed) &&
         !storage_.expiry_policy().suspended.load(std::memory_order_relaxed) &&
         (!env_.may_run || env_.may_run());
}

void TtlMonitor::Run() {
  // Clients come first because of the pacer's pauses. This thread does not get a lower priority: it
  // holds locks of the store that clients need (block cache, versions), and if it were kept from
  // the processor while it holds one, clients would wait for tens of milliseconds. The pauses are
  // short, and the kernel's usual timer slack would make them a quarter longer.
  prctl(PR_SET_TIMERSLACK, 10'000UL, 0, 0, 0);
  ExpiryWaker& waker = storage_.expiry_waker();
  while (!Stopping()) {
    uint64_t passes, settles;
    bool reconsider;
    {
      std::lock_guard l(mutex_);
      woken_ = false;
      reconsider = std::exchange(reconsider_, false);
      passes = passes_wanted_;
      settles = settles_wanted_;
    }
    waker.wake_below = INT64_MAX;  // every entry that comes in from here on is noticed
    const int64_t period = parameters_.monitor_sleep_secs.load() * 1000;
    next_pass_ =
        std::min(next_pass_,
                 clock_.Now().millis + period);  // the period was shortened, or the clock set back
    const bool precise = parameters_.monitor_mode.load() == 0;
    int64_t next = INT64_MAX;
    try {
      guard_.Check(!env_.may_run || env_.may_run());
      schedule_.Refresh(clock_.Now().millis);
      if (int64_t rate = parameters_.max_docs_per_second.load(); rate != limiter_.rate()) {
        limiter_.SetRate(rate, clock_.Now().millis);
        reconsider = true;
      }
      const bool pass = passes > passes_done_ || clock_.Now().millis >= next_pass_;
      if (reconsider || pass) {
        limited_until_ = INT64_MIN;
        schedule_.Reconsider();
      }
      schedule_.RetryStalled();
      if (pass) {
        next_pass_ = clock_.Now().millis + period;  // also when what follows throws
        if (Enabled()) {
          if (precise)
            PrecisePass();
          else
            IntervalPass(clock_.Now());
        }
        if (!env_.may_run || env_.may_run()) Purge();
        next_pass_ = clock_.Now().millis + period;
      }
      if (precise && Enabled()) {
        WorkOff(false);
        next = std::max(schedule_.Next(), limited_until_);
      }
    } catch (const std::exception& e) {
      // A bug; the thread goes on, or nothing would expire any more.
      Log('E', "TTL monitor: an exception ended this round", nullptr,
          [&](BsonBuilder& b) { b.Append("error", e.what()); });
      next = clock_.Now().millis + kAfterException.count();
    }
    {
      std::lock_guard l(mutex_);
      passes_done_ = std::max(passes_done_, passes);
      settles_done_ = std::max(settles_done_, settles);
    }
    done_.notify_all();
    waker.wake_below =
        next;  // an earlier deadline wakes the thread; for a later one it sleeps long enough anyway
    int64_t now = clock_.Now().millis;
    int64_t until = std::min(next, next_pass_);
    std::unique_lock l(mutex_);
    auto asked = [&] {
      return settles_wanted_ > settles_done_ || passes_wanted_ > passes_done_ || Stopping();
    };
    if (until > now && !schedule_.HasStalled()) {
      auto sleep = std::min<std::chrono::milliseconds>(
          kLongestSleep, std::chrono::milliseconds(std::min<int64_t>(until - now, 1000)));
      wake_.wait_for(l, sleep, [&] { return woken_ || Stopping(); });
    } else if (!woken_) {
      // Due already: documents that others had locked, or a rule that failed. Try again soon, not
      // at once.
      wake_.wait_for(l, kPromptInterval, asked);
    }
    if (woken_ && precise && settles_wanted_ == settles_done_ && passes_wanted_ == passes_done_)
      wake_.wait_for(l, kPromptInterval, asked);
  }
}

void TtlMonitor::ReportInvalid() {
  for (const InvalidTtlRule& i : schedule_.invalid()) {
    metrics_.invalid_index_skips.Add();
    const uint32_t id = i.index ? i.index->id : i.coll->id;
    if (!reported_.insert(std::to_string(id) + i.reason).second) continue;
    TtlRule rule{i.index ? TtlRule::Kind::kTtlIndex : TtlRule::Kind::kClustered, i.coll, i.index,
                 0};
    Log('E', "TTL index cannot be processed and is skipped", &rule,
        [&](BsonBuilder& b) { b.Append("reason", i.reason); });
  }
}

void TtlMonitor::PrecisePass() {
  Log('D', "TTL pass begins", nullptr);
  ReportInvalid();
  if (WorkOff(true)) {
    metrics_.sub_passes.Add();
    metrics_.passes.Add();
  } else if (!Stopping()) {
    Log('W', "TTL pass was interrupted", nullptr);
  }
  Log('D', "TTL pass ends", nullptr);
}

void TtlMonitor::IntervalPass(Instant at) {
  Log('D', "TTL pass begins", nullptr);
  bool interrupted = false, more;
  do {
    // A sub-pass: a fresh list of rules, visited in turn until each has nothing due or the time is
    // up.
    schedule_.Refresh(at.millis);
    ReportInvalid();
    std::vector<TtlSlot*> pending = schedule_.All();
    const int64_t begin = clock_.MonotonicMicros();
    const int64_t target = parameters_.sub_pass_target_secs.load() * 1'000'000;
    do {
      std::vector<TtlSlot*> unfinished;
      for (TtlSlot* slot : pending) {
        if (!KeepOn()) {
          interrupted = true;
          break;
        }
        VisitLimits limits{parameters_.index_delete_target_docs.load(),
                           parameters_.index_delete_target_time_ms.load()};
        Visit v;
        if (VisitSlot(*slot, at, limits, &v) && v.more && !v.blocked) unfinished.push_back(slot);
      }
      pending = std::move(unfinished);
    } while (!interrupted && !pending.empty() && clock_.MonotonicMicros() - begin < target);
    more = !pending.empty();
    if (!interrupted) metrics_.sub_passes.Add();
  } while (more && !interrupted);
  if (interrupted && !Stopping()) Log('W', "TTL pass was interrupted", nullptr);
  if (!interrupted) metrics_.passes.Add();
  Log('D', "TTL pass ends", nullptr);
}

bool TtlMonitor::WorkOff(bool pass) {
  int64_t sub_pass = clock_.MonotonicMicros();
  for (;;) {
    guard_.Check(!env_.may_run || env_.may_run());
    const Instant now = clock_.Now();
    schedule_.Refresh(now.millis);
    if (limited_until_ > now.millis) {
      schedule_.DropQueue();
      return true;
    }
    TtlSlot* slot = schedule_.Take(now.millis);
    if (!slot) return true;
    bool interrupted = !KeepOn() || parameters_.monitor_mode.load() != 0;
    if (!pass && !interrupted) {
      std::lock_guard l(mutex_);
      interrupted = passes_wanted_ > passes_done_ || reconsider_ || now.millis >= next_pass_;
    }
    if (interrupted) {
      schedule_.Place(*slot, slot->not_before);
      schedule_.DropQueue();
      return false;
    }
    // The index is only known to have entries once it has been looked into.
    if (slot->rule.state().next_millis == INT64_MIN) {
      if (!reaper_.Peek(slot->rule)) {
        schedule_.Stall(*slot);
        continue;
      }
      schedule_.Place(*slot);
      if (slot->key > now.millis) continue;
    }
    const int64_t turn = std::clamp(kRoundMillis / static_cast<int64_t>(schedule_.QueueSize() + 1),
                                    kShortestTurn, kLongestTurn);
    const int64_t millis = parameters_.index_delete_target_time_ms.load();
    VisitLimits limits{parameters_.index_delete_target_docs.load(),
                       millis > 0 ? std::min(millis, turn) : turn};
    Visit v;
    VisitSlot(*slot, now, limits, &v);
    const int64_t target = parameters_.sub_pass_target_secs.load() * 1'000'000;
    if (pass && clock_.MonotonicMicros() - sub_pass >= std::max<int64_t>(target, 1)) {
      if (target > 0 && schedule_.Next() <= now.millis) {
        metrics_.sub_passes.Add();
        ReportInvalid();
      }
      sub_pass = clock_.MonotonicMicros();
    }
  }
}

bool TtlMonitor::VisitSlot(TtlSlot& slot, Instant now, VisitLimits limits, Visit* visit) {
  ExpiryState& state = slot.rule.state();
  if (slot.left_until <= now.millis) {
    slot.left_until = INT64_MAX;
    state.TakeLeft();
  }
  const int64_t next = slot.NextMillis();
  if (next == INT64_MAX || (next != INT64_MIN && slot.rule.Deadline(next) > now.millis)) {
    schedule_.Place(slot);
    return true;
  }
  if (!Admit(slot, now, &limits)) return false;
  *visit = reaper_.Run(slot, now, limits);
  limiter_.Spend(visit->deleted);
  slot.limiter.Spend(visit->deleted);
  if (visit->failed)
    schedule_.Place(slot, now.millis + kRetryMillis);
  else if (visit->blocked)
    schedule_.Stall(slot);
  else
    schedule_.Place(slot);
  return !visit->failed;
}

bool TtlMonitor::Admit(TtlSlot& slot, Instant now, VisitLimits* limits) {
  auto wait = [&](TtlWait why, int64_t until) {
    slot.figures->Waits(why, until);
    schedule_.Place(slot, until);
    return false;
  };
  if (env_.may_reap)
    if (Instant from = env_.may_reap(slot.rule, now); from > now)
      return wait(TtlWait::kControl, from.millis);
  auto at_most = [&](int64_t docs) {
    if (docs != INT64_MAX) limits->docs = limits->docs > 0 ? std::min(limits->docs, docs) : docs;
  };
  const int64_t next = slot.NextMillis();
  const bool catch_up = slot.limits.catch_up_seconds > 0 && next != INT64_MIN &&
                        slot.rule.Deadline(next) < now.millis - slot.limits.catch_up_seconds * 1000;
  if (!catch_up) {
    // From then on the rule is not limited any more.
    const int64_t lifted =
        slot.limits.catch_up_seconds > 0 && next != INT64_MIN
            ? SaturatingDeadline(slot.rule.Deadline(next) + 1, slot.limits.catch_up_seconds)
            : INT64_MAX;
    if (slot.limits.window && !slot.limits.window->Contains(now))
      return wait(TtlWait::kWindow, std::min(lifted, slot.limits.window->Opens(now).millis));
    const int64_t may = slot.limiter.Available(now.millis);
    if (may == 0) return wait(TtlWait::kLimit, std::min(lifted, slot.limiter.NextMillis()));
    at_most(may);
  }
  const int64_t may = limiter_.Available(now.millis);
  if (may == 0) {
    limited_until_ = limiter_.NextMillis();
    return wait(TtlWait::kLimit, limited_until_);
  }
  at_most(may);
  slot.figures->Waits(TtlWait::kNothing, INT64_MIN);
  return true;
}

void TtlMonitor::Purge() {
  Operation op(clock_);
  Result<bool> purged = PurgeTombstones(storage_, op);
  if (!purged)
    Log('E', "Tombstones could not be purged", nullptr,
        [&](BsonBuilder& b) { b.Append("error", purged.error().message); });
}

void TtlMonitor::Log(char severity, std::string_view message, const TtlRule* rule,
                     const std::function<void(BsonBuilder&)>& more) {
  if (!env_.log) return;
  env_.log(severity, message, BuildBson([&](BsonBuilder& b) {
             if (rule) {
               b.Append("namespace", rule->coll->ns);
               if (rule->index) b.Append("index", rule->index->name);
             }
             if (more) more(b);
           }));
}

}  // namespace mayfly
