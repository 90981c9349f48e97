#include "server/dispatch/refused_commands.h"

#include <utility>

#include "server/base/client_of.h"

namespace mayfly {
namespace {

std::string CountedKeyOf(const RefusedCommands::Client& client) {
  std::string key = client.user.user.empty() ? std::string() : client.user.Id();
  key += '\0';
  key += ClientOf(client.remote);
  return key;
}

}  // namespace

bool RefusedCommands::Admit(const Client& client, int64_t second) {
  const int64_t limit = limit_.load(std::memory_order_relaxed);
  if (limit == 0) return true;
  std::string key = CountedKeyOf(client);
  std::lock_guard l(mutex_);
  // The caller has taken the counts due from the minute before, unless another thread is about to.
  if (due_.load(std::memory_order_relaxed) == 0 && second / 60 != minute_) {
    entries_.clear();
    bytes_ = 0;
    minute_ = second / 60;
  }
  if (entries_.size() >= kMaxClients && !entries_.contains(key)) key.clear();
  const bool several = key.empty();
  Entry& of = entries_[std::move(key)];
  const int64_t share = limit * kBytesOfEach;
  if (!several && of.written < limit && of.bytes < share && bytes_ < kShares * share) {
    ++of.written;
    return true;
  }
  ++of.repeated.count;
  of.repeated.several = several;
  if (!several) of.repeated.user = client.user;
  of.repeated.local = client.local;
  of.repeated.remote = client.remote;
  if (due_.load(std::memory_order_relaxed) == 0)
    due_.store((minute_ + 1) * 60, std::memory_order_relaxed);
  return false;
}

void RefusedCommands::Wrote(const Client& client, size_t bytes) {
  if (limit_.load(std::memory_order_relaxed) == 0) return;
  const std::string key = CountedKeyOf(client);
  std::lock_guard l(mutex_);
  bytes_ += static_cast<int64_t>(bytes);
  if (const auto it = entries_.find(key); it != entries_.end())
    it->second.bytes += static_cast<int64_t>(bytes);
}

std::vector<RefusedCommands::Repeated> RefusedCommands::TakeRepeated(int64_t second, bool all) {
  const int64_t due = due_.load(std::memory_order_relaxed);
  if (due == 0 || (!all && second < due)) return {};
  ClientStringMap<Entry> entries;
  {
    std::lock_guard l(mutex_);
    if (due_.load(std::memory_order_relaxed) != due) return {};  // another thread has
    entries.swap(entries_);
    bytes_ = 0;
    due_.store(0, std::memory_order_relaxed);
  }
  std::vector<Repeated> out;
  for (auto& [key, of] : entries)
    if (of.repeated.count != 0) out.push_back(std::move(of.repeated));
  return out;
}

}  // namespace mayfly
