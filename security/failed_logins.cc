#include "security/failed_logins.h"

#include <algorithm>

namespace mayfly {

bool Allowance::Take(int64_t second) {
  if (second > at) {
    if (at != 0) left = std::min(burst, left + std::min(second - at, burst) * per_second);
    at = second;
  }
  if (left == 0) return false;
  --left;
  return true;
}

bool FailedLogins::Admit(std::string client, std::string_view local, std::string_view remote,
                         int64_t second) {
  std::lock_guard l(mutex_);
  // The caller has taken the counts due from the minute before, unless another thread is about to.
  if (due_.load(std::memory_order_relaxed) == 0 && second / 60 != minute_) {
    entries_.clear();
    minute_ = second / 60;
  }
  if (entries_.size() >= kMaxClients && !entries_.contains(client)) client.clear();
  Entry& of = entries_[client];
  if (!client.empty() && of.written < kOfMinute && allowance_.Take(second)) {
    ++of.written;
    return true;
  }
  ++of.repeated;
  suppressed_.fetch_add(1, std::memory_order_relaxed);
  of.local = local;
  of.remote = remote;
  if (due_.load(std::memory_order_relaxed) == 0)
    due_.store((minute_ + 1) * 60, std::memory_order_relaxed);
  return false;
}

std::vector<FailedLogins::Repeated> FailedLogins::TakeRepeated(int64_t second, bool all) {
  const int64_t due = due_.load(std::memory_order_relaxed);
  if (due == 0 || (!all && second < due)) return {};
  ClientStringMap<Entry> entries;
  {
    std::lock_guard l(mutex_);
    if (due_.load(std::memory_order_relaxed) != due) return {};  // another thread has
    entries.swap(entries_);
    due_.store(0, std::memory_order_relaxed);
  }
  std::vector<Repeated> out;
  for (auto& [client, of] : entries)
    if (of.repeated != 0)
      out.push_back({client, of.repeated, std::move(of.local), std::move(of.remote)});
  return out;
}

}  // namespace mayfly
