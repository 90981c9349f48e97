#include <set>

#include "protocol/bson_builder.h"
#include "protocol/shown_namespace.h"
#include "storage/catalog/index_keys.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/schema/catalog_impl.h"
#include "storage/write/indexed_arrays.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

/// Records a write unit. Their locks are held for as long as the batch takes, a millisecond or two:
/// what a writer of one of them waits.
constexpr size_t kBatchRecords = 256;
constexpr size_t kBatchDocumentBytes = 1 << 20;  ///< … or about this many bytes of documents
/// … or of index keys, which may be thousands of times as large as their documents. Until they are
/// committed they are in memory four times.
constexpr size_t kBatchKeyBytes = 16 << 20;
/// With fewer bytes of keys in the indexes of a build, a document is not compared with what its
/// other indexes have: a write of it is refused then, if all are too many.
constexpr size_t kFewKeyBytes = NewKeys::kMostBytes / 64;
constexpr int kBatchesPerIterator =
    64;  ///< an old iterator keeps files alive that compaction has replaced
constexpr int64_t kProgressMicros = 3'000'000;

/// Scans a collection once and adds the entries of all indexes of one build.
///
/// From the moment an index is registered every write unit maintains it. So each batch only has to
/// add the entries of records as they are now: it locks them, reads them again and commits the
/// entries, the multikey marks and the position reached in one unit. Records that come later are
/// their writers' business. A crash loses at most the last batch: the position that is found at the
/// next open is never ahead of the entries.
class BuildScan {
 public:
  BuildScan(Storage& storage, Operation& op, IndexBuild& build)
      : storage_(storage), op_(op), build_(build) {
    set_.set_operation(&op);
  }

  Result<void> Run() {
    CollectionInfoPtr coll = storage_.catalog().FindById(build_.collection);
    if (!coll) return Dropped();
    int64_t next_progress = storage_.clock().MonotonicMicros() + kProgressMicros;
    for (;;) {
      MAYFLY_TRY(CollectKeys());
      if (keys_.empty()) return Ok();
      for (;;) {
        MAYFLY_TRY(op_.CheckInterrupt());
        if (storage_.impl().closing)
          return Error{ErrorCode::kInterruptedAtShutdown, "interrupted at shutdown"};
        Result<void> r = Batch(*coll);
        if (r) break;
        // An expired document violates no rule: whichever of the two is expired is removed before a
        // violation is reported.
        if (r.error().code == ErrorCode::kDuplicateKey && conflict_ < keys_.size() &&
            resolving_.insert(conflict_).second)
          continue;
        // A writer holds one of the records: give everything back and try again.
        if (r.error().code != ErrorCode::kWriteConflict) return r;
      }
      resolving_.clear();
      build_.position = Key(covered_ - 1);
      build_.done += static_cast<int64_t>(covered_);
      if (covered_ < keys_.size()) iterator_.reset();
      if (int64_t now = storage_.clock().MonotonicMicros(); now > next_progress) {
        next_progress = now + kProgressMicros;
        if (storage_.impl().options.log) LogProgress();
      }
    }
  }

 private:
  Error Dropped() const {
    return {ErrorCode::kIndexBuildAborted,
            "Index build aborted: collection dropped: " + ShownNamespace(build_.ns)};
  }
  std::string_view Key(size_t i) const {
    return std::string_view(key_bytes_).substr(keys_[i].begin, keys_[i].size);
  }

  void LogProgress() {
    storage_.impl().options.log('I', "INDEX", "Index build: progress",
                                BuildBson([&](BsonBuilder& b) {
                                  b.Append("namespace", build_.ns)
                                      .Append("done", build_.done.load())
                                      .Append("total", build_.total.load());
                                }));
  }

  /// The keys of the next records behind the position.
  Result<void> CollectKeys() {
    keys_.clear();
    key_bytes_.clear();
    if (!iterator_ || ++batches_ % kBatchesPerIterator == 0) {
      KvIterOptions o;
      o.lower = build_.position.empty() ? IdPrefix(build_.collection) : build_.position + '\0';
      o.upper = IdPrefixEnd(build_.collection);
      o.fill_cache = false;
      iterator_ = storage_.kv().NewIterator(Keyspace::kRecords, std::move(o));
      iterator_->SeekToFirst();
    }
    size_t bytes = 0;
    for (; iterator_->Valid() && keys_.size() < kBatchRecords && bytes < kBatchDocumentBytes;
         iterator_->Next()) {
      std::string_view k = iterator_->key();
      keys_.push_back({static_cast<uint32_t>(key_bytes_.size()), static_cast<uint32_t>(k.size())});
      key_bytes_.append(k);
      bytes += iterator_->value().size();
    }
    return iterator_->status();
  }

  Result<void> Batch(const CollectionInfo& given) {
    WriteUnit unit(storage_, op_);
    WriteUnit::Impl& u = unit.impl();
    Result<TouchedCollection*> touched = u.Touch(given);
    if (!touched && touched.error().code == ErrorCode::kQueryPlanKilled) return Dropped();
    MAYFLY_TRY(std::move(touched));
    CollectionInfoPtr coll = touched.value()->coll;
    std::vector<const IndexInfo*> indexes;
    for (auto& i : coll->indexes)
      if (std::find(build_.ids.begin(), build_.ids.end(), i->id) != build_.ids.end())
        indexes.push_back(i.get());
    if (indexes.size() != build_.ids.size())
      return Error{ErrorCode::kIndexBuildAborted,
                   "Index build aborted: an index was dropped while it was built"};
    for (size_t i = 0; i < keys_.size(); ++i) {
      MAYFLY_TRY(u.Lock(Keyspace::kRecords, Key(i)));
    }
    conflict_ = SIZE_MAX;
    for (size_t i : resolving_) {
      MAYFLY_TRY(u.RemoveExpiredOwner(unit, *coll, RecordIdOf(Key(i))));
    }

    // Read again under the locks, in one pass over the same range; what came into it meanwhile is
    // not ours.
    KvIterOptions o;
    o.lower = std::string(Key(0));
    o.upper = std::string(Key(keys_.size() - 1)) + '\0';
    o.fill_cache = false;
    auto it = storage_.kv().NewIterator(Keyspace::kRecords, std::move(o));
    size_t at = 0;
    entries_.clear();
    entry_bytes_.clear();
    covered_ = keys_.size();
    for (it->SeekToFirst(); it->Valid() && at < covered_; it->Next()) {
      int c = 1;
      while (at < covered_ && (c = Key(at).compare(it->key())) < 0) ++at;  // gone
      if (at == covered_ || c > 0) continue;                               // new
      BsonView doc;
      std::optional<Instant> expire_at;
      if (!DecodeRecord(it->value(), &doc, &expire_at)) return DamagedRecord(*coll);
      NewKeys keys;
      for (uint32_t i = 0; i < indexes.size(); ++i) {
        if (indexes[i]->measured != 0) [[unlikely]] {
          MAYFLY_TRY(CheckIndexedArrays(*coll, *indexes[i], doc, op_));
        }
        MAYFLY_TRY(ExtractNewKeys(*indexes[i], doc, &set_));
        keys.Add(set_.size(), set_.bytes());
        if (keys.TooLarge()) [[unlikely]]
          return keys.Refusal(*coll);
        if (set_.multikey()) u.StageMultikey(*indexes[i], set_.multikey());
        for (size_t k = 0; k < set_.size(); ++k) {
          entries_.push_back({i, static_cast<uint32_t>(at),
                              static_cast<uint32_t>(entry_bytes_.size()),
                              static_cast<uint32_t>(set_.values(k).size()),
                              static_cast<uint32_t>(set_.type_bits(k).size())});
          entry_bytes_.append(set_.values(k)).append(set_.type_bits(k));
        }
      }
      if (keys.bytes() > kFewKeyBytes) [[unlikely]] {
        MAYFLY_TRY(CheckWithOtherIndexes(*coll, doc, keys));
      }
      ++at;
      if (entry_bytes_.size() > kBatchKeyBytes) covered_ = at;
    }
    MAYFLY_TRY(it->status());

    // In key order they cost the store less.
    std::sort(entries_.begin(), entries_.end(), [this](const Entry& a, const Entry& b) {
      if (a.index != b.index) return a.index < b.index;
      int c = Values(a).compare(Values(b));
      return c < 0 || (c == 0 && a.record < b.record);
    });
    for (const Entry& e : entries_) {
      const IndexInfo& index = *indexes[e.index];
      std::string_view record_id = RecordIdOf(Key(e.record));
      if (!resolving_.empty()) {
        const StagedOp* own;
        if (u.FindOwn(Keyspace::kRecords, Key(e.record), &own) == WriteUnit::Impl::Own::kAbsent)
          continue;  // removed, as itself or as the owner of another one's key
      }
      if (index.unique) {
        conflict_ = e.record;
        MAYFLY_TRY(u.CheckUnique(resolving_.empty() ? nullptr : &unit, *coll, index, Values(e),
                                 Bits(e), record_id));
        conflict_ = SIZE_MAX;
      }
      u.StageIndexPut(index, Values(e), Bits(e), record_id);
    }
    BuildRow row{build_.ids, std::string(Key(covered_ - 1))};
    unit.Put(Keyspace::kCatalog, BuildRowKey(build_.ids[0]), EncodeBuildRow(row).bytes());
    return storage_.committer().Commit(std::move(unit));
  }

  /// That a document with many keys in the indexes of this build, `keys`, could be written once
  /// they are there; else every change of it would take as much memory as it has keys.
  Result<void> CheckWithOtherIndexes(const CollectionInfo& coll, BsonView doc, NewKeys keys) {
    for (const IndexInfoPtr& i : coll.indexes) {
      if (!i->kind->maintained() ||
          std::find(build_.ids.begin(), build_.ids.end(), i->id) != build_.ids.end())
        continue;
      MAYFLY_TRY(ExtractNewKeys(*i, doc, &set_));
      keys.Add(set_.size(), set_.bytes());
      if (keys.TooLarge()) return keys.Refusal(coll);
    }
    return Ok();
  }

  struct KeyRef {
    uint32_t begin, size;
  };
  struct Entry {
    uint32_t index, record, begin, values_size, bits_size;
  };
  std::string_view Values(const Entry& e) const {
    return std::string_view(entry_bytes_).substr(e.begin, e.values_size);
  }
  std::string_view Bits(const Entry& e) const {
    return std::string_view(entry_bytes_).substr(e.begin + e.values_size, e.bits_size);
  }

  Storage& storage_;
  Operation& op_;
  IndexBuild& build_;
  std::unique_ptr<KvIterator> iterator_;
  int batches_ = 0;
  size_t conflict_ = SIZE_MAX;  ///< of `keys_`: who met another one's unique key in the last Batch
  std::set<size_t> resolving_;  ///< of `keys_`: likewise in all tries of this batch
  std::vector<KeyRef> keys_;
  size_t covered_ = 0;  ///< of `keys_`: by the last Batch
  std::string key_bytes_;
  KeySet set_;
  std::vector<Entry> entries_;
  std::string entry_bytes_;
};

}  // namespace

Result<void> CatalogImpl::RunBuild(Operation& op, std::shared_ptr<IndexBuild> build) {
  auto log = [&](char severity, std::string_view message, auto&& more) {
    if (!storage_.options().log) return;
    storage_.options().log(severity, "INDEX", message, BuildBson([&](BsonBuilder& b) {
                             b.Append("namespace", build->ns);
                             {
                               auto names = b.OpenArray("indexes");
                               for (auto& n : build->names) names.Append(n);
                             }
                             more(b);
                           }));
  };
  int64_t began = storage_.clock().MonotonicMicros();
  log('I', build->position.empty() ? "Index build: starting" : "Index build: resuming",
      [&](BsonBuilder& b) { b.Append("documents", build->total.load()); });
  Result<void> r = BuildScan(storage_, op, *build).Run();
  if (r) r = FinishBuild(op, *build);
  int64_t millis = (storage_.clock().MonotonicMicros() - began) / 1000;
  if (r) {
    log('I', "Index build: done", [&](BsonBuilder& b) {
      b.Append("documents", build->done.load()).Append("durationMillis", millis);
    });
  } else if (storage_.impl().closing || r.error().code == ErrorCode::kInterruptedAtShutdown) {
    log('I', "Index build: interrupted by shutdown, will resume at the next start",
        [&](BsonBuilder& b) {
          b.Append("done", build->done.load()).Append("total", build->total.load());
        });
  } else if (r.error().code == ErrorCode::kNotWritablePrimary ||
             r.error().code == ErrorCode::kPrimarySteppedDown ||
             r.error().code == ErrorCode::kInterruptedDueToReplStateChange) {
    log('I', "Index build: this member is no longer primary, the next primary continues the build",
        [&](BsonBuilder& b) { b.Append("done", build->done.load()); });
  } else {
    log('E', "Index build: failed", [&](BsonBuilder& b) {
      b.Append("error", r.error().message).Append("durationMillis", millis);
    });
    // The operation may be killed already: dropping the unfinished index is not part of it, but is
    // done for the same client.
    Operation cleanup(storage_.clock(), op.id);
    cleanup.SetUser(op.user(), op.user_roles());
    if (CollectionInfoPtr coll = FindById(build->collection)) {
      Result<void> dropped = DropIndexIds(cleanup, *coll, build->ids);
      if (!dropped && dropped.error().code != ErrorCode::kNamespaceNotFound)
        log('E', "Index build: could not be removed, will resume at the next start",
            [&](BsonBuilder& b) { b.Append("error", dropped.error().message); });
    }
    if (r.error().code == ErrorCode::kDuplicateKey ||
        r.error().code == ErrorCode::kCannotIndexParallelArrays) {
      Error e = r.error();
      e.message = "Index build failed: Collection " + ShownNamespace(build->ns) +
                  " :: caused by :: " + e.message;
      r = std::move(e);
    }
  }
  EndBuild(build);
  return r;
}

}  // namespace mayfly
