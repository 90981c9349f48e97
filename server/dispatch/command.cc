#include "server/dispatch/command.h"

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "protocol/field_once.h"
#include "server/dispatch/io_timer.h"
#include "server/dispatch/operation_registry.h"
#include "server/dispatch/server_context.h"
#include "storage/storage.h"

namespace mayfly {

namespace asio = boost::asio;

CommandRegistry::CommandRegistry() { Rehash(256); }
CommandRegistry::~CommandRegistry() = default;

uint32_t CommandRegistry::Hash(std::string_view s) {
  uint32_t h = 2166136261u;
  for (char c : s) h = (h ^ static_cast<uint8_t>(c)) * 16777619u;
  return h;
}

void CommandRegistry::Rehash(size_t slots) {
  table_.assign(slots, Slot());
  for (size_t i = 0; i < rows_.size(); ++i) {
    auto put = [&](std::string_view name) {
      const uint32_t h = Hash(name);
      size_t at = h & (table_.size() - 1);
      while (table_[at].row >= 0) at = (at + 1) & (table_.size() - 1);
      table_[at] = {name, h, static_cast<int32_t>(i)};
    };
    put(rows_[i].name);
    for (std::string_view a : rows_[i].aliases) put(a);
  }
}

void CommandRegistry::Add(CommandRow row) {
  counters_.push_back(std::make_unique<CommandRow::Counters>());
  row.counters = counters_.back().get();
  rows_.push_back(std::move(row));
  size_t names = 0;
  for (const CommandRow& r : rows_) names += 1 + r.aliases.size();
  Rehash(std::bit_ceil(std::max<size_t>(256, names * 2)));
}

const CommandRow* CommandRegistry::Find(std::string_view name) const {
  const uint32_t h = Hash(name);
  for (size_t at = h & (table_.size() - 1); table_[at].row >= 0;
       at = (at + 1) & (table_.size() - 1))
    if (table_[at].hash == h && table_[at].name == name) return &rows_[table_[at].row];
  return nullptr;
}

Awaitable<void> CommandContext::MoveToWorker() {
  if (on_worker) co_return;
  server.workers().Queued();
  try {
    co_await asio::post(asio::bind_executor(server.workers().executor(), kAwait));
  } catch (...) {
    server.workers().Started();  // no memory to wait in
    throw;
  }
  server.workers().Started();
  on_worker = true;
}

Awaitable<Result<void>> CommandContext::MoveToWorkerWithRoom() {
  constexpr int64_t kPollMicros = 10'000, kLongestMicros = 30'000'000;
  NetworkBuffers& buffers = server.network_buffers();
  WaitLine::Place place(buffers.reply_line);
  int64_t until = 0;
  for (;;) {
    // Checked on the worker: requests of the same time have had their turn before.
    co_await MoveToWorker();
    if (buffers.reply_line.empty() && buffers.ReplyRoom()) [[likely]]
      co_return Ok();
    const int64_t now = server.clock().MonotonicMicros();
    if (place.MayTake(now) && buffers.ReplyRoom()) co_return Ok();
    place.Enter(now);
    if (until == 0) until = now + kLongestMicros;
    if (now >= until)
      co_return Error{ErrorCode::kExceededMemoryLimit,
                      "there was no room for another reply for half a minute: too many clients do "
                      "not read theirs; try again later"};
    MAYFLY_CO_TRY(co_await SleepUntil(now + kPollMicros));
  }
}

Awaitable<void> CommandContext::MoveToIo() {
  if (!on_worker) co_return;
  co_await asio::post(asio::bind_executor(io, kAwait));
  on_worker = false;
}

/// State shared by a committer on another thread and the coroutine that waits for it.
struct CommitState {
  std::atomic<int> phase{0};  // 0 submitted, 1 somebody waits, 2 done
  Result<void> result = Ok();
  std::function<void()> resume;
};

bool SubmittedCommit::done() const { return state_->phase.load(std::memory_order_acquire) == 2; }
Result<void> SubmittedCommit::Take() { return std::move(state_->result); }

SubmittedCommit CommandContext::Submit(WriteUnit unit) {
  auto state = std::make_shared<CommitState>();
  server.storage().committer().Submit(
      std::move(unit), write_concern.commit_options(), [state](Result<void> r) {
        state->result = std::move(r);
        if (state->phase.exchange(2, std::memory_order_acq_rel) == 1) state->resume();
      });
  return SubmittedCommit(std::move(state));
}

Awaitable<Result<void>> CommandContext::Wait(SubmittedCommit commit) {
  CommitState& state = *commit.state_;
  if (commit.done()) co_return std::move(state.result);
  co_await asio::async_initiate<const asio::use_awaitable_t<IoExecutor>, void()>(
      [this, &state](auto handler) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        state.resume = [io = io, shared] { asio::post(io, [shared] { std::move (*shared)(); }); };
        int expected = 0;
        if (!state.phase.compare_exchange_strong(expected, 1, std::memory_order_acq_rel))
          state.resume();
      },
      kAwait);
  co_return std::move(state.result);
}

Awaitable<Result<void>> CommandContext::Commit(WriteUnit unit) {
  // A wait that may end before the outcome is known is the blocking one's.
  if (op.commit_deadline_micros != 0) co_await MoveToWorker();
  if (on_worker)
    co_return server.storage().committer().Commit(std::move(unit), write_concern.commit_options());
  SubmittedCommit commit = Submit(std::move(unit));
  if (commit.done()) co_return commit.Take();
  co_return co_await Wait(std::move(commit));
}

Awaitable<Result<void>> CommandContext::SleepUntil(int64_t monotonic_micros) {
  if (on_worker) co_await MoveToIo();
  const int64_t begin = server.clock().MonotonicMicros();
  if (op.deadline_micros != 0) monotonic_micros = std::min(monotonic_micros, op.deadline_micros);
  auto timer = std::make_shared<IoTimer>(io);
  timer->expires_at(
      std::chrono::steady_clock::time_point(std::chrono::microseconds(monotonic_micros)));
  if (client != nullptr &&
      !client->SetKillWaker([timer, ex = io] { asio::post(ex, [timer] { timer->cancel(); }); }))
    co_return op.CheckInterrupt();
  co_await timer->async_wait(asio::as_tuple(kAwait));
  if (client != nullptr) client->SetKillWaker({});
  waited_micros += server.clock().MonotonicMicros() - begin;
  co_return CheckNow();
}

Awaitable<Result<void>> CommandContext::WaitToWrite() {
  for (;;) {
    // Set before the check, so that a lock that comes between the two sees it.
    if (client != nullptr) client->SetWrites(true);
    if (server.fsync_locks.load() == 0) co_return Ok();
    if (client != nullptr) client->SetWrites(false);
    Result<void> slept = co_await SleepUntil(server.clock().MonotonicMicros() + 20'000);
    if (!slept) co_return slept;
  }
}

Result<void> CommandContext::CheckNow() {
  int32_t none = 0;
  if (op.deadline_micros != 0 && server.clock().MonotonicMicros() >= op.deadline_micros)
    op.kill_code.compare_exchange_strong(none, static_cast<int32_t>(ErrorCode::kMaxTimeMSExpired));
  return op.CheckInterrupt();
}

Result<WriteConcern> ParseWriteConcern(BsonValue value, bool replicated) {
  WriteConcern wc;
  if (value.missing()) return wc;
  wc.given = true;
  bool fsync = false;
  constexpr std::string_view kOnce[] = {"w", "j", "fsync", "wtimeout"};
  unsigned seen = 0;
  for (const BsonElement& e : value.Document()) {
    const BsonValue v = e.value;
    MAYFLY_TRY(FieldOnce("writeConcern", kOnce, e.name, &seen));
    if (e.name == "w") {
      if (v.IsNumber()) {
        wc.w = v.NumberAsInt64();
        if (wc.w < 0 || wc.w > 50)
          return Error{ErrorCode::kFailedToParse,
                       "w has to be a non-negative number and not greater than 50; found: " +
                           std::to_string(wc.w)};
        wc.unacknowledged = wc.w == 0;
      } else if (v.IsString()) {
        if (v.String() == "majority") {
          wc.majority = true;
        } else if (replicated) {
          wc.mode = std::string(v.String());
        } else {
          return Error{ErrorCode::kBadValue, "cannot use non-majority 'w' mode " +
                                                 std::string(v.String()) +
                                                 " when a host is not a member of a replica set"};
        }
      } else if (v.IsDocument() && replicated) {
        return Error{
            ErrorCode::kBadValue,
            "w: name a mode of the configuration's settings.getLastErrorModes instead of its tags"};
      } else if (v.IsDocument()) {
        return Error{ErrorCode::kBadValue,
                     "cannot use tag sets as 'w' when a host is not a member of a replica set"};
      } else if (!v.IsNull()) {
        return Error{ErrorCode::kFailedToParse, "w has to be a number, string, or object; found: " +
                                                    std::string(BsonTypeName(v.type()))};
      }
    } else if (e.name == "j") {
      if (!v.IsNumber() && !v.Is(BsonType::kBool) && !v.IsNullish())
        return Error{ErrorCode::kFailedToParse, "j must be numeric or a boolean value"};
      wc.journal = v.Truthy();
    } else if (e.name == "fsync") {
      if (!v.IsNumber() && !v.Is(BsonType::kBool) && !v.IsNullish())
        return Error{ErrorCode::kFailedToParse, "fsync must be numeric or a boolean value"};
      fsync = v.Truthy();
    } else if (e.name == "wtimeout") {
      if (!v.IsNumber())
        return Error{ErrorCode::kTypeMismatch,
                     "BSON field 'writeConcern.wtimeout' is the wrong type '" +
                         std::string(BsonTypeName(v.type())) +
                         "', expected types '[long, int, decimal, double]'"};
      wc.wtimeout_ms = v.NumberAsInt64();
    } else if (e.name == "wOpTime" || e.name == "wElectionId" || e.name == "getLastError" ||
               e.name == "provenance") {
      // Sent between servers and by very old drivers; they carry nothing for a standalone.
    } else {
      return Error{ErrorCode::kUnknownField,
                   "BSON field 'writeConcern." + std::string(e.name) + "' is an unknown field."};
    }
  }
  if (fsync && wc.journal)
    return Error{ErrorCode::kFailedToParse, "fsync and j options cannot be used together"};
  if (fsync)
    wc.journal = true;  // both ask for the disk, and syncing the log is how this server gets there
  if (wc.w > 1 && !replicated)
    return Error{ErrorCode::kBadValue, "cannot use 'w' > 1 when a host is not replicated"};
  if (wc.unacknowledged && wc.journal)
    return Error{ErrorCode::kFailedToParse, "cannot have w: 0 with j: true"};
  return wc;
}

}  // namespace mayfly
