#include "server/base/worker_pool.h"

#include <chrono>
#include <system_error>

#include "storage/kv/thread_scheduling.h"

namespace mayfly {

namespace {
/// No job begins for so long although some wait: all threads are held.
constexpr auto kStall = std::chrono::milliseconds(20);
constexpr auto kExtraIdle = std::chrono::seconds(5);
constexpr int kExtraNice = 5;
}  // namespace

WorkerPool::WorkerPool(unsigned threads, std::function<void()> begin, std::function<void()> report)
    : threads_(threads),
      begin_(std::move(begin)),
      report_(std::move(report)),
      io_(static_cast<int>(threads)),
      work_(io_.get_executor()) {
  for (unsigned i = 0; i < threads_; ++i)
    base_.emplace_back([this] {
      begin_();
      for (bool done = false; !done;) {
        try {
          io_.run();
          done = true;
        } catch (...) {
          report_();
        }
      }
    });
  watcher_ = std::thread([this] { WatchLoop(); });
}

void WorkerPool::Watch() {
  std::lock_guard l(mutex_);
  watching_ = true;
  wake_.notify_one();
}

void WorkerPool::WatchLoop() {
  std::unique_lock l(mutex_);
  while (!stop_) {
    wake_.wait(l, [this] { return stop_ || watching_; });
    const uint64_t before = started_.load(std::memory_order_relaxed);
    if (wake_.wait_for(l, kStall, [this] { return stop_; })) break;
    extras_.remove_if([](Extra& e) {
      if (!e.done) return false;
      e.thread.join();
      return true;
    });
    if (waiting_.load() == 0) {
      watching_ = false;
      // Who came in between has still seen it set.
      if (waiting_.load() > 0) watching_ = true;
      continue;
    }
    if (started_.load(std::memory_order_relaxed) != before) continue;
    // One at a time: more threads do not give jobs more processor time, and would take it from the
    // threads that serve connections.
    if (extra_.load() < kMaxExtra) AddExtra();
  }
}

void WorkerPool::AddExtra() {
  Extra& e = extras_.emplace_back();
  extra_.fetch_add(1);
  try {
    e.thread = std::thread([this, &e] {
      begin_();
      // If all of them only compute, the threads that serve sockets and the first workers have
      // priority.
      UseBackgroundScheduling(kExtraNice);
      for (bool idle = false; !idle;) {
        try {
          idle = io_.run_one_for(kExtraIdle) == 0;
        } catch (...) {
          report_();
        }
      }
      extra_.fetch_sub(1);
      e.done = true;
    });
  } catch (const std::system_error&) {
    // No more threads available: the others must suffice.
    extra_.fetch_sub(1);
    extras_.pop_back();
  }
}

void WorkerPool::Join() {
  {
    std::lock_guard l(mutex_);
    stop_ = true;
    wake_.notify_one();
  }
  if (watcher_.joinable()) watcher_.join();
  work_.reset();
  for (std::thread& t : base_)
    if (t.joinable()) t.join();
  base_.clear();
  for (Extra& e : extras_) e.thread.join();
  extras_.clear();
}

}  // namespace mayfly
