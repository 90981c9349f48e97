#include "replication/applier.h"

namespace mayfly {
namespace {
constexpr size_t kGroupBytes = 4 << 20;  // of one batch of the store
constexpr size_t kKeepBatchBytes = 8 << 20;
}  // namespace

Applier::Applier(LogStore& log, StateMachine& machine, std::function<void(std::string_view)> fatal)
    : log_(log), machine_(machine), fatal_(std::move(fatal)), batch_(log.kv().NewBatch()) {}

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
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void Applier::Drain() {
  std::mutex m;
  std::condition_variable done;
  bool idle = false;
  PushCall([&] {
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
    if (queue_.empty()) return;
    l.unlock();
    Step();
    l.lock();
  }
}

bool Applier::Step() {
  std::vector<Work> group;
  std::function<void()> call;
  {
    std::lock_guard l(mutex_);
    size_t bytes = 0;
    while (!queue_.empty() && bytes < kGroupBytes) {
      if (queue_.front().call) {
        if (!group.empty()) break;
        call = std::move(queue_.front().call);
        queue_.pop_front();
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
}

}  // namespace mayfly
