#include "server/dispatch/replication_gate.h"

#include <algorithm>
#include <boost/asio/async_result.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "protocol/error_labels.h"
#include "protocol/field_once.h"
#include "security/time_keys.h"
#include "server/dispatch/io_timer.h"
#include "server/dispatch/server_context.h"
#include "storage/catalog/catalog.h"
#include "storage/storage.h"

namespace mayfly {

namespace asio = boost::asio;

namespace {

/// How long a client has to read an error with news before hellos report the news too.
constexpr std::chrono::milliseconds kNewsBeforeHello(25);
/// A client may have seen a time that this member does not know yet; no member has issued one
/// further ahead of all known times than this.
constexpr uint64_t kAheadSeconds = 10;
constexpr int64_t kNudgeMicros = 100'000;
constexpr uint64_t kMaxDriftSeconds = 365ull * 24 * 3600;  ///< maxAcceptableLogicalClockDriftSecs

void AppendClusterTime(uint64_t ts, const TimeSignature& signature, BsonBuilder& reply) {
  BsonBuilder c = reply.OpenDocument("$clusterTime");
  c.AppendTimestamp("clusterTime", ts);
  BsonBuilder s = c.OpenDocument("signature");
  s.AppendBinary("hash", 0, signature.view()).Append("keyId", signature.key_id);
}

}  // namespace

// --- defaults ------------------------------------------------------------------------------------

std::shared_ptr<const RWConcernDefaults::Values> RWConcernDefaults::get() const {
  std::lock_guard l(mutex_);
  return values_;
}

void RWConcernDefaults::Load(Storage& storage) {
  auto row = storage.catalog().GetSetting(kSetting);
  if (!row) return;
  const BsonDocument doc = row.value() ? BsonDocument(*row.value()) : BsonDocument();
  auto v = std::make_shared<Values>();
  if (doc.view()["defaultReadConcern"].IsDocument())
    v->read = BsonDocument(doc.view()["defaultReadConcern"].Document());
  if (doc.view()["defaultWriteConcern"].IsDocument())
    v->write = BsonDocument(doc.view()["defaultWriteConcern"].Document());
  if (doc.view()["updateOpTime"].Is(BsonType::kTimestamp))
    v->update_op_time = doc.view()["updateOpTime"].Timestamp();
  if (doc.view()["updateWallClockTime"].IsDate())
    v->update_wall_millis = doc.view()["updateWallClockTime"].Date().millis;
  v->local_wall_millis = storage.clock().Now().millis;
  std::lock_guard l(mutex_);
  custom_ = !v->write.view().empty();
  values_ = std::move(v);
}

Result<void> RWConcernDefaults::Set(Storage& storage, Operation& op, Values values) {
  const BsonDocument doc = BuildBson([&](BsonBuilder& b) {
    if (!values.read.view().empty()) b.Append("defaultReadConcern", values.read);
    if (!values.write.view().empty()) b.Append("defaultWriteConcern", values.write);
    b.AppendTimestamp("updateOpTime", values.update_op_time);
    b.Append("updateWallClockTime", Instant{values.update_wall_millis});
  });
  MAYFLY_TRY(storage.catalog().PutSetting(op, kSetting, doc.bytes()));
  Load(storage);
  return Ok();
}

WriteConcern RWConcernDefaults::CustomWriteConcern() const {
  const auto v = get();
  WriteConcern wc;
  wc.majority = true;
  auto parsed = ParseWriteConcern(v->write.view().AsValue(), true);
  if (parsed) wc = std::move(parsed).value();
  wc.given = false;
  return wc;
}

// --- snapshot reads ------------------------------------------------------------------------------

Error SnapshotReads::TooOld(uint64_t ts) {
  too_old_.fetch_add(1, std::memory_order_relaxed);
  return {ErrorCode::kSnapshotTooOld,
          "Read timestamp " + std::to_string(ts >> 32) + ":" + std::to_string(ts & 0xFFFFFFFF) +
              " is not one that a snapshot read has begun at in the last " +
              std::to_string(window_seconds_.load()) +
              " seconds (minSnapshotHistoryWindowInSeconds)"};
}

void SnapshotReads::SweepLocked(std::vector<Kept>* gone) {
  const int64_t window = window_seconds_.load();
  const int64_t micros = clock_.MonotonicMicros() - window * 1'000'000;
  const int64_t millis = clock_.Now().millis - window * 1000;
  size_t unused = 0;
  for (const Kept& k : kept_) unused += k.point.use_count() == 1;
  std::erase_if(kept_, [&](Kept& k) {
    const bool used = k.point.use_count() > 1;
    const bool over = k.taken_micros < micros || k.taken.millis < millis;
    if (!over && (used || unused <= kMost) && kept_.size() - gone->size() <= kMaxTotal)
      return false;
    unused -= !used;
    gone->push_back(std::move(k));
    return true;
  });
}

Result<ReadViewPtr> SnapshotReads::Open(ReplicaSet& set, uint64_t at) {
  std::vector<Kept> gone;  // let go of outside the lock
  std::unique_lock l(mutex_);
  SweepLocked(&gone);
  auto find = [&](uint64_t ts) -> ReadViewPtr {
    for (Kept& k : kept_)
      if (k.point->ts() == ts) return k.point->View();
    return nullptr;
  };
  ReadViewPtr view = find(at != 0 ? at : set.applied_ts());
  Result<void> taken = Ok();
  if (view == nullptr && (at == 0 || at == set.applied_ts())) {
    if (Result<std::shared_ptr<ReadPoint>> point = set.TakeReadPoint(); !point) {
      taken = std::move(point).error();
    } else if (const uint64_t ts = point.value()->ts(); at == 0 || at == ts) {
      view = find(ts);
      if (view == nullptr) {
        view = point.value()->View();
        kept_.push_back({std::move(point).value(), clock_.MonotonicMicros(), clock_.Now()});
      }
    }
  }
  l.unlock();
  for (Kept& k : gone) k.point->Release();
  MAYFLY_TRY(std::move(taken));
  if (view == nullptr) return TooOld(at);
  return view;
}

Result<ReadViewPtr> SnapshotReads::Continue(ReadPoint& point) {
  Sweep();
  if (ReadViewPtr view = point.View()) return view;
  return TooOld(point.ts());
}

void SnapshotReads::Sweep() {
  std::vector<Kept> gone;
  {
    std::lock_guard l(mutex_);
    SweepLocked(&gone);
  }
  for (Kept& k : gone) k.point->Release();
}

void SnapshotReads::Clear() {
  std::lock_guard l(mutex_);
  for (Kept& k : kept_) k.point->Release();
  kept_.clear();
  any_hidden_.Forget();
}

SnapshotReads::Totals SnapshotReads::totals() const {
  Totals t;
  t.too_old = too_old_.load(std::memory_order_relaxed);
  std::lock_guard l(mutex_);
  t.points = static_cast<int64_t>(kept_.size());
  if (!kept_.empty())
    t.oldest_seconds = (clock_.MonotonicMicros() - kept_.front().taken_micros) / 1'000'000;
  return t;
}

namespace replication_gate {

void AppendWriteConcern(const WriteConcern& wc, BsonBuilder& out) {
  BsonBuilder d = out.OpenDocument("writeConcern");
  if (!wc.mode.empty())
    d.Append("w", wc.mode);
  else if (wc.majority)
    d.Append("w", "majority");
  else
    d.Append("w", static_cast<int32_t>(wc.w));
  if (wc.journal) d.Append("j", true);
  d.Append("wtimeout", static_cast<int32_t>(wc.wtimeout_ms));
  d.Append("provenance", wc.given ? "clientSupplied" : "customDefault");
}

Result<void> CheckState(ReplicaSet& set, const CommandRow& row, const CommandRequest& req,
                        bool legacy_secondary_ok) {
  if (set.writable()) [[likely]]
    return Ok();
  if (row.flags & kWrites) {
    if (req.db == "local") return Ok();
    return Error{ErrorCode::kNotWritablePrimary, "not primary"};
  }
  if (!(row.flags & kSecondaryOptIn) || req.db == "local") return Ok();
  bool secondary_ok = legacy_secondary_ok;
  if (!req.generic.read_preference.missing()) {
    const BsonValue mode = req.generic.read_preference.Document()["mode"];
    secondary_ok = secondary_ok || (mode.IsString() && mode.String() != "primary");
  }
  if (!secondary_ok)
    return Error{ErrorCode::kNotPrimaryNoSecondaryOk, "not primary and secondaryOk=false"};
  if (!set.readable())
    return Error{ErrorCode::kNotPrimaryOrSecondary, "node is not in primary or recovering state"};
  return Ok();
}

/// Whether the time was signed by a member. Errors: as CheckClusterTime.
static Result<void> CheckSignature(TimeKeys& keys, uint64_t ts, BsonView doc) {
  const BsonValue given = doc["signature"];
  std::string_view hash;
  int64_t key_id = 0;
  if (!given.missing()) {
    if (!given.Is(BsonType::kDocument))
      return Error{ErrorCode::kTypeMismatch, "\"signature\" had the wrong type. Expected object"};
    const BsonValue h = given.Document()["hash"], k = given.Document()["keyId"];
    if (!h.Is(BsonType::kBinary) || !k.IsNumber())
      return Error{ErrorCode::kTypeMismatch,
                   "\"signature\" has a binary \"hash\" and a number \"keyId\""};
    hash = h.BinaryData();
    key_id = k.NumberAsInt64();
  }
  return keys.Check(ts, hash, key_id);
}

Result<void> CheckClusterTime(ServerContext& server, BsonView doc, const UserAccess* access,
                              Instant now) {
  ReplicaSet& set = *server.replica_set();
  const BsonValue t = doc["clusterTime"];
  if (t.missing()) return Error{ErrorCode::kNoSuchKey, "Missing expected field \"clusterTime\""};
  if (!t.Is(BsonType::kTimestamp))
    return Error{ErrorCode::kTypeMismatch,
                 "\"clusterTime\" had the wrong type. Expected timestamp, found " +
                     std::string(BsonTypeName(t.type()))};
  const uint64_t ts = t.Timestamp();
  if (ts <= set.cluster_time()) return Ok();
  if ((ts >> 32) > static_cast<uint64_t>(now.millis / 1000) + kMaxDriftSeconds)
    return Error{ErrorCode::kBadValue, "New cluster time, " + std::to_string(ts >> 32) +
                                           ", is too far from this node's wall clock time, " +
                                           std::to_string(now.millis / 1000) + "."};
  if (!server.access().enforced()) return Ok();
  TimeKeys& keys = server.access().time_keys();
  if (ts <= keys.believed()) return Ok();
  static constexpr ActionSet kAdvance{Action::advanceClusterTime};
  if (access == nullptr || !access->privileges.AllowsOnCluster(kAdvance)) {
    // The first keys have not arrived here yet: the time may be valid, but is not accepted.
    if (!keys.any()) return Ok();
    MAYFLY_TRY(CheckSignature(keys, ts, doc));
  }
  keys.Believe(ts);
  return Ok();
}

/// For a server outside a set: everything it has committed is on the majority of its one
/// member.
static Result<void> CheckStandaloneReadConcern(const CommandContext& ctx, const CommandRow& row,
                                               BsonView rc) {
  const bool level = ctx.read_concern == ReadConcernLevel::kLinearizable ||
                     ctx.read_concern == ReadConcernLevel::kSnapshot;
  if (level || ctx.after_cluster_time != 0 || ctx.at_cluster_time != 0) {
    const std::string_view what = level                          ? rc["level"].String()
                                  : !rc["afterOpTime"].missing() ? "afterOpTime"
                                  : ctx.at_cluster_time != 0     ? "atClusterTime"
                                                                 : "afterClusterTime";
    return Error{ErrorCode::kNotAReplicaSet,
                 "node needs to be a replica set member to use readConcern: " + std::string(what)};
  }
  // Every command accepts the read concern that MongoDB uses by default.
  if (!(row.flags & kTakesReadConcern) && ctx.read_concern != ReadConcernLevel::kLocal)
    return Error{ErrorCode::kInvalidOptions,
                 "Command " + std::string(row.name) + " does not support readConcern"};
  return Ok();
}

namespace {

/// Including fields that are not read below: a transaction keeps and shows the whole document.
Result<void> CheckReadConcernFields(BsonView rc) {
  const auto wrong = [](std::string_view name, BsonValue v, const char* expected) {
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field 'readConcern." + std::string(name) + "' is the wrong type '" +
                     std::string(BsonTypeName(v.type())) + "', expected type '" + expected + "'"};
  };
  constexpr std::string_view kFields[] = {"level", "afterClusterTime", "atClusterTime",
                                          "afterOpTime", "provenance"};
  unsigned seen = 0;
  for (const BsonElement& e : rc) {
    MAYFLY_TRY(FieldOnce("readConcern", kFields, e.name, &seen));  // others are refused below
    if (e.name == "afterOpTime" && e.value.IsDocument()) {
      size_t fields = 0;
      for (const BsonElement& part : e.value.Document()) {
        if (++fields > 2 || (part.name != "ts" && part.name != "t"))
          return Error{ErrorCode::kUnknownField, "BSON field 'readConcern.afterOpTime." +
                                                     std::string(part.name.substr(0, 64)) +
                                                     "' is an unknown field."};
        if (part.name == "t" && !part.value.IsNumber())
          return wrong("afterOpTime.t", part.value, "long");
      }
    }
    if (e.name != "provenance") continue;
    if (!e.value.IsString()) return wrong(e.name, e.value, "string");
    const std::string_view given = e.value.String();
    if (given != "clientSupplied" && given != "customDefault" && given != "implicitDefault")
      return Error{ErrorCode::kBadValue, "Enumeration value '" + std::string(given.substr(0, 64)) +
                                             "' for field 'readConcern.provenance' is not a valid "
                                             "value."};
  }
  return Ok();
}

}  // namespace

Result<void> ParseReadConcern(CommandContext& ctx, const CommandRow& row, BsonView rc,
                              bool transaction) {
  MAYFLY_TRY(CheckReadConcernFields(rc));
  for (const BsonElement& e : rc) {
    if (e.name == "level") {
      if (!e.value.IsString())
        return Error{ErrorCode::kTypeMismatch,
                     "BSON field 'readConcern.level' is the wrong type '" +
                         std::string(BsonTypeName(e.value.type())) + "', expected type 'string'"};
      const std::string_view level = e.value.String();
      if (level == "local")
        ctx.read_concern = ReadConcernLevel::kLocal;
      else if (level == "available")
        ctx.read_concern = ReadConcernLevel::kAvailable;
      else if (level == "majority")
        ctx.read_concern = ReadConcernLevel::kMajority;
      else if (level == "linearizable")
        ctx.read_concern = ReadConcernLevel::kLinearizable;
      else if (level == "snapshot")
        ctx.read_concern = ReadConcernLevel::kSnapshot;
      else
        return Error{ErrorCode::kBadValue,
                     "Enumeration value '" + std::string(level) +
                         "' for field 'readConcern.level' is not a valid value."};
    } else if (e.name == "afterClusterTime" || e.name == "atClusterTime") {
      if (!e.value.Is(BsonType::kTimestamp))
        return Error{ErrorCode::kTypeMismatch, "BSON field 'readConcern." + std::string(e.name) +
                                                   "' is the wrong type '" +
                                                   std::string(BsonTypeName(e.value.type())) +
                                                   "', expected type 'timestamp'"};
      if (e.value.Timestamp() == 0)
        return Error{ErrorCode::kInvalidOptions,
                     "readConcern." + std::string(e.name) + " cannot be null"};
      (e.name[1] == 'f' ? ctx.after_cluster_time : ctx.at_cluster_time) = e.value.Timestamp();
    } else if (e.name == "afterOpTime") {
      if (!e.value.IsDocument() || !e.value.Document()["ts"].Is(BsonType::kTimestamp))
        return Error{ErrorCode::kTypeMismatch,
                     "BSON field 'readConcern.afterOpTime' must be {ts: timestamp, t: long}"};
      ctx.after_cluster_time = e.value.Document()["ts"].Timestamp();
    } else if (e.name != "provenance") {
      return Error{ErrorCode::kUnknownField,
                   "BSON field 'readConcern." + std::string(e.name) + "' is an unknown field."};
    }
  }
  if (ctx.server.replica_set() == nullptr) return CheckStandaloneReadConcern(ctx, row, rc);
  if (row.name == "getMore" || row.name == "killCursors") {
    // Drivers repeat the read concern of a snapshot session there: a cursor goes on reading what
    // the command that opened it read.
    ctx.read_concern = ReadConcernLevel::kLocal;
    ctx.at_cluster_time = 0;
    return Ok();
  }
  if (!(row.flags & kTakesReadConcern) && !rc.empty() && !transaction) {
    // Drivers send afterClusterTime within a causally consistent session to more than reads.
    if (ctx.read_concern != ReadConcernLevel::kLocal || ctx.at_cluster_time != 0)
      return Error{ErrorCode::kInvalidOptions,
                   "Command " + std::string(row.name) + " does not support readConcern"};
  }
  if (ctx.read_concern == ReadConcernLevel::kSnapshot && !transaction && row.name != "find" &&
      row.name != "aggregate" && row.name != "distinct")
    return Error{ErrorCode::kInvalidOptions,
                 "readConcern level snapshot is only valid for find, aggregate and distinct "
                 "outside of a transaction"};
  if (ctx.after_cluster_time != 0 && ctx.at_cluster_time != 0)
    return Error{
        ErrorCode::kInvalidOptions,
        "Specifying a timestamp for both 'atClusterTime' and 'afterClusterTime' is not allowed"};
  if (ctx.at_cluster_time != 0 && ctx.read_concern != ReadConcernLevel::kSnapshot)
    return Error{ErrorCode::kInvalidOptions,
                 "readConcern.atClusterTime is only allowed with readConcern level 'snapshot'"};
  if (ctx.read_concern == ReadConcernLevel::kLinearizable && ctx.after_cluster_time != 0)
    return Error{
        ErrorCode::kInvalidOptions,
        "afterClusterTime field can be set only if level is equal to majority, local, or snapshot"};
  return Ok();
}

bool MustWaitBefore(ReplicaSet& set, const CommandContext& ctx) {
  return ctx.read_concern == ReadConcernLevel::kLinearizable ||
         ctx.read_concern == ReadConcernLevel::kSnapshot ||
         std::max(ctx.after_cluster_time, ctx.at_cluster_time) > set.applied_ts();
}

namespace {

/// Returns when a majority has said that this member led after the call, and what was acknowledged
/// before it is applied here.
Awaitable<Result<void>> ConfirmLeads(CommandContext& ctx) {
  ReplicaSet& set = *ctx.server.replica_set();
  auto answer = std::make_shared<std::optional<Result<uint64_t>>>();
  // References only: GCC 12 destroys what a lambda within a co_await expression has captured twice.
  // A copy of `answer` here was released once too often, and the count that then went down was
  // another thread's memory (the entry of the replication log that seemed moved by one byte).
  // scripts/lib/check_coroutines.py looks for more of these.
  co_await asio::async_initiate<const asio::use_awaitable_t<IoExecutor>, void()>(
      [&set, &answer, &ctx](auto handler) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        set.consensus().ReadIndex([answer, shared, io = ctx.io](Result<uint64_t> r) {
          asio::post(io, [answer, shared, r = std::move(r)]() mutable {
            answer->emplace(std::move(r));
            std::move (*shared)();
          });
        });
      },
      kAwait);
  if (!**answer) co_return std::move(**answer).error();
  co_return Ok();
}

/// Lets the log's time pass that of the operation, with a note where nothing else is written. What
/// fell due since the newest entry is then hidden at the log's time too, on every member. Errors:
/// as CommandContext::CheckNow.
Awaitable<Result<void>> TakeLogTimeToNow(CommandContext& ctx, ReplicaSet& set) {
  const uint64_t behind = set.committer().TimestampBehind(ctx.op.now.millis);
  while (set.applied_ts() < behind && set.writable()) {
    CollectionNotifier::Watch watch(ctx.server.notifier(),
                                    static_cast<uint32_t>(ReplEvent::kApplied));
    if (set.applied_ts() >= behind) break;
    MAYFLY_CO_TRY(co_await watch.WaitFor(ctx, ctx.server.clock().MonotonicMicros() + 1'000'000));
  }
  co_return Ok();
}

/// The view of a snapshot read, and its clock.
Awaitable<Result<void>> OpenSnapshot(CommandContext& ctx, ReplicaSet& set, bool transaction) {
  // The clock of a point is its newest entry's: it may be long past, and what a read of the present
  // shows must not be.
  bool its_clock = ctx.at_cluster_time != 0;
  if (!its_clock && !transaction) {
    its_clock = true;
    if (set.writable() && set.last_applied().wall_millis < ctx.op.now.millis) {
      AnyHidden& hidden = ctx.server.snapshot_reads().any_hidden();
      const std::optional<bool> known = hidden.Known(ctx.server.storage(), ctx.op.now);
      if (known) {
        its_clock = *known;
      } else {
        co_await ctx.MoveToWorker();  // there may be many collections
        Result<bool> found = hidden.Look(ctx.server.storage(), ctx.op);
        co_await ctx.MoveToIo();
        MAYFLY_CO_TRY(its_clock, std::move(found));
      }
      // Where nothing can be hidden both clocks show the same.
      if (its_clock) {
        MAYFLY_CO_TRY(co_await TakeLogTimeToNow(ctx, set));
      }
    }
  }
  MAYFLY_CO_TRY(ctx.op.view, ctx.server.snapshot_reads().Open(set, ctx.at_cluster_time));
  ctx.op.read_ts = ctx.op.view->point()->ts();
  if (its_clock) ctx.op.now = ctx.op.view->point()->now();
  co_return Ok();
}

}  // namespace

Awaitable<Result<void>> WaitBefore(CommandContext& ctx, bool transaction) {
  ReplicaSet& set = *ctx.server.replica_set();
  if (ctx.read_concern == ReadConcernLevel::kLinearizable) {
    if (!set.writable())
      co_return Error{ErrorCode::kNotWritablePrimary,
                      "cannot satisfy linearizable read concern on non-primary node"};
    co_return co_await ConfirmLeads(ctx);
  }
  const uint64_t wanted = std::max(ctx.after_cluster_time, ctx.at_cluster_time);
  if (wanted > set.cluster_time()) {
    const uint64_t clock =
        static_cast<uint64_t>(std::max<int64_t>(set.clock().RightTime().millis, 0)) / 1000;
    const uint64_t known = std::max(set.known_time(), ctx.server.access().time_keys().believed());
    if ((wanted >> 32) > std::max(known >> 32, clock) + kAheadSeconds)
      co_return Error{
          ErrorCode::kInvalidOptions,
          "readConcern afterClusterTime value must not be greater than the current clusterTime"};
  }
  bool nudged = false;
  while (set.applied_ts() < wanted) {
    CollectionNotifier::Watch watch(ctx.server.notifier(),
                                    static_cast<uint32_t>(ReplEvent::kApplied));
    if (set.applied_ts() >= wanted) break;
    const int64_t now = ctx.server.clock().MonotonicMicros();
    // A client has seen a later time than the log's. An entry moves the log there once this
    // primary's own clock has reached that time: a client's word does not move it ahead.
    if (!nudged && set.writable() &&
        (set.committer().last_ts() >= wanted ||
         set.clock().Now().millis / 1000 > static_cast<int64_t>(wanted >> 32))) {
      nudged = true;
      set.committer().SubmitNoop(BuildBson([](BsonBuilder& b) {
                                   b.Append("noop write for afterClusterTime read concern", 1);
                                 }),
                                 [](Result<void>) {});
    }
    MAYFLY_CO_TRY(co_await watch.WaitFor(ctx, now + (nudged ? 10'000'000 : kNudgeMicros)));
  }
  // Documents that were hidden from the session before must be hidden here too, after this
  // secondary has caught up.
  ctx.op.ReadClock();
  if (ctx.read_concern != ReadConcernLevel::kSnapshot) co_return Ok();
  co_return co_await OpenSnapshot(ctx, set, transaction);
}

bool WriteConcernAppliesToError(const Operation& op, ErrorCode code) {
  if (IsRetryableWriteError(code)) return false;
  switch (code) {
    case ErrorCode::kInterrupted:
    case ErrorCode::kMaxTimeMSExpired:
    case ErrorCode::kInternalError:
      return false;
    // Mostly from parsing.
    case ErrorCode::kBadValue:
    case ErrorCode::kFailedToParse:
    case ErrorCode::kTypeMismatch:
    case ErrorCode::kInvalidOptions:
    case ErrorCode::kInvalidNamespace:
    case ErrorCode::kMissingField:
    case ErrorCode::kUnknownField:
    case ErrorCode::kCommandNotFound:
      return op.commit_ts != 0;
    default:
      return true;
  }
}

Awaitable<void> WaitForWriteConcern(CommandContext& ctx, BsonBuilder& reply) {
  ReplicaSet& set = *ctx.server.replica_set();
  const WriteConcern& wc = ctx.write_concern;
  WriteConcernTarget target;
  target.majority = wc.majority;
  target.w = wc.w;
  target.mode = wc.mode;
  target.journal = wc.journal;
  auto& counts = ctx.data.metrics().write_concern;
  auto fail = [&](ErrorCode code, std::string_view message, bool timed_out) {
    if (timed_out) counts.wait_timeouts.Add();
    if (timed_out && !wc.given) counts.default_timeouts.Add();
    if (code == ErrorCode::kUnsatisfiableWriteConcern && !wc.given)
      counts.default_unsatisfiable.Add();
    {
      BsonBuilder e = reply.OpenDocument("writeConcernError");
      e.Append("code", static_cast<int32_t>(code)).Append("codeName", ErrorCodeName(code));
      e.Append("errmsg", message);
      BsonBuilder info = e.OpenDocument("errInfo");
      if (timed_out) info.Append("wtimeout", true);
      AppendWriteConcern(wc, info);
    }
    // The write is done once whoever asks again (driver specification "Retryable Writes").
    if (ctx.txn_number && IsRetryableWriteError(code)) {
      BsonArrayBuilder labels = reply.OpenArray("errorLabels");
      labels.Append("RetryableWriteError");
    }
  };
  if (auto known = set.CheckTarget(target); !known) {
    fail(known.error().code, known.error().message, false);
    co_return;
  }
  /// Counted however it ends.
  struct Waits {
    CommandContext& ctx;
    const bool counts;
    const int64_t began = ctx.data.clock().MonotonicMicros();
    ~Waits() {
      if (!counts) return;
      ctx.data.metrics().write_concern.waits.Add();
      ctx.data.metrics().write_concern.wait_micros.Add(ctx.data.clock().MonotonicMicros() - began);
    }
  } waits{.ctx = ctx, .counts = !wc.majority && (wc.w > 1 || !wc.mode.empty())};
  constexpr std::string_view kTimedOut = "waiting for replication timed out";
  const int64_t deadline = ctx.op.commit_deadline_micros;
  if (ctx.op.commit_timed_out) {
    fail(ErrorCode::kWriteConcernFailed, kTimedOut, true);
    co_return;
  }
  if (target.majority && ctx.op.commit_ts == 0) {
    Result<void> led = co_await ConfirmLeads(ctx);
    if (!led) fail(led.error().code, led.error().message, false);
    co_return;
  }
  const uint64_t index = set.applied_index();
  while (!set.Satisfied(target, index)) {
    CollectionNotifier::Watch watch(ctx.server.notifier(),
                                    static_cast<uint32_t>(ReplEvent::kProgress));
    if (set.Satisfied(target, index)) break;
    const int64_t now = ctx.server.clock().MonotonicMicros();
    if (deadline != 0 && now >= deadline) {
      fail(ErrorCode::kWriteConcernFailed, kTimedOut, true);
      co_return;
    }
    if (!set.writable()) {
      fail(ErrorCode::kPrimarySteppedDown, "Primary stepped down while waiting for replication",
           false);
      co_return;
    }
    // Half a second at most: what makes it true may also be a change of the configuration.
    const int64_t until = std::min(now + 500'000, deadline != 0 ? deadline : INT64_MAX);
    Result<bool> woken = co_await watch.WaitFor(ctx, until);
    if (!woken) {
      fail(woken.error().code, woken.error().message, false);
      co_return;
    }
  }
}

void AppendTimes(ServerContext& server, const Operation& op, BsonBuilder& reply) {
  ReplicaSet& set = *server.replica_set();
  if (set.applied_ts() == 0) return;
  const uint64_t time = op.commit_ts != 0 ? op.commit_ts : set.OperationTime();
  const uint64_t now = std::max({set.committer().last_ts(), set.applied_ts(), time});
  AccessControl& access = server.access();
  TimeSignature signature;
  bool shown = true;
  if (access.signs_times()) {
    // Without a key, others would take the time for a forged one.
    shown = access.time_keys().Sign(now, &signature) || !access.enforced();
    const auto seconds = static_cast<int64_t>(now >> 32);
    if (access.time_keys().Due(seconds) && set.writable())
      server.workers().Post([&server, seconds] { KeepTimeKeys(server, seconds); });
  }
  if (shown) AppendClusterTime(now, signature, reply);
  reply.AppendTimestamp("operationTime", time);
}

void KeepTimeKeys(ServerContext& server, int64_t seconds) {
  Operation op(server.clock());
  if (auto kept = server.access().KeepTimeKeys(op, seconds); !kept)
    server.log().Write(LogSeverity::kWarning, LogComponent::kAccess, 9000136,
                       "The keys that sign cluster times could not be stored",
                       BuildBson([&](BsonBuilder& b) { b.Append("error", kept.error().message); }));
}

void AppendErrorDetails(CommandContext& ctx, ErrorCode code, BsonBuilder& reply) {
  ReplicaSet& set = *ctx.server.replica_set();
  // A shutdown is news: with the version that the client knows it would take the error for an old
  // one and go on sending; without one it would wait for the hello that is under way, up to ten
  // seconds. The hello comes a moment later than the error: the other way round the client would
  // know the version from the hello, and take the error for an old one after all.
  const bool shutdown =
      code == ErrorCode::kInterruptedAtShutdown || code == ErrorCode::kShutdownInProgress;
  if (!shutdown && !IsNotPrimaryError(code)) return;
  auto version = static_cast<int64_t>(set.topology()->counter);
  if (shutdown) {
    bool announce = false;
    version = set.ReserveTopologyVersion(&announce);
    if (announce) {
      auto timer = std::make_shared<asio::steady_timer>(ctx.io, kNewsBeforeHello);
      timer->async_wait([timer, &set](boost::system::error_code) { set.NewTopologyVersion(); });
    }
  }
  BsonBuilder t = reply.OpenDocument("topologyVersion");
  t.AppendObjectId("processId", ctx.server.process_id()).Append("counter", version);
}

}  // namespace replication_gate
}  // namespace mayfly
