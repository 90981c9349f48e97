#include "storage/write/log_apply.h"

#include <algorithm>
#include <utility>

#include "storage/catalog/catalog_format.h"
#include "storage/catalog/namespace.h"
#include "storage/core/storage_impl.h"
#include "storage/kv/batch_number.h"
#include "storage/kv/write_room.h"
#include "storage/write/session_row.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {

namespace {

/// Keyspace by keyspace: half the cost of one document after the other.
void StageEffects(std::span<const std::vector<LogUnit>> of_entries, KvBatch& batch) {
  std::string row;
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks) {
    const auto keyspace = static_cast<Keyspace>(ks);
    // Before the effects: an entry that drops the index erases these rows.
    if (keyspace == Keyspace::kCatalog)
      for (const auto& units : of_entries)
        for (const LogUnit& u : units)
          for (const LogMultikey& m : u.multikeys)
            for (int field = 0; field < 64; ++field)
              if (m.fields >> field & 1)
                batch.Put(Keyspace::kCatalog, MultikeyKey(m.index, field), {});
    for (const auto& units : of_entries) {
      for (const LogUnit& u : units) {
        for (const LogEffect& e : u.effects) {
          if (e.keyspace != keyspace) continue;
          switch (e.op) {
            case LogEffect::kPut:
              batch.Put(keyspace, e.key,
                        keyspace == Keyspace::kCatalog && PlaceSessionRow(u, e, &row)
                            ? std::string_view(row)
                            : e.value);
              break;
            case LogEffect::kDelete:
              batch.Delete(keyspace, e.key);
              break;
            case LogEffect::kDeleteRange:
              batch.DeleteRange(keyspace, e.key, e.value);
              break;
          }
        }
      }
    }
  }
}

/// Its batch was made before its place in the log was known.
void PlaceReadyRows(const LogUnit& u, KvBatch& batch) {
  std::string row;
  for (const LogEffect& e : u.effects)
    if (PlaceSessionRow(u, e, &row)) batch.Put(Keyspace::kCatalog, e.key, row);
}

/// Whether it may bring dates that this member has not been told of.
bool BringsDates(const LogUnit& u) {
  return std::any_of(u.effects.begin(), u.effects.end(), [](const LogEffect& e) {
    return e.op == LogEffect::kPut &&
           (e.keyspace == Keyspace::kExpiry || e.keyspace == Keyspace::kIndexes ||
            e.keyspace == Keyspace::kRecords);
  });
}

}  // namespace

Result<void> ReadyUnit::Make(KvStore& kv) {
  std::string_view rest = bytes;
  units.resize(1);
  MAYFLY_TRY(const bool found, ReadLogUnit(&rest, &units.front()));
  if (!found || !rest.empty())
    return Error{ErrorCode::kInternalError, "a large unit is not one unit of the log"};
  // Other content of the oplog is not in the batch.
  batch = NewLargeBatch(kv, LargeBatchBytes(bytes.size()));
  StageEffects({&units, 1}, *batch);
  return Ok();
}

void ReadyUnit::SetTime(uint64_t ts, int64_t wall_millis) {
  SetUnitTime(bytes.data(), ts, wall_millis);
  units.front().ts = ts;
  units.front().wall = wall_millis;
}

void LogApplier::Note(const LogUnit& u) {
  OpenedCatalog& catalog = *storage_.impl().catalog;
  if (u.ticks > 0) {
    last_ts_ = u.ts + u.ticks - 1;
    last_wall_ = u.wall;
  }
  for (const LogCount& c : u.counts) {
    auto [it, fresh] = counts_.try_emplace(c.id);
    Counted& now = it->second;
    if (fresh) {
      // A collection that an entry of this very batch creates is not in the catalog yet: it begins
      // at zero.
      if (CollectionInfoPtr coll = catalog.FindById(c.id))
        now.row = {coll->counters->documents, coll->counters->bytes, coll->counters->last_sequence};
    }
    now.row.documents += c.documents;
    now.row.bytes += c.bytes;
    now.row.last_sequence = std::max(now.row.last_sequence, c.last_sequence);
    now.first_sequence = std::max(now.first_sequence, c.first_sequence);
  }
  // The flag is up before an entry that needs it can be seen; it may be up for nothing.
  for (const LogMultikey& m : u.multikeys) catalog.MarkMultikey(m.index, m.fields);
  for (const LogEffect& e : u.effects)
    if (e.keyspace == Keyspace::kCatalog && e.op == LogEffect::kDelete &&
        e.key.starts_with(kCountersPrefix) && e.key.size() == kCountersPrefix.size() + 4)
      counts_.erase(LoadBe32(e.key.data() + kCountersPrefix.size()));
}

Result<void> LogApplier::Prepare(std::span<const Entry> entries, KvBatch& batch) {
  units_.resize(entries.size());
  counts_.clear();
  batch_ = &batch;
  bool unknown_dates = false, ready = false;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::vector<LogUnit>& units = units_[i];
    for (WriteUnit& u : entries[i].units) u.impl().BecomesVisible();
    size_t n = 0;
    if (entries[i].ready != nullptr) {
      ready = true;
      units = std::move(entries[i].ready->units);
      for (; n < units.size(); ++n) {
        units[n].term = entries[i].term;
        Note(units[n]);
        PlaceReadyRows(units[n], batch);
      }
    } else {
      MAYFLY_TRY(ReadLogEntryHeader(entries[i].data));
      std::string_view rest = entries[i].data.substr(kLogEntryHeader);
      for (;; ++n) {
        if (n == units.size()) units.emplace_back();
        MAYFLY_TRY(bool more, ReadLogUnit(&rest, &units[n]));
        if (!more) break;
        units[n].term = entries[i].term;
        Note(units[n]);
      }
      units.resize(n);
    }
    if (entries[i].units.empty())
      unknown_dates |= std::any_of(units.begin(), units.end(), BringsDates);
  }
  if (unknown_dates) storage_.impl().expiry_epoch.fetch_add(1, std::memory_order_acq_rel);
  if (!ready) StageEffects(units_, batch);
  for (const auto& [id, c] : counts_) {
    char value[kCounterRowSize];
    EncodeCounterRow(c.row, value);
    batch.Put(Keyspace::kCatalog, CountersKey(id), {value, sizeof value});
  }
  return Ok();
}

size_t LogApplier::ListBytes() const {
  size_t bytes = 0;
  for (const std::vector<LogUnit>& units : units_)
    for (const LogUnit& u : units) bytes += u.ListBytes();
  return bytes;
}

void LogApplier::TellWatch(const LogUnit& u) const {
  const CollectionWatch& watch = storage_.impl().watch;
  if (!watch.changed) return;
  for (const LogCollection& c : u.collections) {
    const NamespaceParts parts = SplitNamespace(c.ns);
    if (watch.Covers(parts.db, parts.collection)) watch.changed(parts.collection);
  }
  for (const LogEffect& e : u.effects)
    if (e.keyspace == Keyspace::kCatalog && e.key.starts_with(kCollectionPrefix)) watch.changed({});
}

void LogApplier::Applied(std::span<const Entry> entries) {
  OpenedCatalog& catalog = *storage_.impl().catalog;
  const uint64_t sequence = NumberOf(*std::exchange(batch_, nullptr));
  grown_.clear();
  settings_.clear();
  // Others' changes of the catalog first, so that the counters find their collections.
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].units.empty()) continue;
    for (const LogUnit& u : units_[i]) {
      catalog.ApplyLogged(u.effects, u.multikeys);
      // Again, for indexes that an earlier entry of this batch made: they were not known before.
      for (const LogMultikey& m : u.multikeys) catalog.MarkMultikey(m.index, m.fields);
      for (const LogEffect& e : u.effects)
        if (e.keyspace == Keyspace::kCatalog && e.key.starts_with(kSettingPrefix))
          settings_.emplace_back(e.key.substr(kSettingPrefix.size()));
      TellWatch(u);
      for (const LogCount& c : u.counts)
        if (c.last_sequence > 0) grown_.push_back(c.id);
      for (const LogRecord& r : u.records) {
        std::atomic<int64_t>* count = r.kind == LogRecord::kInsert    ? &applied_counts_.inserts
                                      : r.kind == LogRecord::kUpdate  ? &applied_counts_.updates
                                      : r.kind == LogRecord::kDelete  ? &applied_counts_.deletes
                                      : r.kind == LogRecord::kCommand ? &applied_counts_.commands
                                                                      : nullptr;
        if (count != nullptr) count->fetch_add(1, std::memory_order_relaxed);
      }
    }
  }
  for (const auto& [id, c] : counts_) {
    CollectionInfoPtr coll = catalog.FindById(id);
    if (!coll) continue;
    coll->counters->documents.store(c.row.documents, std::memory_order_relaxed);
    coll->counters->bytes.store(c.row.bytes, std::memory_order_relaxed);
    coll->counters->last_sequence.store(c.row.last_sequence, std::memory_order_relaxed);
    if (c.first_sequence > 0)
      coll->counters->first_sequence.store(c.first_sequence, std::memory_order_relaxed);
  }
  for (const Entry& e : entries) {
    for (WriteUnit& u : e.units) {
      WriteUnit::Impl& impl = u.impl();
      impl.applied = true;
      impl.applied_by = sequence;
      for (const WriteUnit::Impl::ExpiryNote& n : impl.expiry_notes) {
        storage_.impl().expiry_waker.Entered(*n.state, n.millis, n.deadline);
      }
    }
  }
  // After the notes of all: see ExpiryState::RaiseHead.
  for (const Entry& e : entries) {
    for (WriteUnit& u : e.units) {
      WriteUnit::Impl& impl = u.impl();
      for (auto& f : impl.on_commit) f();
      impl.TellWatch();
      impl.ReleaseLocks();
    }
  }
}

}  // namespace mayfly
