#include "query/plan/plan_cache.h"

#include "query/match/match_expression.h"

namespace mayfly {

std::string QueryShape(const MatchExpression* filter, BsonView sort, BsonView projection) {
  std::string shape;
  if (filter != nullptr) filter->AppendShape(shape);
  shape.push_back('\0');
  shape.append(sort.bytes());
  shape.append(projection.bytes());
  return shape;
}

size_t PlanCache::Slot::bytes() const {
  return sizeof(Slot) + key.size() + entry.signature.size() + entry.created_from.view().size();
}

void PlanCache::Drop(std::list<Slot>::iterator slot) {
  bytes_ -= slot->bytes();
  by_key_.erase(slot->key);
  slots_.erase(slot);
}

std::string PlanCache::Key(const CollectionInfo& coll, std::string_view shape) {
  std::string key(reinterpret_cast<const char*>(coll.uuid.data()), coll.uuid.size());
  key.append(shape);
  return key;
}

std::optional<PlanCache::Entry> PlanCache::Find(const CollectionInfoPtr& coll,
                                                std::string_view shape) {
  std::string key = Key(*coll, shape);
  std::lock_guard lock(mutex_);
  auto it = by_key_.find(key);
  if (it == by_key_.end()) return std::nullopt;
  auto slot = it->second;
  if (slot->coll.lock() != coll) {
    Drop(slot);
    return std::nullopt;
  }
  slots_.splice(slots_.begin(), slots_, slot);
  return slot->entry;
}

void PlanCache::Put(const CollectionInfoPtr& coll, std::string_view shape, Entry entry) {
  std::string key = Key(*coll, shape);
  std::lock_guard lock(mutex_);
  if (auto it = by_key_.find(key); it != by_key_.end()) {
    Drop(it->second);
  }
  slots_.push_front({std::move(key), coll, coll->uuid, std::move(entry)});
  by_key_.emplace(slots_.front().key, slots_.begin());
  bytes_ += slots_.front().bytes();
  if (slots_.front().bytes() > kMaxEntryBytes) Drop(slots_.begin());
  while (slots_.size() > kMaxEntries || bytes_ > kMaxBytes) Drop(std::prev(slots_.end()));
}

void PlanCache::Remove(const CollectionInfoPtr& coll, std::string_view shape) {
  std::string key = Key(*coll, shape);
  std::lock_guard lock(mutex_);
  if (auto it = by_key_.find(key); it != by_key_.end()) {
    Drop(it->second);
  }
}

void PlanCache::Clear(const CollectionInfo& coll) {
  std::lock_guard lock(mutex_);
  for (auto it = slots_.begin(); it != slots_.end();) {
    const auto slot = it++;
    if (slot->uuid == coll.uuid) Drop(slot);
  }
}

void PlanCache::ForEach(const CollectionInfo& coll, const std::function<void(const Entry&)>& f) {
  std::lock_guard lock(mutex_);
  for (const auto& s : slots_)
    if (s.uuid == coll.uuid && s.coll.lock().get() == &coll) f(s.entry);
}

uint32_t ShapeHash(std::string_view bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (unsigned char c : bytes) h = (h ^ c) * 0x100000001b3u;
  return static_cast<uint32_t>(h ^ (h >> 32));
}

std::string HashText(uint32_t hash) {
  char text[9];
  std::snprintf(text, sizeof text, "%08X", hash);
  return text;
}

}  // namespace mayfly
