#include "storage/expiry/kept_documents.h"

#include <algorithm>

namespace mayfly {
namespace {

/// How long an earlier view may be used: about as long as a transaction.
constexpr int64_t kLingerMillis = 60'000;
/// The number of documents remembered meanwhile; the latest.
constexpr size_t kMostGone = 100'000;
constexpr size_t kFewDocuments = 1024;  ///< documents of a unit, in the map of all

bool Kept(const KeptDocument& d, const KeptUnit& unit, int64_t deadline, int64_t now) {
  if (d.deadline != deadline) return false;
  return d.latest == INT64_MIN ? d.until > now : std::min(d.latest, d.until + unit.passed) > now;
}

}  // namespace

void KeptDocuments::AddLocked(const UnitPtr& unit) {
  if (unit->documents.size() > kFewDocuments) return many_.push_back(unit);
  for (const KeptDocument& d : unit->documents) few_.emplace(d.hash, One{d, unit.get()});
}

void KeptDocuments::RemoveLocked(const UnitPtr& unit) {
  count_.fetch_sub(1);
  if (std::erase(many_, unit) > 0) return;
  for (const KeptDocument& d : unit->documents) {
    auto [it, end] = few_.equal_range(d.hash);
    while (it != end) it = it->second.unit == unit.get() ? few_.erase(it) : std::next(it);
  }
}

void KeptDocuments::ForgetLocked(int64_t now) {
  while (!gone_.empty() &&
         (gone_.front().at < now - kLingerMillis || gone_documents_ > kMostGone)) {
    gone_documents_ -= gone_.front().unit->documents.size();
    RemoveLocked(gone_.front().unit);
    gone_.pop_front();
  }
}

std::optional<int64_t> KeptDocuments::Decide(const std::shared_ptr<KeptUnit>& unit,
                                             const std::function<int64_t()>& clock) {
  std::lock_guard l(mutex_);
  // First: see the class.
  count_.fetch_add(1, std::memory_order_seq_cst);
  const int64_t now = clock();
  const bool late = unit->earliest <= now || unit->looked_to < now;
  if (late || unit->documents.empty()) {
    count_.fetch_sub(1);
    if (late) return std::nullopt;
    return now;
  }
  unit->passed = std::max<int64_t>(0, now - unit->prepared);
  unit->decided = true;
  AddLocked(unit);
  ForgetLocked(now);
  return now;
}

void KeptDocuments::Release(const std::shared_ptr<KeptUnit>& unit, int64_t now, bool visible) {
  if (!unit->decided) return;
  unit->decided = false;
  // An earlier view hides only what fell due meanwhile, which is usually nothing: its reading of
  // the clock is not later than this one.
  auto due = std::make_shared<KeptUnit>();
  due->passed = unit->passed;
  if (visible)
    for (const KeptDocument& d : unit->documents)
      if (d.deadline <= now) due->documents.push_back(d);
  std::lock_guard l(mutex_);
  if (!due->documents.empty()) {
    count_.fetch_add(1);
    AddLocked(due);
    gone_documents_ += due->documents.size();
    gone_.push_back({std::move(due), now});
  }
  RemoveLocked(unit);
  ForgetLocked(now);
}

bool KeptDocuments::AnyAfter(int64_t now) {
  std::lock_guard l(mutex_);
  ForgetLocked(now);
  return count_.load() > 0;
}

bool KeptDocuments::Keeps(uint64_t hash, int64_t deadline, int64_t now, int64_t clock) {
  std::lock_guard l(mutex_);
  ForgetLocked(clock);
  const auto [begin, end] = few_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (Kept(it->second.document, *it->second.unit, deadline, now)) return true;
  const auto by_hash = [](const KeptDocument& d, uint64_t h) { return d.hash < h; };
  for (const UnitPtr& unit : many_) {
    auto d = std::lower_bound(unit->documents.begin(), unit->documents.end(), hash, by_hash);
    for (; d != unit->documents.end() && d->hash == hash; ++d)
      if (Kept(*d, *unit, deadline, now)) return true;
  }
  return false;
}

}  // namespace mayfly
