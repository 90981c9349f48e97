#include <algorithm>

#include "storage/core/storage_impl.h"
#include "storage/schema/catalog_impl.h"

// Earlier moments of the catalog.

namespace mayfly {

class CatalogImpl::Moment final : public CatalogMoment {
 public:
  Moment(CatalogImpl& catalog, uint64_t version) : catalog_(catalog), version_(version) {}
  ~Moment() override { catalog_.Unpin(version_); }
  uint64_t version() const override { return version_; }
  Result<CollectionInfoPtr> Find(std::string_view db, std::string_view collection) const override {
    return catalog_.FindAt(version_, db, collection);
  }

 private:
  CatalogImpl& catalog_;
  const uint64_t version_;
};

std::shared_ptr<const CatalogMoment> CatalogImpl::PinMoment() {
  std::unique_lock l(mutex_);
  const uint64_t version = version_.load(std::memory_order_relaxed);
  moments_.insert(version);
  return std::make_shared<Moment>(*this, version);
}

void CatalogImpl::Unpin(uint64_t version) {
  std::deque<Past> gone;  // dies outside the lock
  std::unique_lock l(mutex_);
  moments_.erase(moments_.find(version));
  const uint64_t oldest = moments_.empty() ? UINT64_MAX : *moments_.begin();
  while (!past_.empty() && past_.front().version <= oldest) {
    UncountPastLocked(past_.front().change);
    gone.push_back(std::move(past_.front()));
    past_.pop_front();
  }
  if (moments_.empty()) past_of_.clear();
  l.unlock();
}

void CatalogImpl::KeepPastLocked(uint64_t version, const Replacement& change) {
  const int64_t bytes = PastBytes(change);
  PastOfDatabase& of = past_of_[PastDatabase(change)];
  past_.push_back({version, change});
  past_bytes_ += bytes;
  of.bytes += bytes;
  ++of.changes;
}

void CatalogImpl::UncountPastLocked(const Replacement& change) {
  const int64_t bytes = PastBytes(change);
  past_bytes_ -= bytes;
  const auto of = past_of_.find(PastDatabase(change));
  of->second.bytes -= bytes;
  if (--of->second.changes == 0 && of->second.lost == 0) past_of_.erase(of);
}

void CatalogImpl::TrimPastLocked() {
  // Dropped definitions must not fill the memory of definitions.
  const int64_t most_bytes = DefinitionMemory::Most() / 4;
  if (past_.size() <= kMaxPast && past_bytes_ <= most_bytes) return;
  const uint64_t oldest = moments_.empty() ? UINT64_MAX : *moments_.begin();
  while (past_.size() > kMaxPast || past_bytes_ > most_bytes) {
    const bool many = past_.size() > kMaxPast;
    // Whoever reads an earlier moment of another database is not disturbed by it.
    const auto most =
        std::max_element(past_of_.begin(), past_of_.end(), [many](const auto& a, const auto& b) {
          return many ? a.second.changes < b.second.changes : a.second.bytes < b.second.bytes;
        });
    const auto first = std::find_if(past_.begin(), past_.end(), [&](const Past& p) {
      return PastDatabase(p.change) == most->first;
    });
    most->second.lost = first->version;
    // A rename into another database is lost for both.
    if (const CollectionInfoPtr& after = first->change.after; after && after->db != most->first)
      past_of_[after->db].lost = std::max(past_of_[after->db].lost, first->version);
    UncountPastLocked(first->change);
    past_.erase(first);
  }
  std::erase_if(past_of_,
                [&](const auto& d) { return d.second.changes == 0 && d.second.lost <= oldest; });
}

Result<CollectionInfoPtr> CatalogImpl::FindAt(uint64_t version, std::string_view db,
                                              std::string_view collection) {
  std::shared_lock l(mutex_);
  if (const auto of = past_of_.find(db); of != past_of_.end() && version < of->second.lost)
    return Error{ErrorCode::kSnapshotUnavailable,
                 "Unable to read from a snapshot: collections and indexes of this database have "
                 "changed more often since, or by larger definitions, than is kept. Start again "
                 "with a new snapshot"};
  auto is = [&](const CollectionInfoPtr& c) { return c && c->db == db && c->name == collection; };
  // The first change after that moment that has to do with the name says what it was before.
  for (size_t i = 0; i < past_.size(); ++i) {
    if (past_[i].version <= version || !(is(past_[i].change.before) || is(past_[i].change.after)))
      continue;
    for (size_t j = i; j < past_.size() && past_[j].version == past_[i].version; ++j)
      if (is(past_[j].change.before)) return past_[j].change.before;
    return CollectionInfoPtr();
  }
  auto it = by_ns_.find({db, collection});
  return it == by_ns_.end() ? ShownLocked(db, collection) : it->second;
}

}  // namespace mayfly
