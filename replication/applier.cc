#include "replication/applier.h"
#include "protocol/large_memory.h"

#include <algorithm>
#include <chrono>

#include "storage/kv/write_room.h"

namespace mayfly {
namespace {
constexpr size_t kGroupBytes = 4 << 20;  // bytes of entries that become one batch of the store
constexpr size_t kKeepAppliedBatchBytes = 2 << 20;
constexpr size_t kLargeBatch = 256 << 10;
constexpr auto kLookForRoom = std::chrono::milliseconds(2);
constexpr auto kMaxApplierWait = std::chrono::seconds(1);
// How often it is checked whether a held-back entry is due.
constexpr auto kLookAtHeldBack = std::chrono::milliseconds(50);
}  // namespace

Applier::Applier(LogStore& log, StateMachine& machine, std::function<void(std::string_view)> fatal,
                 std::function<void()> moved)
    : log_(log),
      machine_(machine),
      fatal_(std::move(fatal)),
      moved_(std::move(moved)),
      batch_(log.kv().NewBatch()) {}

Applier::~Applier() { Stop(); }

void Applier::StartThread() {
  thread_ = std::thread(large_memory::WithThisBudget([this] { Run(); }));
}

void Applier::Stop() {
  std::multimap<uint64_t, std::function<void(Result<void>)>> waiters;
  {
    std::lock_guard l(mutex_);
    stop_ = true;
    waiters.swap(waiters_);
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  for (auto& [index, done] : waiters)
    done(Error{ErrorCode::kInterruptedAtShutdown, "the server is shutting down"});
}

void Applier::Push(Work work) {
  {
    std::lock_guard l(mutex_);
    calls_ += work.call != nullptr;
    if (!work.call && !work.entries.empty() && work.done.empty() && machine_.Holds()) {
      work.from = work.entries.front().position.index;
      work.to = work.entries.back().position.index;
      work.entries.clear();
      work.keep.clear();
      Work* last = queue_.empty() ? nullptr : &queue_.back();
      const bool plain = work.conf_state.empty() && work.configuration.empty();
      if (plain && last && last->from != 0 && last->conf_state.empty() &&
          last->configuration.empty())
        last->to = work.to;
      else
        queue_.push_back(std::move(work));
      return wake_.notify_one();
    }
    Enqueue(std::move(work));
  }
  wake_.notify_one();
}

void Applier::Enqueue(Work work) {
  const size_t n = work.entries.size();
  size_t begin = 0;
  auto alone = [&](size_t i) { return machine_.StandsAlone(work.entries[i]); };
  while (begin < n) {
    size_t end = begin + 1;
    const bool stands = alone(begin);
    while (!stands && end < n && !alone(end)) ++end;
    if (begin == 0 && end == n) break;
    Work part;
    part.alone = stands;
    part.entries.assign(work.entries.begin() + static_cast<ptrdiff_t>(begin),
                        work.entries.begin() + static_cast<ptrdiff_t>(end));
    for (size_t i = begin; i < std::min(end, work.done.size()); ++i)
      part.done.push_back(std::move(work.done[i]));
    part.keep = work.keep;
    if (end == n) {
      // The rows are as of the last entry.
      part.conf_state = std::move(work.conf_state);
      part.configuration = std::move(work.configuration);
    }
    queue_.push_back(std::move(part));
    begin = end;
    if (begin == n) return;
  }
  work.alone = n == 1 && alone(0);
  queue_.push_back(std::move(work));
}

void Applier::PushUrgent(std::function<void()> call) {
  {
    std::lock_guard l(mutex_);
    urgent_.push_back(std::move(call));
  }
  wake_.notify_one();
}

bool Applier::RunUrgent() {
  std::deque<std::function<void()>> calls;
  {
    std::lock_guard l(mutex_);
    calls.swap(urgent_);
  }
  for (auto& call : calls) call();
  return !calls.empty();
}

void Applier::ForgetHeld() {
  std::erase_if(queue_, [](const Work& w) { return w.from != 0; });
}

void Applier::Drain() {
  std::mutex m;
  std::condition_variable done;
  bool idle = false;
  PushCall([&] {
    {
      std::lock_guard queue(mutex_);
      ForgetHeld();
    }
    std::lock_guard l(m);
    idle = true;
    done.notify_one();
  });
  std::unique_lock l(m);
  done.wait(l, [&] { return idle; });
}

void Applier::WhenApplied(uint64_t index, std::function<void(Result<void>)> done) {
  bool closed = false;
  {
    std::lock_guard l(mutex_);
    closed = stop_;
    if (!closed && log_.applied().index < index) {
      waiters_.emplace(index, std::move(done));
      return;
    }
  }
  if (closed)
    done(Error{ErrorCode::kInterruptedAtShutdown, "the server is shutting down"});
  else
    done(Ok());
}

void Applier::Run() {
  std::unique_lock l(mutex_);
  for (;;) {
    wake_.wait(l, [&] { return stop_ || !queue_.empty() || !urgent_.empty(); });
    if (stop_) ForgetHeld();
    if (queue_.empty() && urgent_.empty()) return;
    l.unlock();
    const bool moved = Step();
    l.lock();
    if (!moved)
      wake_.wait_for(l, kLookAtHeldBack, [&] { return stop_ || calls_ > 0 || !urgent_.empty(); });
  }
}

bool Applier::Step() {
  if (RunUrgent()) return true;
  std::vector<Work> group;
  std::function<void()> call;
  {
    std::unique_lock l(mutex_);
    size_t bytes = 0;
    if (!queue_.empty() && queue_.front().from != 0) {
      // Entries about leadership and the like must not wait for hours.
      auto it = std::find_if(queue_.begin(), queue_.end(),
                             [](const Work& w) { return w.call != nullptr; });
      if (it == queue_.end()) {
        l.unlock();
        return ApplyDue();
      }
      call = std::move(it->call);
      queue_.erase(it);
      --calls_;
    }
    while (!call && !queue_.empty() && bytes < kGroupBytes && queue_.front().from == 0) {
      if (queue_.front().call) {
        if (!group.empty()) break;
        call = std::move(queue_.front().call);
        queue_.pop_front();
        --calls_;
        break;
      }
      if (queue_.front().alone && !group.empty()) break;
      for (const CommittedEntry& e : queue_.front().entries) bytes += e.data.size();
      group.push_back(std::move(queue_.front()));
      queue_.pop_front();
      if (group.back().alone) break;
    }
  }
  if (call) {
    call();
    return true;
  }
  if (group.empty()) return false;
  Apply(group);
  return true;
}

bool Applier::ApplyDue() {
  Work now;
  bool whole = false;
  {
    std::lock_guard l(mutex_);
    Work& front = queue_.front();  // stays in place: only this thread removes from the front
    now.from = front.from;
    now.to = front.to;
    now.newest = front.newest;
    now.conf_state = front.conf_state;
    now.configuration = front.configuration;
    // The rows describe the state at the last entry, so they must be written together with it.
    whole = !now.conf_state.empty() || !now.configuration.empty();
  }
  auto read = [&](uint64_t from, uint64_t to, size_t bytes,
                  const std::function<void(const LogEntry&)>& each) {
    Result<void> r = log_.Read(from, to + 1, bytes, each);
    if (!r) fatal_(r.error().message);
  };
  bool due = true;
  if (whole && now.newest == 0) {
    read(now.from, now.to, SIZE_MAX, [&](const LogEntry& e) {
      if (ToCommitted(e).kind == CommittedEntry::Kind::kData) now.newest = e.index;
    });
    if (now.newest == 0) now.newest = now.to;
    std::lock_guard l(mutex_);
    queue_.front().newest = now.newest;
  }
  const uint64_t asked = whole ? now.newest : now.from;
  read(asked, asked, 1, [&](const LogEntry& e) { due = machine_.HoldMillis(ToCommitted(e)) <= 0; });
  if (!due) return false;
  auto bytes = std::make_shared<std::deque<std::string>>();
  read(now.from, now.to, whole ? SIZE_MAX : kGroupBytes, [&](const LogEntry& e) {
    if (!due) return;
    due = whole || machine_.HoldMillis(ToCommitted(e)) <= 0;
    if (!due) return;
    LogEntry kept = e;
    kept.data = bytes->emplace_back(e.data);
    kept.context = bytes->emplace_back(e.context);
    now.entries.push_back(ToCommitted(kept));
  });
  now.keep.push_back(bytes);
  const uint64_t last = now.entries.back().position.index;
  std::vector<Work> group;
  group.push_back(std::move(now));
  Apply(group);
  std::lock_guard l(mutex_);
  if (last == queue_.front().to)
    queue_.pop_front();
  else
    queue_.front().from = last + 1;
  return true;
}

Result<void> Applier::WriteBatch(KvBatch& batch) {
  // Large entries reach a secondary one right after another. The store would make this thread wait,
  // and with it the engine's thread, on which small entries depend.
  if (batch.SizeBytes() > kLargeBatch) {
    std::unique_lock l(mutex_);
    const auto until = std::chrono::steady_clock::now() + kMaxApplierWait;
    while (!stop_ && std::chrono::steady_clock::now() < until) {
      l.unlock();
      const bool room = HasRoom(log_.kv());
      l.lock();
      if (room) break;
      wake_.wait_for(l, kLookForRoom, [&] { return stop_; });
    }
  }
  auto write = [&] { return log_.kv().Write(batch, false); };
  Result<void> written = write();
  if (written || writes_ == nullptr || !PatientWrites::MaySucceedLater(written.error()))
    return written;
  return writes_->Await(written.error(), write, [this] { RunUrgent(); });
}

void Applier::GiveUp(std::vector<Work>& group) {
  for (Work& w : group)
    for (Done& done : w.done)
      if (done) done(Error{ErrorCode::kInterruptedAtShutdown, "the server is shutting down"});
}

void Applier::Apply(std::vector<Work>& group) {
  entries_.clear();
  std::string_view conf_state, configuration;
  for (Work& w : group) {
    entries_.insert(entries_.end(), w.entries.begin(), w.entries.end());
    if (!w.conf_state.empty()) conf_state = w.conf_state;
    if (!w.configuration.empty()) configuration = w.configuration;
  }
  if (entries_.empty()) return;
  const LogPosition last = entries_.back().position;
  if (given_up_) return GiveUp(group);
  std::unique_ptr<KvBatch> own;
  if (group.front().alone) own = machine_.BatchFor(entries_.front());
  KvBatch& batch = own ? *own : *batch_;
  if (!own) batch.Clear();
  machine_.Prepare(entries_, batch);
  log_.StageApplied(batch, last, conf_state, configuration);
  // Not synced, because the entries are: they come earlier in the same write-ahead log.
  if (Result<void> written = WriteBatch(batch); !written) {
    given_up_ = written.error().code == ErrorCode::kInterruptedAtShutdown;
    if (given_up_) return GiveUp(group);
    fatal_("committed entries could not be applied: " + written.error().message);
    return;
  }
  log_.Applied(last);
  machine_.Applied(entries_);
  if (batch_->SizeBytes() > kKeepAppliedBatchBytes) batch_ = log_.kv().NewBatch();
  std::vector<std::function<void(Result<void>)>> due;
  {
    std::lock_guard l(mutex_);
    auto end = waiters_.upper_bound(last.index);
    for (auto it = waiters_.begin(); it != end; ++it) due.push_back(std::move(it->second));
    waiters_.erase(waiters_.begin(), end);
  }
  for (Work& w : group)
    for (size_t i = 0; i < w.done.size(); ++i)
      if (w.done[i]) w.done[i](w.entries[i].position);
  for (auto& done : due) done(Ok());
  if (moved_) moved_();
}

}  // namespace mayfly
