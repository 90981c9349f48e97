#include "server/base/top.h"

#include <algorithm>
#include <vector>

#include "protocol/utf8.h"

namespace mayfly {

Top::Entry* Top::Find(std::string_view ns) {
  // A client's collection name may be invalid: with a NUL it cannot name a field of the reply,
  // without valid UTF-8 others could not read it, and one as long as a message would be kept for
  // ever.
  if (ns.size() > kMaxNameBytes || ns.find('\0') != std::string_view::npos || !IsUtf8(ns))
    ns = kOthers;
  std::lock_guard l(mutex_);
  std::string key(ns);
  auto it = entries_.find(key);
  if (it == entries_.end()) {
    if (entries_.size() >= kMaxNamespaces) key = kOthers;
    it = entries_.try_emplace(std::move(key), nullptr).first;
    if (!it->second) it->second = std::make_unique<Entry>();
  }
  return it->second.get();
}

const Top::Entry* Top::Peek(std::string_view ns) const {
  std::lock_guard l(mutex_);
  auto it = entries_.find(std::string(ns));
  return it == entries_.end() ? nullptr : it->second.get();
}

void Top::Append(BsonBuilder& totals) const {
  std::vector<std::pair<std::string_view, const Entry*>> all;
  {
    // The first user of a collection waits for it; entries never move.
    std::lock_guard l(mutex_);
    for (const auto& [ns, e] : entries_) all.emplace_back(ns, e.get());
  }
  std::sort(all.begin(), all.end());
  static constexpr std::string_view kNames[kKinds] = {"queries", "getmore", "insert",
                                                      "update",  "remove",  "commands"};
  for (const auto& [ns, e] : all) {
    BsonBuilder d = totals.OpenDocument(ns);
    auto put = [&](std::string_view name, const Entry::Usage& u) {
      BsonBuilder x = d.OpenDocument(name);
      x.Append("time", u.micros.Get()).Append("count", u.count.Get());
    };
    const LatencyHistogram &r = e->reads, &w = e->writes;
    auto put_lock = [&](std::string_view name, int64_t micros, int64_t count) {
      d.OpenDocument(name).Append("time", micros).Append("count", count);
    };
    put_lock("total", r.total_micros.Get() + w.total_micros.Get(),
             r.operations.Get() + w.operations.Get());
    put_lock("readLock", r.total_micros.Get(), r.operations.Get());
    put_lock("writeLock", w.total_micros.Get(), w.operations.Get());
    for (int k = 0; k < kKinds; ++k) put(kNames[k], e->usage[k]);
  }
}

}  // namespace mayfly
