#include "security/login_backoff.h"

#include <algorithm>
#include <vector>

namespace mayfly {

std::string LoginBackoff::UserKey(std::string_view address, const UserName& user) {
  // NUL is in none of the three, so no two attempts have the same key.
  std::string key = "u";
  key.append(address).push_back('\0');
  key.append(user.db).push_back('\0');
  return key.append(user.user);
}

int64_t LoginBackoff::Delay(const std::string& key, int free, int64_t now) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return 0;
  if (now - at->second.last > kForgetMillis) {
    entries_.erase(at);
    return 0;
  }
  const int beyond = at->second.failures - free;
  if (beyond < 0) return 0;
  return std::min(kMaxDelayMillis, kFirstDelayMillis << std::min(beyond, 20));
}

int64_t LoginBackoff::DelayMillis(std::string_view address, const UserName& user, int64_t now) {
  std::lock_guard l(mutex_);
  return std::max(Delay(UserKey(address, user), kFreeOfUser, now),
                  Delay(AddressKey(address), kFreeOfAddress, now));
}

void LoginBackoff::MakeRoom(int64_t now) {
  std::erase_if(entries_, [&](const auto& e) { return now - e.second.last > kForgetMillis; });
  if (entries_.size() < kMaxEntries) return;
  std::vector<int64_t> times;
  times.reserve(entries_.size());
  for (const auto& [key, e] : entries_) times.push_back(e.last);
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2),
                   times.end());
  const int64_t middle = times[times.size() / 2];
  // Not those of addresses: names that are made up must not push them out.
  std::erase_if(entries_,
                [&](const auto& e) { return e.first[0] == 'u' && e.second.last <= middle; });
  if (entries_.size() < kMaxEntries) return;
  std::erase_if(entries_, [&](const auto& e) { return e.second.last <= middle; });
}

void LoginBackoff::Add(std::string key, int64_t now) {
  if (entries_.size() >= kMaxEntries && !entries_.contains(key)) MakeRoom(now);
  Entry& e = entries_[std::move(key)];
  if (now - e.last > kForgetMillis) e.failures = 0;
  e.failures = std::min(e.failures + 1, 1'000'000);
  e.last = now;
}

void LoginBackoff::Failed(std::string_view address, const UserName& user, int64_t now) {
  std::lock_guard l(mutex_);
  Add(UserKey(address, user), now);
  Add(AddressKey(address), now);
}

void LoginBackoff::Succeeded(std::string_view address, const UserName& user) {
  std::lock_guard l(mutex_);
  entries_.erase(UserKey(address, user));
}

size_t LoginBackoff::size() const {
  std::lock_guard l(mutex_);
  return entries_.size();
}

}  // namespace mayfly
