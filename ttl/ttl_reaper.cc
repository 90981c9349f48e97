#include "ttl/ttl_reaper.h"

#include <algorithm>

#include "protocol/bson_builder.h"
#include "protocol/micros.h"
#include "storage/catalog/index_keys.h"
#include "storage/write/expiry_cover.h"
#include "storage/write/transaction_unit.h"
#include "ttl/rule_date.h"

namespace mayfly {
namespace {

/// After this many point deletes at the head of an index, one range delete is written over them:
/// kCoverAfter once the backlog is gone, kCoverEvery while it is being removed. This helps readers
/// after a restart and on other members. Readers here know the head (ExpiryHead). It is not done
/// more often, because the store flushes its memtable each time.
constexpr int64_t kCoverAfter = 10'000, kCoverEvery = 500'000;
/// After this many deleted entries, the blocks at the head of the index may have left the block
/// cache.
constexpr int64_t kWarmAfter = 100;

BsonDocument Command(const TtlRule& rule, int64_t threshold) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("delete", rule.coll->name);
    auto deletes = b.OpenArray("deletes");
    auto d = deletes.OpenDocument();
    {
      auto q = d.OpenDocument("q");
      const bool clustered = rule.kind == TtlRule::Kind::kClustered;
      auto range = q.OpenDocument(rule.index  ? std::string_view(rule.index->fields[0].path)
                                  : clustered ? "_id"
                                              : "$expireAt");
      // Without a lower bound: not every driver can show the earliest date there is, and a bound
      // would exclude nothing.
      if (clustered && rule.coll->is_buckets()) {
        char last[12];
        std::memset(last, 0xFF, sizeof last);
        const int64_t seconds = std::clamp<int64_t>(threshold / 1000, 0, UINT32_MAX);
        for (int i = 0; i < 4; ++i)
          last[i] = static_cast<char>(static_cast<uint8_t>(seconds >> (24 - 8 * i)));
        range.AppendObjectId("$lte", {last, sizeof last});
      } else {
        if (clustered) range.Append("$gte", Instant{0});
        range.Append("$lte", Instant{threshold});
      }
    }
    d.Append("limit", 0);
    if (rule.index) d.Append("hint", rule.index->name);
    d.Done();
    deletes.Done();
    b.Append("$db", rule.coll->db);
  });
}

}  // namespace

/// A visit while it runs.
struct TtlReaper::Work {
  TtlSlot& slot;
  const TtlRule& rule;
  Operation& op;
  const Instant at;
  const int64_t from, threshold;
  const VisitLimits limits;
  const std::string entry;  ///< to begin at; empty: at `from`
  Visit visit;
  int64_t group_first = 0;  ///< earliest date of the group
  std::string last_entry;   ///< key of the last index entry dealt with
  // The position of the cursor behind the group: once the group is done, everything before it is.
  int64_t next_millis = 0;
  std::string next_entry;  ///< empty: at the beginning of next_millis
};

TtlReaper::TtlReaper(Storage& storage, Clock& clock, const TtlParameters& parameters,
                     TtlMetrics& metrics, BatchedDeleteMetrics& batched,
                     const TtlEnvironment& environment, std::function<bool()> keep_on)
    : storage_(storage),
      clock_(clock),
      parameters_(parameters),
      metrics_(metrics),
      batched_(batched),
      env_(environment),
      keep_on_(std::move(keep_on)),
      pacer_(environment.foreground_requests) {}

Visit TtlReaper::Run(TtlSlot& slot, Instant at, VisitLimits limits) {
  const TtlRule rule = slot.rule;  // kept: the list may change while the visit runs
  ExpiryState& state = rule.state();
  const int64_t threshold = rule.Threshold(at);
  const BsonDocument command = Command(rule, threshold);
  std::shared_ptr<Operation> op;
  if (env_.begin_operation) op = env_.begin_operation(*rule.coll, command);
  if (!op) op = std::make_shared<Operation>(clock_);

  // Raised before the snapshot is taken: see ExpiryState. Exchanged, so that an earlier date that a
  // writer noted in between is not forgotten.
  state.next_millis.store(INT64_MAX, std::memory_order_release);
  int64_t from = state.resume_millis.exchange(threshold == INT64_MAX ? INT64_MAX : threshold + 1,
                                              std::memory_order_acq_rel);
  // Goes on where the last visit ended, unless something came in behind that.
  std::string entry = std::exchange(slot.resume_entry, {});
  if (from <= slot.resume_date)
    entry.clear();
  else
    from = slot.resume_date;
  slot.resume_date = INT64_MAX;
  if (entry.empty()) slot.figures->Begins(from);
  if (from > threshold) {
    state.Lower(from);
    Visit v;
    if (Result<void> peeked = Peek(rule); !peeked) {
      v.failed = true;
      v.error = peeked.error().message;
    }
    return v;
  }
  const int64_t begin = clock_.MonotonicMicros();
  Work w{slot, rule, *op, at, from, threshold, limits, std::move(entry)};
  Result<void> r = Reap(w);
  locked_.clear();  // pins blocks of the store
  Visit& v = w.visit;
  if (!r) {
    state.Lower(from);
    // A dropped collection is not an error; the next list of rules will not have it.
    const Error& e = r.error();
    if (e.code == ErrorCode::kWriteConflict) {
      v.more = v.blocked = true;
    } else if (e.code != ErrorCode::kQueryPlanKilled && e.code != ErrorCode::kNamespaceNotFound) {
      v.failed = true;
      v.error = e.message;
      if (e.code == ErrorCode::kInterrupted) {
        Log('W', "TTL deletion was interrupted", rule);
        slot.last_error = v.error;
      }
    }
  }
  // Logged once for each reason, not at each attempt.
  if (!v.error.empty() && v.error != slot.last_error)
    Log('E', "TTL deletion failed", rule, [&](BsonBuilder& b) { b.Append("error", v.error); });
  if (!v.error.empty() || !slot.figures->HasRefused()) slot.last_error = v.error;
  const int64_t took = clock_.MonotonicMicros() - begin;
  slot.figures->Visited(at.millis, v.deleted, v.bytes, v.error);
  slot.figures->Locked(v.locked);
  slot.deleted += v.deleted;
  slot.micros += took;
  slot.keys_examined += op->keys_examined;
  slot.docs_examined += op->docs_examined;
  slot.keys_deleted += op->keys_deleted;
  metrics_.examined_keys.Add(op->keys_examined);
  metrics_.examined_documents.Add(op->docs_examined);
  metrics_.deleted_keys.Add(op->keys_deleted);
  metrics_.duration_micros.Add(took);
  if (v.deleted > 0 && env_.profile) env_.profile(*rule.coll, command, *op, took);
  // For the log, one visit is all the work on a rule until nothing is left to do, or until
  // MongoDB's limits are reached.
  const int64_t millis = parameters_.index_delete_target_time_ms.load(),
                docs = parameters_.index_delete_target_docs.load();
  if (!v.more || (millis > 0 && slot.micros >= MicrosOf(millis)) ||
      (docs > 0 && slot.deleted >= docs))
    LogWork(slot);
  return std::move(v);
}

void TtlReaper::LogWork(TtlSlot& slot) {
  if (slot.deleted > 0 && env_.slow_millis && slot.micros / 1000 >= env_.slow_millis())
    Log('I', "Deleted expired documents using index", slot.rule, [&](BsonBuilder& b) {
      b.Append("numDeleted", slot.deleted)
          .Append("keysExamined", slot.keys_examined)
          .Append("docsExamined", slot.docs_examined);
      b.Append("keysDeleted", slot.keys_deleted).Append("durationMillis", slot.micros / 1000);
    });
  slot.deleted = slot.keys_examined = slot.docs_examined = slot.keys_deleted = slot.micros = 0;
}

Result<void> TtlReaper::Peek(const TtlRule& rule) {
  ExpiryState& state = rule.state();
  state.next_millis.store(INT64_MAX, std::memory_order_release);
  // Raised before the snapshot is taken: see ExpiryState.
  const int64_t from = state.resume_millis.exchange(INT64_MAX, std::memory_order_acq_rel);
  if (from == INT64_MAX) {
    state.Settled();
    return Ok();
  }
  TtlCursor cursor(storage_, rule, from, INT64_MAX);
  Result<bool> found = cursor.Next();
  if (!found) {
    ExpiryState::LowerTo(state.resume_millis, from);
    state.next_millis.store(INT64_MIN, std::memory_order_release);
    return found.error();
  }
  ExpiryState::LowerTo(state.resume_millis, found.value() ? cursor.millis() : from);
  if (found.value()) {
    ExpiryState::LowerTo(state.next_millis, cursor.millis());
    // After a start nothing is known of the head, and many deleted entries may lie in front of it.
    if (from < cursor.millis() && rule.kind != TtlRule::Kind::kDocument) {
      Operation op(clock_);
      WriteUnit unit(storage_, op);
      std::string entry;
      cursor.EntryKey(&entry);
      // If this fails, readers walk over the deleted entries.
      if (RaiseHeadOnCommit(storage_, unit, rule.coll, rule.index, cursor.millis(),
                            std::move(entry)))
        (void)storage_.committer().Commit(std::move(unit));
    }
  }
  state.Settled();
  return Ok();
}

namespace {
/// Documents that are looked up together, at least.
constexpr size_t kLeastRead = 8;
}  // namespace

Result<void> TtlReaper::Reap(Work& w) {
  Visit& v = w.visit;
  ExpiryState& state = w.rule.state();
  const int64_t end =
      w.limits.millis > 0 ? clock_.MonotonicMicros() + MicrosOf(w.limits.millis) : INT64_MAX;
  const bool batched = parameters_.batch_deletes.load();

  TtlCursor cursor(storage_, w.rule, w.from, INT64_MAX, w.entry);
  MAYFLY_TRY(bool found, cursor.Next());
  while (found && cursor.millis() <= w.threshold) {
    MAYFLY_TRY(w.op.CheckInterrupt());
    if (!keep_on_() || (w.limits.docs > 0 && v.deleted >= w.limits.docs) ||
        clock_.MonotonicMicros() > end) {
      v.more = true;
      break;
    }
    pacer_.Begin();
    size_t most = batched ? pacer_.GroupSize() : 1;
    if (w.limits.docs > 0) most = std::min(most, static_cast<size_t>(w.limits.docs - v.deleted));
    w.group_first = cursor.millis();
    dates_.clear();
    size_t n = 0;
    for (; found && n < most && cursor.millis() <= w.threshold; ++n) {
      if (keys_.size() <= n) keys_.emplace_back();
      keys_[n].assign(cursor.record_key());
      dates_.push_back(cursor.millis());
      if (n + 1 == most && w.rule.kind != TtlRule::Kind::kClustered) cursor.EntryKey(&w.last_entry);
      ++w.op.keys_examined;
      MAYFLY_TRY(bool next, cursor.Next());
      found = next;
    }
    w.next_entry.clear();
    w.next_millis = w.threshold == INT64_MAX ? INT64_MAX : w.threshold + 1;
    if (found) {
      w.next_millis = cursor.millis();
      cursor.EntryKey(&w.next_entry);
    }
    // Sorted by key, because the store looks them up together, and without duplicates: a document
    // with an array has several entries.
    std::sort(keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(n));
    n = static_cast<size_t>(std::unique(keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(n)) -
                            keys_.begin());
    views_.assign(keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(n));
    const int64_t deleted = v.deleted;
    for (std::span<const std::string_view> rest(views_); !rest.empty();) {
      const size_t some = std::min(rest.size(), fit_);
      Result<size_t> done = DeleteGroup(w, rest.first(some), some == rest.size());
      if (!done) {
        // Committed removals stay; all other documents are still stored.
        state.Lower(w.group_first);
        return done.error();
      }
      // What a full unit leaves has to be read again, so the next one reads no more than it takes.
      if (done.value() < some)
        fit_ = std::max(done.value(), kLeastRead);
      else if (some == fit_)
        fit_ = std::min(2 * fit_, ReapPacer::kLargest);
      rest = rest.subspan(done.value());
    }
    const int64_t now = clock_.Now().millis;
    for (size_t i = 0; i < dates_.size() && static_cast<int64_t>(i) < v.deleted - deleted;) {
      size_t same = i + 1;
      while (same < dates_.size() && dates_[same] == dates_[i]) ++same;
      metrics_.lag.Record(LagMillis(w.rule.Deadline(dates_[i]), now),
                          static_cast<int64_t>(same - i));
      i = same;
    }
    pacer_.End(n);
    if (w.slot.uncovered >= kCoverEvery && found && !w.last_entry.empty()) {
      MAYFLY_TRY(Cover(w));
    }
  }
  if (found) {
    // Either the first that is not due, or where the next visit goes on.
    if (cursor.millis() <= w.threshold) {
      cursor.EntryKey(&w.slot.resume_entry);
      w.slot.resume_date = cursor.millis();
    } else {
      ExpiryState::LowerTo(state.next_millis, cursor.millis());
    }
  }
  if (!v.more) state.Settled();
  if (!v.more && w.slot.uncovered >= kCoverAfter) {
    w.last_entry.clear();
    MAYFLY_TRY(Cover(w));
  }
  if (found && !v.more && w.rule.index && v.deleted >= kWarmAfter)
    WarmHead(w.rule, cursor.millis());
  return Ok();
}

void TtlReaper::WarmHead(const TtlRule& rule, int64_t millis) {
  TtlCursor head(storage_, rule, millis, INT64_MAX, {}, true);
  Result<bool> found = head.Next();
  Storage::Record record;
  if (found && found.value()) (void)storage_.Fetch(*rule.coll, head.record_key(), &record);
}

Result<void> TtlReaper::Cover(Work& w) {
  MAYFLY_TRY(bool covered, w.rule.index ? CoverReaped(storage_, w.op, *w.rule.coll, *w.rule.index,
                                                      w.threshold, w.last_entry)
                                        : CoverReapedDeadlines(storage_, w.op, *w.rule.coll,
                                                               w.threshold, w.last_entry));
  if (covered) w.slot.uncovered = 0;
  return Ok();
}

namespace {
/// The time that the filters of a rule and of holds may take for one document; then the visit ends.
constexpr int64_t kMaxFilterMicros = 1'000'000;

/// Buckets and what goes into their archive, of one unit.
constexpr size_t kMostStagedOfBuckets = 4 << 20;

/// Why a locked document is to go, and whether a hold keeps it.
struct Due {
  std::optional<DeleteCause> cause;
  bool held = false;
};

/// `holds`: the policy, if there are any. A stopped filter answers no: its document is neither
/// skipped nor removed for that. Time per document is limited, so that no rule's filter blocks the
/// others' turns. Errors: those of an interrupt.
Result<Due> LookAt(Operation& op, const TtlRule& rule, const WriteUnit::Locked& l,
                   int64_t threshold, const ExpiryPolicy* holds, Instant at) {
  const bool filtered = rule.index && rule.index->has_partial_filter;
  if (!filtered && holds == nullptr) [[likely]]
    return Due{IsDue(rule, l.doc, l.expire_at, threshold)};
  const FilteringFor filtering(&op);
  op.deadline_micros = op.clock().MonotonicMicros() + kMaxFilterMicros;
  Due due{IsDue(rule, l.doc, l.expire_at, threshold)};
  const Result<void> stopped = op.CheckInterruptNow();
  due.held = stopped && due.cause && holds && holds->Held(*rule.coll, l.doc, at);
  op.deadline_micros = 0;
  MAYFLY_TRY(stopped);
  return due;
}
}  // namespace

Result<size_t> TtlReaper::DeleteGroup(Work& w, std::span<const std::string_view> keys, bool rest) {
  const bool batching = parameters_.batch_deletes.load();
  const int64_t batch_docs = batching ? parameters_.batch_target_docs.load() : 1;
  const int64_t batch_micros = batching ? MicrosOf(parameters_.batch_target_time_ms.load()) : 0;
  const int64_t batch_bytes = batching ? parameters_.batch_target_staged_bytes.load() : 0;
  const CollectionInfo& coll = *w.rule.coll;
  ExpiryState& state = w.rule.state();
  const ExpiryPolicy& policy = storage_.expiry_policy();
  const bool holds = policy.HasHolds(coll);

  const int64_t begin = clock_.MonotonicMicros();
  WriteUnit unit(storage_, w.op);
  unit.set_no_wait(true);
  locked_.clear();
  int busy = 0;
  MAYFLY_TRY(unit.LockAndReadMany(coll, keys, &locked_, &busy));
  w.visit.locked += TransactionsMet(unit);
  int64_t deleted = 0, bytes = 0, batches = 0, in_batch = 0, bytes_in_batch = 0;
  size_t taken = 0;
  bool full = false;
  while (taken < locked_.size() && !full) {
    const WriteUnit::Locked& l = locked_[taken++];
    ++w.op.docs_examined;
    MAYFLY_TRY(Due due, LookAt(w.op, w.rule, l, w.threshold, holds ? &policy : nullptr, w.at));
    std::optional<DeleteCause>& cause = due.cause;
    if (!cause) continue;
    if (due.held) {
      ExpiryState::LowerTo(state.left_millis, w.group_first);
      if (env_.hold_ends)
        w.slot.left_until = std::min(w.slot.left_until, env_.hold_ends(coll, w.at).millis);
      continue;
    }
    if (Result<void> gone = unit.Delete(coll, l, *cause); !gone) {
      const ErrorCode code = gone.error().code;
      // One document that cannot be removed (the archive already has its unique key) must not keep
      // the others. Halving the group finds such documents. An error of the rule as a whole ends
      // the visit.
      if (code == ErrorCode::kWriteConflict || code == ErrorCode::kIllegalOperation ||
          code == ErrorCode::kQueryPlanKilled || code == ErrorCode::kInternalError)
        return gone.error();
      if (keys.size() > 1) {
        {
          WriteUnit dropped(std::move(unit));
        }  // gives up its locks
        return DeleteGroup(w, keys.first(keys.size() / 2), false);
      }
      w.visit.error = gone.error().message;
      w.slot.figures->Refused(
          DateByRule(w.rule, l.doc, l.expire_at, nullptr).value_or(w.group_first), w.visit.error);
      ExpiryState::LowerTo(state.left_millis, w.group_first);
      continue;
    }
    const int64_t size = l.doc.size();
    ++deleted;
    bytes += size;
    ++in_batch;
    bytes_in_batch += size;
    // A batch of MongoDB's ends by documents, bytes or time; the last two end the group with it.
    if (batch_bytes > 0 && bytes >= batch_bytes) full = true;
    // What an archive makes of a bucket is many times its size.
    if (coll.is_buckets() && unit.SizeBytes() >= kMostStagedOfBuckets) full = true;
    const bool ends = full || in_batch == batch_docs || (batch_docs == 0 && in_batch % 16 == 0);
    if (ends && batch_micros > 0 && clock_.MonotonicMicros() - begin >= batch_micros) full = true;
    if (full || in_batch == batch_docs) {
      ++batches;
      in_batch = bytes_in_batch = 0;
    }
  }
  if (in_batch > 0) ++batches;
  // Documents that a full group has not reached are unlocked and come first in the next one.
  size_t done = keys.size();
  if (taken < locked_.size())
    done = static_cast<size_t>(std::upper_bound(keys.begin(), keys.end(),
                                                std::string_view(locked_[taken - 1].record_key)) -
                               keys.begin());
  if (busy > 0) {
    state.Lower(w.group_first);
    w.visit.more = w.visit.blocked = true;
    batched_.refetches_due_to_yield.Add(busy);
  }
  if (deleted == 0) return done;
  if (rest && done == keys.size() && w.rule.kind != TtlRule::Kind::kDocument)
    RaiseHeadOnCommit(storage_, unit, w.rule.coll, w.rule.index, w.next_millis, w.next_entry);
  MAYFLY_TRY(storage_.committer().Commit(std::move(unit)));
  w.op.n_deleted += deleted;
  w.visit.deleted += deleted;
  w.visit.bytes += bytes;
  if (w.rule.kind != TtlRule::Kind::kClustered) w.slot.uncovered += deleted;
  metrics_.deleted_documents.Add(deleted);
  metrics_.bytes_deleted.Add(bytes);
  if (batching) {
    batched_.batches.Add(batches);
    batched_.docs.Add(deleted);
    batched_.staged_size_bytes.Add(bytes);
    batch_micros_ += clock_.MonotonicMicros() - begin;
    batched_.time_in_batch_millis.Add(batch_micros_ / 1000);
    batch_micros_ %= 1000;
  }
  return done;
}

void TtlReaper::Log(char severity, std::string_view message, const TtlRule& rule,
                    const std::function<void(BsonBuilder&)>& more) {
  if (!env_.log) return;
  env_.log(severity, message, BuildBson([&](BsonBuilder& b) {
             b.Append("namespace", rule.coll->ns);
             if (rule.index) b.Append("index", rule.index->name);
             if (more) more(b);
           }));
}

}  // namespace mayfly
