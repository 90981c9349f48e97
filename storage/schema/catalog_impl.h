#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <thread>
#include <unordered_map>

#include "protocol/seeded_hash.h"
#include "storage/catalog/catalog_format.h"
#include "storage/catalog/catalog_open.h"
#include "storage/schema/definition_memory.h"
#include "storage/schema/garbage.h"
#include "storage/schema/name_claims.h"
#include "storage/schema/schema_watch.h"
#include "storage/write/write_unit.h"

namespace mayfly {

/// Some indexes of one collection that are built together by one scan.
struct IndexBuild {
  uint32_t collection = 0;
  std::string ns;
  std::vector<uint32_t> ids;  ///< ids[0] names its row
  std::vector<std::string> names;
  std::string position;  ///< full record key covered so far; empty: none
  uint64_t op_id = 0;
  std::atomic<int64_t> done{0}, total{0};
};

/// The catalog in memory, and its changes.
///
/// Locks, in the order they are taken: collection gates (by WriteUnit), then `ddl_mutex_` for the
/// last check and the commit of a change, then `mutex_` for the moment the maps change (also taken
/// by the committer's thread: nothing else is taken under it).
class CatalogImpl final : public OpenedCatalog {
 public:
  explicit CatalogImpl(Storage& storage) : storage_(storage), garbage_(storage) {}
  ~CatalogImpl() override { StopBackground(); }
  /// Reads all rows into memory. Call once, before anything else and any other thread. Errors: the
  /// store's, InternalError 1 for a row that cannot be read.
  Result<void> Load();

  CollectionInfoPtr Find(std::string_view db, std::string_view collection) override;
  CollectionInfoPtr FindByUuid(const Uuid& uuid) override;
  CollectionInfoPtr FindById(uint32_t collection_id) override;
  std::vector<CollectionInfoPtr> List(std::string_view db) override;
  std::vector<CollectionInfoPtr> ListAll() override;
  std::vector<std::string> Databases() override;
  uint64_t Version() const override { return version_.load(std::memory_order_acquire); }
  std::shared_ptr<const CatalogMoment> PinMoment() override;
  void OnChange(std::function<void()> f) override;

  Result<CollectionInfoPtr> Create(Operation& op, CollectionInfo definition) override;
  Result<CollectionInfoPtr> GetOrCreate(Operation& op, std::string_view db,
                                        std::string_view collection) override;
  Result<void> Drop(Operation& op, std::string_view db, std::string_view collection) override;
  Result<void> DropDatabase(Operation& op, std::string_view db) override;
  Result<void> DropViews(Operation& op, std::vector<CollectionInfoPtr> views) override;
  Result<void> Rename(Operation& op, const CollectionInfo& from, std::string_view to_db,
                      std::string_view to_collection, bool drop_target, const Uuid* uuid) override {
    return Rename(op, from, to_db, to_collection, drop_target, uuid, {});
  }
  /// storage/schema/replace_collection.h.
  Result<void> ReplaceBy(Operation& op, const CollectionInfo& target, const CollectionInfo& by,
                         const std::function<Result<void>()>& fill) {
    return Rename(op, by, target.db, target.name, true, nullptr, fill);
  }
  /// storage/schema/replace_collection.h.
  Result<void> PutSeries(Operation& op, const CollectionInfo& by, std::string_view name);
  Result<CollectionInfoPtr> Modify(Operation& op, const CollectionInfo& coll,
                                   std::function<Result<void>(CollectionInfo&)> change) override;
  Result<CollectionInfoPtr> ModifyIndex(Operation& op, const CollectionInfo& coll,
                                        std::string_view index_name,
                                        std::function<Result<void>(IndexInfo&)> change) override;
  Result<void> CreateIndexes(Operation& op, const CollectionInfo& coll,
                             std::vector<IndexInfo> specs) override;
  Result<void> DropIndexes(Operation& op, const CollectionInfo& coll,
                           const std::vector<std::string>& names) override;
  Result<void> RebuildIndexes(Operation& op, const CollectionInfo& coll) override;
  std::vector<BuildProgress> Builds() override;
  int64_t DatabaseMaxTtl(std::string_view db) override;
  Result<void> SetDatabaseMaxTtl(Operation& op, std::string_view db, int64_t seconds) override;
  Result<std::optional<std::string>> GetSetting(std::string_view name) override;
  Result<void> PutSetting(Operation& op, std::string_view name, std::string_view value) override;
  Result<void> PutLocalSetting(Operation& op, std::string_view name,
                               std::string_view value) override;

  // storage/schema/transaction_schema.h: the same names, or Create and CreateIndexes.
  Result<CollectionInfoPtr> CreateIn(WriteUnit& unit, Operation& op, CollectionInfo definition);
  Result<CollectionInfoPtr> CreateIndexesIn(WriteUnit& unit, Operation& op,
                                            const CollectionInfo& coll,
                                            std::vector<IndexInfo> specs);
  Result<void> StageCreated(WriteUnit& unit, Operation& op);
  void TellCreated(Operation& op, const std::vector<CollectionInfoPtr>& made);

  void StartBackground() override;
  void StopBackground() override;
  void WaitForGarbage() override { garbage_.WaitIdle(); }
  void CompactFiles() override { garbage_.Tend(); }
  void AddSource(CollectionInfoPtr coll) override { Publish({{nullptr, std::move(coll)}}); }
  void ReplaceSource(CollectionInfoPtr was, CollectionInfoPtr now) override {
    Publish({{std::move(was), std::move(now)}});
  }
  void ApplyLogged(const std::vector<LogEffect>& effects,
                   const std::vector<LogMultikey>& multikeys) override;
  void MarkMultikey(uint32_t index, uint64_t fields) override;
  void BecomePrimary() override;
  void ForgetReaped() override;
  /// As WatchSchema. Waits for a change that is under way.
  void SetWatch(SchemaWatch watch) {
    std::lock_guard l(ddl_mutex_);
    watch_ = std::move(watch);
  }

 private:
  /// `fill`: may be empty; runs while the target's gate is held.
  Result<void> Rename(Operation& op, const CollectionInfo& from, std::string_view to_db,
                      std::string_view to_collection, bool drop_target, const Uuid* uuid,
                      const std::function<Result<void>()>& fill);
  struct NsView {
    std::string_view db, collection;
    bool operator==(const NsView&) const = default;
  };
  struct NsHash {
    size_t operator()(const NsView& n) const { return SeededHash(n.collection, SeededHash(n.db)); }
  };
  /// One collection before and after a change; either may be null.
  struct Replacement {
    CollectionInfoPtr before, after;
  };

  // --- Load, row by row of Keyspace::kCatalog What one part of it passes on to the
  /// next.
  struct LoadedIds {
    uint32_t highest = 0, highest_local = kFirstLocalId - 1;  ///< ids in use
    std::unordered_map<uint32_t, const IndexInfo*> indexes;
  };
  Result<void> LoadCollections(KvStore& kv, LoadedIds* ids);
  Result<void> LoadCounters(KvStore& kv, const CollectionInfo& coll);
  /// The head of each collection's queue of deadlines: one seek for each that has any.
  Result<void> LoadDeadlines(KvStore& kv);
  Result<void> LoadSettings(KvStore& kv);
  Result<void> LoadMultikey(KvStore& kv, const LoadedIds& ids);
  Result<void> LoadNextIds(KvStore& kv, const LoadedIds& ids);

  class Moment;
  Result<CollectionInfoPtr> FindAt(uint64_t version, std::string_view db,
                                   std::string_view collection);
  void Unpin(uint64_t version);
  /// A collection that is not in the maps because nothing is stored for it: `system.views` of a
  /// database that has views. Null: it is none. REQUIRES: mutex_ held.
  CollectionInfoPtr ShownLocked(std::string_view db, std::string_view collection);

  void InsertLocked(const CollectionInfoPtr& coll);
  void EraseLocked(const CollectionInfo& coll);
  void Publish(const std::vector<Replacement>& changes);
  /// What the earlier definitions in it keep in memory.
  static int64_t PastBytes(const Replacement& change) {
    return change.before ? DefinitionBytes(*change.before) : 0;
  }
  /// The database that an earlier definition counts for. A rename into another one counts for the
  /// one it left.
  static const std::string& PastDatabase(const Replacement& change) {
    return change.before ? change.before->db : change.after->db;
  }
  // Earlier definitions. REQUIRES: mutex_ held.
  void KeepPastLocked(uint64_t version, const Replacement& change);
  /// Takes it out of the counts, not out of past_.
  void UncountPastLocked(const Replacement& change);
  /// Drops more than may be kept: the oldest of the database that keeps the most.
  void TrimPastLocked();

  /// Takes the collection's gate for a change; waits as long as `op` may. Errors: NamespaceNotFound
  /// 26 when it is gone.
  Result<void> Gate(WriteUnit& unit, Operation& op, const CollectionInfo& coll);
  /// The definition now. REQUIRES: its gate is held. Errors: NamespaceNotFound 26.
  Result<CollectionInfoPtr> Current(const CollectionInfo& coll);
  /// Commits the rows staged in `unit` and makes `changes` and `garbage` known. REQUIRES:
  /// ddl_mutex_ held.
  Result<void> Commit(WriteUnit unit, std::vector<Replacement> changes,
                      std::vector<GarbageRow> garbage = {});
  // For the watch. REQUIRES: ddl_mutex_ held.
  static bool FinishesBuilds(const Replacement& change);
  Result<void> MayChange(Operation& op, const std::vector<Replacement>& changes);
  void TellWatch(Operation& op, const std::vector<Replacement>& changes);

  /// A time series and its buckets, with the index that they always have, by one unit. `series`:
  /// as Create has it, with the options, the life and the validators of both.
  Result<CollectionInfoPtr> CreateSeries(Operation& op, CollectionInfo series);
  Result<void> DropSeries(Operation& op, const CollectionInfo& series);
  /// Of PutSeries: the gates of all that it changes; false: one of them is gone, look again.
  Result<bool> GateAll(WriteUnit& unit, Operation& op, std::vector<CollectionInfoPtr> all);
  /// A definition that is complete but for its indexes. `id_index`: the id of the one on `_id`, of
  /// a capped collection.
  CollectionInfoPtr Define(CollectionInfo definition, Instant now, uint32_t id, uint32_t id_index);
  /// Errors: CannotCreateIndex 67 when the collection has as many as it may have.
  static Result<void> CheckRoomForIndex(const CollectionInfo& coll, const IndexInfo& spec);
  /// `empty`: of a collection without documents, so there is nothing to build.
  static std::shared_ptr<IndexInfo> DefineIndex(const CollectionInfo& coll, const IndexInfo& spec,
                                                uint32_t id, bool empty, Instant now);
  /// For collections of a transaction: moves the row of the next id ahead. Errors: the committer's.
  Result<uint32_t> TransactionId(Operation& op);

  void StageRow(WriteUnit& unit, const CollectionInfo& coll);
  void StageNextId(WriteUnit& unit, bool local);
  /// The counter that ids of this collection (or of its indexes) come from. REQUIRES: ddl_mutex_.
  std::atomic<uint32_t>& NextId(bool unreplicated) {
    return unreplicated ? next_local_id_ : next_id_;
  }
  void ResumeBuilds();
  /// Registers the builds that are not finished, with the position each has reached.
  Result<std::vector<std::shared_ptr<IndexBuild>>> FindUnfinishedBuilds();
  void StageDrop(WriteUnit& unit, const CollectionInfo& coll, std::vector<GarbageRow>* garbage);
  void StageDropIndex(WriteUnit& unit, const CollectionInfo& coll, const IndexInfo& index,
                      std::vector<GarbageRow>* garbage);
  /// The cell that all collections of a database share.
  std::shared_ptr<std::atomic<int64_t>> DatabaseMaxTtlOf(std::string_view db);
  /// Errors: NamespaceExists 48, DatabaseDifferCase 13297.
  Result<void> CheckFree(std::string_view db, std::string_view collection);

  Result<void> DropIndexIds(Operation& op, const CollectionInfo& coll,
                            const std::vector<uint32_t>& ids);
  /// Builds `wanted` (an edited copy of an index) and puts it in that index's place.
  Result<CollectionInfoPtr> ReplaceIndex(Operation& op, const CollectionInfo& coll,
                                         const IndexInfo& wanted);
  Result<void> FinishBuild(Operation& op, const IndexBuild& build);
  /// Runs a registered build to its end: ready, or dropped again. On shutdown it stays for the next
  /// open.
  Result<void> RunBuild(Operation& op, std::shared_ptr<IndexBuild> build);
  void EndBuild(const std::shared_ptr<IndexBuild>& build);

  Storage& storage_;
  GarbageCollector garbage_;

  std::shared_mutex mutex_;                                      ///< the maps
  std::unordered_map<NsView, CollectionInfoPtr, NsHash> by_ns_;  ///< keys point into the values
  std::unordered_map<uint32_t, CollectionInfoPtr> by_id_;
  std::map<Uuid, CollectionInfoPtr> by_uuid_;
  std::map<std::string, std::map<std::string, CollectionInfoPtr, std::less<>>, std::less<>>
      by_name_;
  std::map<std::string, size_t, std::less<>> views_;  ///< how many of each database that has any
  std::atomic<uint64_t> version_{1};
  /// The changes since the oldest moment that somebody holds, in order; `version`: the catalog's
  /// after it.
  struct Past {
    uint64_t version;
    Replacement change;
  };
  /// The part of one database in these.
  struct PastOfDatabase {
    size_t changes = 0;
    int64_t bytes = 0;
    uint64_t lost = 0;  ///< of its moments before this one not all changes are known any more
  };
  std::deque<Past> past_;
  std::map<std::string, PastOfDatabase, std::less<>> past_of_;
  int64_t past_bytes_ = 0;  ///< PastBytes of all
  std::multiset<uint64_t> moments_;
  std::mutex listeners_mutex_;
  std::vector<std::function<void()>> listeners_;

  /// Every definition that the maps, or a transaction, take is charged here first.
  const DefinitionMemory memory_;

  std::mutex max_ttl_mutex_;
  std::map<std::string, std::shared_ptr<std::atomic<int64_t>>, std::less<>> max_ttl_;

  std::mutex ddl_mutex_;
  SchemaWatch watch_;                 ///< guarded by ddl_mutex_
  std::atomic<uint32_t> next_id_{1};  ///< raised by the log too
  std::atomic<uint32_t> next_local_id_{kFirstLocalId};
  NameClaims names_;
  std::mutex transaction_ids_mutex_;  ///< of the two; taken before ddl_mutex_
  uint32_t transaction_id_ = 0, transaction_ids_end_ = 0;

  std::mutex builds_mutex_;
  std::condition_variable builds_changed_;
  std::vector<std::shared_ptr<IndexBuild>> builds_;
  std::thread resume_thread_;
};

}  // namespace mayfly
