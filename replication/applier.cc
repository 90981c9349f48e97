#include "replication/applier.h"

#include <algorithm>
#include <chrono>

namespace mayfly {
namespace {
constexpr size_t kGroupBytes = 4 << 20;  // of one batch of the store
constexpr size_t kKeepBatchBytes = 2 << 20;
constexpr auto kLookAgain = std::chrono::milliseconds(50);  // whether what is held back is due
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
  thread_ = std::thread([this] { Run(); });
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
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
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
    wake_.wait(l, [&] { return stop_ || !queue_.empty(); });
    if (stop_) ForgetHeld();
    if (queue_.empty()) return;
    l.unlock();
    const bool moved = Step();
    l.lock();
    if (!moved) wake_.wait_for(l, kLookAgain, [&] { return stop_ || calls_ > 0; });
  }
}

bool Applier::Step() {
  std::vector<Work> group;
  std::function<void()> call;
  {
    std::unique_lock l(mutex_);
    size_t bytes = 0;
    if (!queue_.empty() && queue_.front().from != 0) {
      // Who leads, and the like, does not wait for hours.
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
      for (const CommittedEntry& e : queue_.front().entries) bytes += e.data.size();
      group.push_back(std::move(queue_.front()));
      queue_.pop_front();
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
    Work& front = queue_.front();  // stays: only this thread takes from the front
    now.from = front.from;
    now.to = front.to;
    now.newest = front.newest;
    now.conf_state = front.conf_state;
    now.configuration = front.configuration;
    // The rows are as of the last entry and must not come before it, nor behind.
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
  batch_->Clear();
  machine_.Prepare(entries_, *batch_);
  log_.StageApplied(*batch_, last, conf_state, configuration);
  // Not synced: the entries are, earlier in the same write-ahead log.
  Result<void> written = log_.kv().Write(*batch_, false);
  if (!written) {
    fatal_("committed entries could not be applied: " + written.error().message);
    return;
  }
  if (batch_->SizeBytes() > kKeepBatchBytes) batch_ = log_.kv().NewBatch();
  log_.Applied(last);
  machine_.Applied(entries_);
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
