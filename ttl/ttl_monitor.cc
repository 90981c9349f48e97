#include "ttl/ttl_monitor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "protocol/bson_builder.h"
#include "storage/expiry_cover.h"

namespace mayfly {
namespace {

/// Deadlines that fall due in quick succession are worked off together: no more rounds than this a
/// second.
constexpr auto kPromptInterval = std::chrono::milliseconds(20);
/// Documents between two looks at whether clients need the machine.
constexpr int64_t kDocumentsPerBreath = 100;
constexpr auto kBreath = std::chrono::microseconds(200);
/// So many point deletes at the head of an index are worth one range delete over them.
constexpr int64_t kCoverAfter = 10'000;
/// The longest sleep, so that a wall clock that was set forward is noticed.
constexpr auto kLongestSleep = std::chrono::milliseconds(1000);

}  // namespace

TtlMonitor::TtlMonitor(Storage& storage, Clock& clock, const TtlParameters& parameters,
                       TtlMetrics& metrics, BatchedDeleteMetrics& batched,
                       TtlEnvironment environment)
    : storage_(storage),
      clock_(clock),
      parameters_(parameters),
      metrics_(metrics),
      batched_(batched),
      env_(std::move(environment)) {}

TtlMonitor::~TtlMonitor() { Stop(); }

void TtlMonitor::Start() {
  started_ = true;
  next_pass_ = SaturatingDeadline(clock_.Now().millis, parameters_.monitor_sleep_secs);
  storage_.expiry_waker().wake = [this] { Wake(); };
  storage_.catalog().OnChange([this] { Wake(); });
  clock_.OnJump([this] { Wake(); });
  thread_ = std::thread([this] { Run(); });
}

void TtlMonitor::Stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
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

void TtlMonitor::RunPass() {
  std::unique_lock l(mutex_);
  uint64_t mine = ++passes_wanted_;
  woken_ = true;
  wake_.notify_all();
  done_.wait(l, [&] { return passes_done_ >= mine || Stopping(); });
}

void TtlMonitor::Settle() {
  std::unique_lock l(mutex_);
  uint64_t mine = ++settles_wanted_;
  woken_ = true;
  wake_.notify_all();
  done_.wait(l, [&] { return settles_done_ >= mine || Stopping(); });
}

bool TtlMonitor::Enabled() const {
  return parameters_.monitor_enabled.load(std::memory_order_relaxed) &&
         (!env_.may_run || env_.may_run());
}

void TtlMonitor::Run() {
  // Clients come first where there are fewer cores than threads. Linux: the priority of this thread alone.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
  ExpiryWaker& waker = storage_.expiry_waker();
  while (!Stopping()) {
    uint64_t passes, settles;
    {
      std::lock_guard l(mutex_);
      woken_ = false;
      passes = passes_wanted_;
      settles = settles_wanted_;
    }
    waker.wake_below = INT64_MAX;  // whatever comes in from here on is looked at
    const int64_t period = parameters_.monitor_sleep_secs.load() * 1000;
    next_pass_ =
        std::min(next_pass_,
                 clock_.Now().millis + period);  // the period was shortened, or the clock set back
    if (passes > passes_done_ || clock_.Now().millis >= next_pass_) {
      if (Enabled()) Pass(clock_.Now());
      next_pass_ = clock_.Now().millis + period;
    }
    bool prompt = parameters_.monitor_mode.load() == 0;
    int64_t next = INT64_MAX;
    if (prompt && Enabled()) {
      Prompt();
      next = NextDeadline();
    }
    {
      std::lock_guard l(mutex_);
      passes_done_ = std::max(passes_done_, passes);
      settles_done_ = std::max(settles_done_, settles);
    }
    done_.notify_all();
    waker.wake_below =
        next;  // an earlier one wakes; one equal or later is what we sleep for anyway
    int64_t now = clock_.Now().millis;
    int64_t until = std::min(next, next_pass_);
    std::unique_lock l(mutex_);
    if (until > now) {
      auto sleep = std::min<std::chrono::milliseconds>(
          kLongestSleep, std::chrono::milliseconds(std::min<int64_t>(until - now, 1000)));
      wake_.wait_for(l, sleep, [&] { return woken_ || Stopping(); });
    } else if (!woken_) {
      // Due already: documents that others had locked, or a rule that failed. Try again soon, not
      // at once.
      wake_.wait_for(l, kPromptInterval, [&] {
        return passes_wanted_ > passes_done_ || settles_wanted_ > settles_done_ || Stopping();
      });
    }
    if (woken_ && prompt && settles_wanted_ == settles_done_ && passes_wanted_ == passes_done_)
      wake_.wait_for(l, kPromptInterval, [&] {
        return settles_wanted_ > settles_done_ || passes_wanted_ > passes_done_ || Stopping();
      });
  }
}

void TtlMonitor::RefreshRules() {
  uint64_t version = storage_.catalog().Version();
  if (version == rules_version_) return;
  invalid_.clear();
  rules_ = ListTtlRules(storage_.catalog(), &invalid_);
  rules_version_ = version;
}

void TtlMonitor::ReportInvalid() {
  for (const InvalidTtlRule& i : invalid_) {
    metrics_.invalid_index_skips.Add();
    if (!reported_.insert(std::to_string(i.index->id) + i.reason).second) continue;
    TtlRule rule{TtlRule::Kind::kTtlIndex, i.coll, i.index, 0};
    Log('E', "TTL index cannot be worked on and is skipped", &rule,
        [&](BsonBuilder& b) { b.Append("reason", i.reason); });
  }
}

void TtlMonitor::Pass(Instant at) {
  Log('D', "TTL pass begins", nullptr);
  bool interrupted = false, more;
  do {
    // A sub-pass: a fresh list of rules, visited in turn until each has nothing due or the time is
    // up.
    RefreshRules();
    ReportInvalid();
    std::vector<TtlRule> pending = rules_;
    const int64_t begin = clock_.MonotonicMicros();
    const int64_t target = parameters_.sub_pass_target_secs.load() * 1'000'000;
    do {
      std::vector<TtlRule> unfinished;
      for (const TtlRule& rule : pending) {
        if (Stopping() || !Enabled()) {
          interrupted = true;
          break;
        }
        Visit v = VisitRule(rule, at,
                            {parameters_.index_delete_target_docs.load(),
                             parameters_.index_delete_target_time_ms.load()});
        if (v.more && !v.failed) unfinished.push_back(rule);
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

bool TtlMonitor::Prompt() {
  for (bool again = true; again;) {
    again = false;
    RefreshRules();
    for (size_t i = 0; i < rules_.size(); ++i) {
      const TtlRule rule = rules_[i];
      if (rule.state().next_millis == INT64_MIN) (void)Peek(rule);
      int64_t next = rule.state().next_millis;
      Instant now = clock_.Now();
      if (next == INT64_MAX || rule.Deadline(next) > now.millis) continue;
      if (Stopping() || !Enabled()) return false;
      // A large backlog of one rule takes turns with the others.
      Visit v = VisitRule(rule, now,
                          {parameters_.index_delete_target_docs.load(),
                           parameters_.index_delete_target_time_ms.load()});
      if (v.more && !v.failed && v.deleted > 0) again = true;
      std::lock_guard l(mutex_);
      if (passes_wanted_ > passes_done_) return false;
    }
    if (clock_.Now().millis >= next_pass_) return false;
  }
  return true;
}

TtlMonitor::Visit TtlMonitor::VisitRule(const TtlRule& rule, Instant at, Limits limits) {
  ExpiryState& state = rule.state();
  const int64_t threshold = rule.Threshold(at);
  const int64_t from = state.resume_millis.load(std::memory_order_acquire);
  if (from > threshold) return {};
  BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("delete", rule.coll->name);
    auto deletes = b.OpenArray("deletes");
    auto d = deletes.OpenDocument();
    {
      auto q = d.OpenDocument("q");
      auto range = q.OpenDocument(rule.index ? std::string_view(rule.index->fields[0].path)
                                  : rule.kind == TtlRule::Kind::kClustered ? "_id"
                                                                           : "$expireAt");
      if (rule.kind != TtlRule::Kind::kClustered)
        range.Append("$gte", Instant{INT64_MIN});
      else
        range.Append("$gte", Instant{0});
      range.Append("$lte", Instant{threshold});
    }
    d.Append("limit", 0);
    if (rule.index) d.Append("hint", rule.index->name);
    d.Done();
    deletes.Done();
    b.Append("$db", rule.coll->db);
  });
  std::shared_ptr<Operation> op;
  if (env_.begin_operation) op = env_.begin_operation(*rule.coll, command);
  if (!op) op = std::make_shared<Operation>(clock_);

  // Raised before the snapshot is taken: see ExpiryState.
  state.next_millis.store(INT64_MAX, std::memory_order_release);
  state.resume_millis.store(threshold == INT64_MAX ? INT64_MAX : threshold + 1,
                            std::memory_order_release);
  const int64_t begin = clock_.MonotonicMicros();
  Result<Visit> r = Reap(*op, rule, from, threshold, limits);
  Visit v;
  if (r) {
    v = r.value();
  } else {
    state.Lower(from);
    v.failed = true;
    // A dropped collection is not an error; the next list of rules will not have it.
    if (r.error().code != ErrorCode::kQueryPlanKilled &&
        r.error().code != ErrorCode::kNamespaceNotFound) {
      if (r.error().code == ErrorCode::kInterrupted)
        Log('W', "TTL deletion was interrupted", &rule);
      else
        Log('E', "TTL deletion failed", &rule,
            [&](BsonBuilder& b) { b.Append("error", r.error().message); });
    }
  }
  if (!v.failed) {
    Result<void> peeked = Peek(rule);
    if (!peeked) state.Lower(from);
  }
  const int64_t took = clock_.MonotonicMicros() - begin;
  if (v.deleted > 0 && env_.profile) env_.profile(*rule.coll, command, *op, took);
  if (v.deleted > 0 && env_.slow_millis && took / 1000 >= env_.slow_millis())
    Log('I', "Deleted expired documents using index", &rule, [&](BsonBuilder& b) {
      b.Append("numDeleted", v.deleted)
          .Append("keysExamined", op->keys_examined)
          .Append("docsExamined", op->docs_examined);
      b.Append("keysDeleted", op->keys_deleted).Append("durationMillis", took / 1000);
    });
  return v;
}

Result<void> TtlMonitor::Peek(const TtlRule& rule) {
  ExpiryState& state = rule.state();
  state.next_millis.store(INT64_MAX, std::memory_order_release);
  int64_t from = state.resume_millis.load(std::memory_order_acquire);
  if (from == INT64_MAX) {
    state.Settled();
    return Ok();
  }
  TtlCursor cursor(storage_, rule, from, INT64_MAX);
  Result<bool> found = cursor.Next();
  if (!found) {
    state.next_millis.store(INT64_MIN, std::memory_order_release);
    return found.error();
  }
  if (found.value()) ExpiryState::LowerTo(state.next_millis, cursor.millis());
  state.Settled();
  return Ok();
}

int64_t TtlMonitor::NextDeadline() {
  RefreshRules();
  int64_t next = INT64_MAX;
  for (const TtlRule& rule : rules_) {
    if (rule.state().next_millis == INT64_MIN) (void)Peek(rule);
    int64_t millis = rule.state().next_millis;
    if (millis == INT64_MAX || millis == INT64_MIN) continue;
    next = std::min(next, rule.Deadline(millis));
  }
  return next;
}

Result<TtlMonitor::Visit> TtlMonitor::Reap(Operation& op, const TtlRule& rule, int64_t from,
                                           int64_t threshold, Limits limits) {
  Visit v;
  const bool batched = parameters_.batch_deletes.load();
  const int64_t batch_docs = batched ? parameters_.batch_target_docs.load() : 1;
  const int64_t batch_micros = parameters_.batch_target_time_ms.load() * 1000;
  const int64_t batch_bytes = parameters_.batch_target_staged_bytes.load();
  const size_t most = batch_docs > 0 ? static_cast<size_t>(batch_docs) : 1000;
  const int64_t end =
      limits.millis > 0 ? clock_.MonotonicMicros() + limits.millis * 1000 : INT64_MAX;
  (void)batch_micros;  // a batch of index entries takes microseconds: the document and byte targets
                       // end it first

  TtlCursor cursor(storage_, rule, from, threshold);
  std::vector<std::string> keys;
  std::vector<std::string_view> views;
  MAYFLY_TRY(bool found, cursor.Next());
  while (found) {
    MAYFLY_TRY(op.CheckInterrupt());
    if (Stopping() || !Enabled() || (limits.docs > 0 && v.deleted >= limits.docs) ||
        clock_.MonotonicMicros() > end) {
      rule.state().Lower(cursor.millis());
      v.more = true;
      break;
    }
    // Gather a batch; the bytes are an estimate by the last one's documents.
    const int64_t first = cursor.millis();
    size_t n = 0;
    for (; found && n < most; ++n) {
      if (keys.size() <= n) keys.emplace_back();
      keys[n].assign(cursor.record_key());
      ++op.keys_examined;
      MAYFLY_TRY(bool next, cursor.Next());
      found = next;
    }
    // One look-up in the store for all: in order of key, each once (an array has several entries).
    std::sort(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(n));
    n = static_cast<size_t>(std::unique(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(n)) -
                            keys.begin());
    views.assign(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(n));
    int busy = 0;
    std::span<const std::string_view> rest(views);
    while (!rest.empty()) {
      // Large documents end a batch early.
      size_t take = rest.size();
      if (batch_bytes > 0 && batched_.docs > 0) {
        int64_t each = std::max<int64_t>(1, batched_.staged_size_bytes / batched_.docs);
        take = std::clamp<size_t>(static_cast<size_t>(batch_bytes / each), 1, rest.size());
      }
      Result<int64_t> deleted = DeleteBatch(op, rule, threshold, rest.first(take), &busy);
      if (!deleted) {
        // What was committed stays; what was not is still there.
        rule.state().Lower(first);
        metrics_.deleted_documents.Add(0);
        if (deleted.error().code == ErrorCode::kWriteConflict) {
          v.more = true;
          return v;
        }
        return deleted.error();
      }
      v.deleted += deleted.value();
      rest = rest.subspan(take);
    }
    if (busy > 0) {
      rule.state().Lower(first);
      v.more = true;
      batched_.refetches_due_to_yield.Add(busy);
    }
    since_breath_ += static_cast<int64_t>(n);
    if (since_breath_ >= kDocumentsPerBreath) Breathe();
  }
  int64_t& uncovered = uncovered_[rule.id()];
  if (rule.kind != TtlRule::Kind::kClustered) uncovered += v.deleted;
  if (!v.more && uncovered >= kCoverAfter) {
    MAYFLY_TRY(bool covered,
               rule.index ? CoverReaped(storage_, op, *rule.coll, *rule.index, threshold)
                          : CoverReapedDeadlines(storage_, op, *rule.coll, threshold));
    if (covered) uncovered = 0;
  }
  return v;
}

Result<int64_t> TtlMonitor::DeleteBatch(Operation& op, const TtlRule& rule, int64_t threshold,
                                        std::span<const std::string_view> keys, int* busy) {
  const int64_t begin = clock_.MonotonicMicros();
  WriteUnit unit(storage_, op);
  unit.set_no_wait(true);
  std::vector<WriteUnit::Locked> locked;
  locked.reserve(keys.size());
  MAYFLY_TRY(unit.LockAndReadMany(*rule.coll, keys, &locked, busy));
  int64_t deleted = 0;
  for (const WriteUnit::Locked& l : locked) {
    ++op.docs_examined;
    std::optional<DeleteCause> cause = IsDue(rule, l.doc, l.expire_at, threshold);
    if (!cause) continue;
    MAYFLY_TRY(unit.Delete(*rule.coll, l, *cause));
    ++deleted;
    batched_.staged_size_bytes.Add(l.doc.size());
  }
  if (deleted == 0) return 0;
  MAYFLY_TRY(storage_.committer().Commit(std::move(unit)));
  op.n_deleted += deleted;
  metrics_.deleted_documents.Add(deleted);
  batched_.batches.Add();
  batched_.docs.Add(deleted);
  batched_.time_in_batch_millis.Add((clock_.MonotonicMicros() - begin) / 1000);
  return deleted;
}

void TtlMonitor::Breathe() {
  since_breath_ = 0;
  if (env_.foreground_busy && env_.foreground_busy()) {
    std::unique_lock l(mutex_);
    done_.wait_for(l, kBreath, [&] { return Stopping(); });
  }
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
