#include "storage/schema/definition_memory.h"

#include <algorithm>

#include "protocol/fair_share.h"
#include "protocol/large_memory.h"

namespace mayfly {
namespace {

/// Places in the maps of the catalog, counters and states, with what the allocator adds.
constexpr size_t kOverhead = 1024, kIndexOverhead = 512;

/// A holder of an earlier version, such as a cursor, is counted with more than this.
constexpr int64_t kSmallVersion = 16 << 10;

size_t SizeOf(const BsonDocument& d) { return d.bytes().capacity(); }

/// As MongoDB has it in its catalog: options and specifications, each once.
int64_t StoredBytes(const CollectionInfo& c) {
  size_t n = c.options.bytes().size() + c.view_on.size() + c.view_pipeline.bytes().size();
  for (const IndexInfoPtr& i : c.indexes)
    n += i->name.size() + i->key.bytes().size() + i->partial_filter.bytes().size() +
         i->extra.bytes().size();
  return static_cast<int64_t>(n);
}

}  // namespace

std::atomic<int64_t>& DefinitionLimit() {
  static constinit std::atomic<int64_t> limit{0};
  return limit;
}

int64_t DefinitionBytes(const CollectionInfo& c) {
  size_t n = sizeof c + kOverhead + 3 * (c.db.size() + c.name.size()) + SizeOf(c.options) +
             SizeOf(c.validator) + SizeOf(c.view_pipeline) + c.view_on.size() +
             c.clustered_index_name.size() + c.expiry_options.field.size();
  if (c.series) n += sizeof *c.series + c.series->time_field.size() + c.series->meta_field.size();
  for (const IndexInfoPtr& i : c.indexes) {
    n += sizeof *i + kIndexOverhead + i->name.size() + SizeOf(i->key) + SizeOf(i->partial_filter) +
         SizeOf(i->extra);
    for (const IndexField& f : i->fields) n += sizeof f + f.path.size() + f.special.size();
  }
  return static_cast<int64_t>(n);
}

void FitDefinition(CollectionInfo& c) {
  for (BsonDocument* d : {&c.options, &c.validator, &c.view_pipeline}) d->bytes().shrink_to_fit();
}

struct DefinitionMemory::Charged {
  Charged(CollectionInfoPtr c, Total t, Total d)
      : coll(std::move(c)),
        total(std::move(t)),
        of_database(std::move(d)),
        bytes(DefinitionBytes(*coll)) {
    total->fetch_add(bytes, std::memory_order_relaxed);
    of_database->fetch_add(bytes, std::memory_order_relaxed);
  }
  Charged(const Charged&) = delete;
  ~Charged() {
    total->fetch_sub(bytes, std::memory_order_relaxed);
    of_database->fetch_sub(bytes, std::memory_order_relaxed);
  }

  const CollectionInfoPtr coll;
  const Total total, of_database;
  const int64_t bytes;
};

CollectionInfoPtr DefinitionMemory::Charge(CollectionInfoPtr coll) const {
  Total of_database = TotalOf(coll->db);
  auto charged = std::make_shared<const Charged>(std::move(coll), bytes_, std::move(of_database));
  return {charged, charged->coll.get()};
}

DefinitionMemory::Total DefinitionMemory::TotalOf(const std::string& db) const {
  std::lock_guard l(mutex_);
  if (const auto it = of_database_.find(db); it != of_database_.end())
    if (Total total = it->second.lock()) return total;
  if (of_database_.size() >= look_at_) {
    std::erase_if(of_database_, [](const auto& d) { return d.second.expired(); });
    look_at_ = 2 * of_database_.size() + 64;
  }
  Total total = std::make_shared<std::atomic<int64_t>>(0);
  of_database_[db] = total;
  return total;
}

int64_t DefinitionMemory::BytesOf(std::string_view db) const {
  std::lock_guard l(mutex_);
  const auto it = of_database_.find(db);
  if (it == of_database_.end()) return 0;
  const Total total = it->second.lock();
  return total != nullptr ? total->load(std::memory_order_relaxed) : 0;
}

int64_t DefinitionMemory::Most() {
  const int64_t set = DefinitionLimit().load(std::memory_order_relaxed);
  return set != 0 ? set : large_memory::Limit() / 4;
}

Result<void> DefinitionMemory::Check(const CollectionInfo* before,
                                     const CollectionInfo& after) const {
  const int64_t stored = StoredBytes(after);
  if (stored > kMaxDefinition && (before == nullptr || stored > StoredBytes(*before)))
    return Error{ErrorCode::kBSONObjectTooLarge,
                 "the definition of " + after.ns + " with its indexes would have " +
                     std::to_string(stored) + " bytes, more than the " +
                     std::to_string(kMaxDefinition) +
                     " it may have: use smaller options or fewer indexes"};
  const int64_t goes = before == nullptr ? 0 : DefinitionBytes(*before);
  const int64_t comes = DefinitionBytes(after);
  if (comes <= goes / 2 || (comes <= goes && comes <= kSmallVersion)) return Ok();
  const int64_t filters =
      large_memory::ThreadBudget().compiled_filter_bytes.load(std::memory_order_relaxed);
  const int64_t charged = bytes(), all = charged + filters - goes, most = Most();
  if (all <= most) {
    int64_t owner = BytesOf(after.db);
    // Nobody knows whose the compiled filters are: each database has a part like its definitions.
    owner += static_cast<int64_t>(static_cast<double>(filters) * static_cast<double>(owner) /
                                  static_cast<double>(std::max<int64_t>(charged, 1)));
    if (before != nullptr && before->db == after.db) owner -= goes;
    if (FitsFairShare(owner, all, most, most - most / 4, false)) return Ok();
    return Error{ErrorCode::kExceededMemoryLimit,
                 "the definitions of the collections, views and indexes of the database would take "
                 "about " +
                     std::to_string(owner) + " bytes of memory, so that of the " +
                     std::to_string(most) +
                     " of all (catalogMaxBytes) too few would be left for other databases: drop "
                     "some, or use smaller validators, pipelines and partial filters"};
  }
  return Error{ErrorCode::kExceededMemoryLimit,
               "the definitions of all collections, views and indexes would take " +
                   std::to_string(all) + " bytes of memory, more than the " + std::to_string(most) +
                   " they may (catalogMaxBytes): drop some, or use smaller validators, pipelines "
                   "and partial filters"};
}

}  // namespace mayfly
