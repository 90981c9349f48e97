#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "storage/catalog/catalog_types.h"
#include "storage/operation.h"

namespace mayfly {

class Storage;
class Catalog;

/// The one way to open a collection by its name: checks the name, then calls CheckUse. Null if it
/// does not exist and the use does not need it. Errors: InvalidNamespace 73, NamespaceNotFound 26
/// in the words of the use, and those of CheckUse.
Result<CollectionInfoPtr> OpenCollection(Catalog& catalog, std::string_view db,
                                         std::string_view name, CollectionUse use);

/// The catalog as it was at one moment. The catalog forgets its past when the last moment is
/// released. Threads: any. Must not outlive the catalog.
class CatalogMoment {
 public:
  virtual ~CatalogMoment() = default;
  virtual uint64_t version() const = 0;  ///< Catalog::Version() then
  /// As Catalog::Find, of that moment. Errors: SnapshotUnavailable 246 when the catalog has changed
  /// too often since.
  virtual Result<CollectionInfoPtr> Find(std::string_view db,
                                         std::string_view collection) const = 0;
};

/// All databases, collections and indexes. Reads return immutable snapshots and never wait for
/// changes. Each change is one write unit, serialised per namespace, and instant: dropped data goes
/// by range drop, and the next open finishes drops that a crash interrupted. Threads: any.
/// Blocking: changes, yes.
class Catalog {
 public:
  virtual ~Catalog() = default;

  /// Null when there is no such collection or view. Hot path: one hash look-up. `system.views` is
  /// there while the database has views, and in no list of collections: it shows their definitions.
  virtual CollectionInfoPtr Find(std::string_view db, std::string_view collection) = 0;
  virtual CollectionInfoPtr FindByUuid(const Uuid& uuid) = 0;
  virtual CollectionInfoPtr FindById(uint32_t collection_id) = 0;
  virtual std::vector<CollectionInfoPtr> List(
      std::string_view db) = 0;  ///< sorted by name, views included
  virtual std::vector<CollectionInfoPtr> ListAll() = 0;
  virtual std::vector<std::string> Databases() = 0;  ///< those with at least one collection, sorted
  /// Goes up with every change of the catalog; what is derived from it (plan caches, TTL rules)
  /// watches it.
  virtual uint64_t Version() const = 0;
  /// Keeps the present catalog. Changes are recorded while anyone holds a moment, at most kMaxPast
  /// of them; beyond that, the database with the most loses its oldest.
  virtual std::shared_ptr<const CatalogMoment> PinMoment() = 0;
  static constexpr size_t kMaxPast = 10'000;
  /// Called (any thread, must not block) after each change.
  virtual void OnChange(std::function<void()> f) = 0;

  /// `definition`: everything of CollectionInfo but id, uuid (made if all zero), counters and
  /// indexes. Errors: NamespaceExists 48, InvalidNamespace 73.
  virtual Result<CollectionInfoPtr> Create(Operation& op, CollectionInfo definition) = 0;
  /// What a first insert does: the existing collection or a new plain one.
  virtual Result<CollectionInfoPtr> GetOrCreate(Operation& op, std::string_view db,
                                                std::string_view collection) = 0;
  virtual Result<void> Drop(Operation& op, std::string_view db,
                            std::string_view collection) = 0;  ///< NamespaceNotFound 26
  virtual Result<void> DropDatabase(Operation& op, std::string_view db) = 0;
  /// Drops these views of one database together: all, or with an error none. Those that are gone
  /// already are left out; a new one of the same name is another. An interruption counts before the
  /// first goes. Errors: those of an interruption and of the commit.
  virtual Result<void> DropViews(Operation& op, std::vector<CollectionInfoPtr> views) = 0;
  /// Atomic, also with `drop_target`. Same or other database. Errors: 26, 48. In another database
  /// it is a new collection with a uuid of its own: `uuid`, or a random one.
  virtual Result<void> Rename(Operation& op, const CollectionInfo& from, std::string_view to_db,
                              std::string_view to_collection, bool drop_target,
                              const Uuid* uuid = nullptr) = 0;
  /// Replaces options, validator, expiry, view definition, or the options of one index (by name) at
  /// once. `change` edits a copy; ids, uuid and keys may not change. Making an index unique builds
  /// a new one in its place. Errors: NamespaceNotFound 26, IndexNotFound 27,
  /// CannotConvertIndexToUnique 359.
  virtual Result<CollectionInfoPtr> Modify(Operation& op, const CollectionInfo& coll,
                                           std::function<Result<void>(CollectionInfo&)> change) = 0;
  virtual Result<CollectionInfoPtr> ModifyIndex(Operation& op, const CollectionInfo& coll,
                                                std::string_view index_name,
                                                std::function<Result<void>(IndexInfo&)> change) = 0;

  /// Builds the indexes together: one scan, in bulk, without blocking reads or writes; returns when
  /// all are ready, or with an error and none of them left behind. `specs`: parsed and checked
  /// definitions without ids. Progress goes to the log and to `builds()`. Survives a crash:
  /// unfinished builds resume at the next open. Errors: DuplicateKey 11000,
  /// CannotIndexParallelArrays 171, CannotCreateIndex 67 (64 indexes).
  virtual Result<void> CreateIndexes(Operation& op, const CollectionInfo& coll,
                                     std::vector<IndexInfo> specs) = 0;
  virtual Result<void> DropIndexes(Operation& op, const CollectionInfo& coll,
                                   const std::vector<std::string>& names) = 0;
  /// Rebuilds every ready index, one after the other; the old one serves until the new one takes
  /// its place, and stays where that fails. Survives a crash as CreateIndexes. Errors: its,
  /// ConflictingOperationInProgress 117 for an index that is being built.
  virtual Result<void> RebuildIndexes(Operation& op, const CollectionInfo& coll) = 0;

  /// An index build under way: `done` of `total` records of `ns` have been scanned.
  struct BuildProgress {
    std::string ns;
    std::vector<std::string> indexes;
    int64_t done = 0, total = 0;
    uint64_t op_id = 0;
  };
  /// A copy, in no order. Any thread; waits for no build.
  virtual std::vector<BuildProgress> Builds() = 0;

  /// The database's default and cap of per-document expiry in seconds; 0: none. Kept across
  /// restarts, also of a database without collections; goes with dropDatabase. A change acts on
  /// later writes only.
  virtual int64_t DatabaseMaxTtl(std::string_view db) = 0;
  virtual Result<void> SetDatabaseMaxTtl(Operation& op, std::string_view db, int64_t seconds) = 0;

  /// Small values the server keeps across restarts (cluster parameters, TTL state …), by name.
  virtual Result<std::optional<std::string>> GetSetting(std::string_view name) = 0;
  virtual Result<void> PutSetting(Operation& op, std::string_view name, std::string_view value) = 0;
  /// One that each member of a replica set has for itself; possible on secondaries. Names begin
  /// with "local/".
  virtual Result<void> PutLocalSetting(Operation& op, std::string_view name,
                                       std::string_view value) = 0;
};

}  // namespace mayfly
