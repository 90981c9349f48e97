#include "storage/write/local_committer.h"

#include <chrono>
#include <utility>

#include "storage/kv/write_room.h"

namespace mayfly {
namespace {
constexpr int kRoundsOfALeader = 8;
constexpr size_t kKeepBatchBytes = 4 << 20;
constexpr size_t kLargeUnit = 128 << 10;
constexpr size_t kLargeUnitOps = 1024;
/// A unit from this size on is large while the store has no room.
constexpr size_t kLargeWhenCrowded = 4 << 10;
/// The store's room is checked before each large unit, and after this many bytes.
constexpr size_t kLookEvery = 1 << 20;
constexpr auto kLookAgain = std::chrono::milliseconds(2);
/// The longest wait of a unit for room: then the store makes it wait, or fail.
constexpr auto kMaxWaitForRoom = std::chrono::seconds(5);
/// In all rounds together. A change takes about a microsecond.
constexpr size_t kOpsOfALeader = 2048;
}  // namespace

LocalCommitter::LocalCommitter(Storage::Impl& storage, int sync_interval_ms)
    : storage_(storage),
      sync_interval_ms_(sync_interval_ms),
      batch_(storage.kv->NewBatch()),
      applier_(storage),
      writer_thread_([this] { WriterLoop(); }),
      sync_thread_([this] { SyncLoop(); }) {}

LocalCommitter::~LocalCommitter() {
  {
    std::lock_guard l(queue_mutex_);
    closed_ = true;
  }
  writer_wake_.notify_all();
  writer_thread_.join();
  {
    std::lock_guard l(sync_mutex_);
    stop_ = true;
  }
  sync_wake_.notify_one();
  sync_thread_.join();
}

void LocalCommitter::Submit(WriteUnit unit, CommitOptions options, Done done) {
  const size_t ops = unit.impl().OpCount();
  const size_t bytes = unit.SizeBytes();
  const bool crowded = crowded_.load(std::memory_order_relaxed);
  const bool large = bytes > (crowded ? kLargeWhenCrowded : kLargeUnit) || ops > kLargeUnitOps;
  if (large) unit.impl().SortForCommit();
  {
    std::unique_lock l(queue_mutex_);
    if (closed_) {
      l.unlock();
      done(Error{ErrorCode::kInterruptedAtShutdown, "the storage is shutting down"});
      return;
    }
    if (large)
      large_.push_back({std::move(unit), std::move(done), options.journal, bytes,
                        std::chrono::steady_clock::now() + kMaxWaitForRoom});
    else
      waiting_.Push(std::move(unit), std::move(done), options.journal, ops, bytes);
    if (leading_) return;
    leading_ = true;
  }
  Lead(kRoundsOfALeader);
}

void LocalCommitter::Lead(int rounds) {
  const bool writer = rounds == kWithoutEnd;
  bool large_next = false;
  size_t ops = 0;
  for (;;) {
    {
      std::unique_lock l(queue_mutex_);
      const bool small = !waiting_.units.empty();
      if (!small && (large_.empty() || (!writer && no_room_))) {
        leading_ = false;
        if (closed_) writer_wake_.notify_all();
        return;
      }
      ops += waiting_.ops;
      if (!writer && (rounds <= 0 || !small || ops > kOpsOfALeader)) {
        take_lead_ = true;
        writer_wake_.notify_all();
        return;
      }
      const bool large = !large_.empty() && (!small || large_next) && writer && MayWriteLarge(l);
      if (large) {
        Large one = std::move(large_.front());
        large_.pop_front();
        working_.Push(std::move(one.unit), std::move(one.done), one.journal, 0, one.bytes);
      } else if (!waiting_.units.empty()) {
        std::swap(waiting_, working_);
      } else {
        leading_ = false;  // until there is room (WriterLoop)
        return;
      }
      large_next = !large;
    }
    WriteBatch(working_);
    if (!writer) --rounds;
  }
}

bool LocalCommitter::MayWriteLarge(std::unique_lock<std::mutex>& l) {
  l.unlock();
  const bool room = HasRoom(*storage_.kv);
  crowded_.store(!room, std::memory_order_relaxed);
  unseen_bytes_ = 0;
  l.lock();
  no_room_ = !room && !closed_ && std::chrono::steady_clock::now() < large_.front().until;
  return !no_room_;
}

void LocalCommitter::WriterLoop() {
  std::unique_lock l(queue_mutex_);
  for (;;) {
    auto called = [&] { return take_lead_ || (closed_ && !leading_); };
    if (no_room_)
      writer_wake_.wait_for(l, kLookAgain, called);
    else
      writer_wake_.wait(l, called);
    if (!take_lead_) {
      if (large_.empty()) no_room_ = false;
      if (closed_ && !leading_ && large_.empty()) return;
      if (leading_ || large_.empty()) continue;
      leading_ = true;  // looks whether there is room by now
    }
    take_lead_ = false;
    l.unlock();
    Lead(kWithoutEnd);
    l.lock();
  }
}

void LocalCommitter::WriteBatch(Queue& q) {
  batch_->Clear();
  applier_.Prepare(q.units, *batch_);
  Result<void> written = Ok();
  if (batch_->Count() > 0) {
    written = storage_.kv->Write(*batch_, false);
    if (batch_->SizeBytes() > kKeepBatchBytes) batch_ = storage_.kv->NewBatch();
  }
  bool wake = false;
  if (written) {
    applier_.Applied(q.units);
    // After the write, so that the sync that resets it also covers the write.
    if (!dirty_.load()) wake = !dirty_.exchange(true);
  } else {
    applier_.Failed(q.units);
  }
  q.units.clear();
  for (size_t i = 0; i < q.done.size(); ++i) {
    if (written && q.journal[i]) {
      std::lock_guard l(sync_mutex_);
      sync_waiters_.push_back(std::move(q.done[i]));
      wake = true;
    } else {
      q.done[i](written);
    }
  }
  q.done.clear();
  q.journal.clear();
  unseen_bytes_ += std::exchange(q.bytes, 0);
  q.ops = 0;
  if (unseen_bytes_ > kLookEvery) {
    unseen_bytes_ = 0;
    crowded_.store(!HasRoom(*storage_.kv), std::memory_order_relaxed);
  }
  if (wake) {
    std::lock_guard l(sync_mutex_);
    sync_wake_.notify_one();
  }
}

void LocalCommitter::SyncLoop() {
  using std::chrono::milliseconds;
  std::vector<Done> waiters;
  std::unique_lock l(sync_mutex_);
  auto urgent = [&] { return stop_ || !sync_waiters_.empty(); };
  for (;;) {
    sync_wake_.wait(l, [&] { return urgent() || dirty_; });
    if (!urgent()) sync_wake_.wait_for(l, milliseconds(sync_interval_ms_), urgent);
    bool stopping = stop_;
    waiters.swap(sync_waiters_);
    l.unlock();
    if (dirty_.exchange(false) || !waiters.empty()) {
      Result<void> synced = storage_.kv->SyncWal();
      if (!synced && synced.error().code != ErrorCode::kInterruptedAtShutdown)
        storage_.Log('E', "The log could not be synced to disk: " + synced.error().message);
      for (Done& d : waiters) d(synced);
      waiters.clear();
    }
    l.lock();
    if (stopping && sync_waiters_.empty()) return;
  }
}

Result<void> Committer::Commit(WriteUnit unit, CommitOptions options) {
  struct Waiter {
    std::mutex mutex;
    std::condition_variable wake;
    std::optional<Result<void>> result;
    void Set(Result<void> r) {
      std::lock_guard l(mutex);
      result.emplace(std::move(r));
      wake.notify_one();
    }
  };
  Operation* op = unit.impl().op;
  if (op == nullptr || op->commit_deadline_micros == 0 || !OwnedOnceSubmitted(unit)) {
    Waiter w;
    Submit(std::move(unit), options, [&w](Result<void> r) { w.Set(std::move(r)); });
    std::unique_lock l(w.mutex);
    w.wake.wait(l, [&w] { return w.result.has_value(); });
    return std::move(*w.result);
  }
  auto w = std::make_shared<Waiter>();  // may outlive this call
  const auto until =
      std::chrono::steady_clock::time_point(std::chrono::microseconds(op->commit_deadline_micros));
  Submit(std::move(unit), options, [w](Result<void> r) { w->Set(std::move(r)); });
  std::unique_lock l(w->mutex);
  if (w->wake.wait_until(l, until, [&w] { return w->result.has_value(); }))
    return std::move(*w->result);
  op->commit_timed_out = true;
  return Ok();
}

}  // namespace mayfly
