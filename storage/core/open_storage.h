#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"
#include "storage/clock.h"
#include "storage/kv/kv.h"

/// The open data directory for the rooms of storage. The layers above include storage/storage.h,
/// which defines what is only declared here.
namespace mayfly {

class Catalog;
class Committer;
class ExpiryPolicy;
struct ExpiryWaker;
class IndexCursor;
class MemberCatalog;
class Operation;
class ReadView;
class RecordCursor;
struct IndexScan;
struct RecordScan;

/// How to open a data directory.
struct StorageOptions {
  std::string path;            ///< data directory; created if absent
  uint64_t cache_bytes = 0;    ///< block cache + memtables; 0: 25% of the memory the cgroup allows
  int sync_interval_ms = 100;  ///< how long an acknowledged write without j:true may stay unsynced
  FilterCompiler compile_filter;
  Clock* clock = nullptr;  ///< required; outlives the Storage
  /// A replica set's member: units are described for its log, unfinished index builds wait until it
  /// is primary. The committer is to be replaced by one that knows the log (set_committer).
  bool logged = false;
  KvEnginePtr engine;  ///< required: which store it is (MakeRocksEngine)
  /// Structured log: severity 'D' 'I' 'W' 'E', message, attributes as BSON. Any thread. May be
  /// null.
  std::function<void(char severity, std::string_view component, std::string_view message,
                     BsonView attributes)>
      log;
};

/// One open data directory. Created once at start-up, destroyed last. Threads: any.
/// Open refuses, with a message that says what and which file: another process on the directory, an
/// unknown format version, a corrupt file, a directory that cannot be written.
class Storage {
 public:
  /// Reads the catalog and starts the background work. A standalone server goes on with index
  /// builds that were interrupted; a member of a replica set waits until it is primary. REQUIRES:
  /// `options.engine`.
  static Result<std::unique_ptr<Storage>> Open(StorageOptions options);
  /// waits for background work, flushes, closes; index builds stop and resume at the next open
  ~Storage();

  /// Owned by the storage. The committer is good until set_committer puts another in its place.
  KvStore& kv();
  Catalog& catalog();
  Committer& committer();
  /// Replaces the local committer (replication does so at start-up, before any client).
  void set_committer(std::unique_ptr<Committer> committer);
  const Clock& clock() const;
  /// How writers notify the reaper of earlier deadlines.
  ExpiryWaker& expiry_waker();
  /// What hides and removes documents besides their deadlines.
  ExpiryPolicy& expiry_policy();
  /// Puts another in its place. Before the first client.
  void set_expiry_policy(std::unique_ptr<ExpiryPolicy> policy);
  const StorageOptions& options() const;
  /// The query layer's state for this store (query/plan/query_state.h): made at the first call,
  /// gone with the store. One T per store. Threads: any.
  template <class T>
  T& QueryState() {
    return *static_cast<T*>(QuerySlot([] { return std::shared_ptr<void>(std::make_shared<T>()); }));
  }

  /// A replica set member's additional operations on the catalog.
  MemberCatalog& member_catalog();

  // --- reads
  /// Full record key of `_id` in a collection that is not capped.
  static void AppendRecordKey(const CollectionInfo& coll, BsonValue id, std::string& out);

  /// A record as found; the document is valid as long as this is and is not used again.
  struct Record {
    PinnedValue pinned;
    BsonView doc;
    std::optional<Instant> expire_at;
  };
  /// By `_id`: one store look-up (two on capped collections). False when absent. Hot path: no
  /// allocation beyond the key.
  Result<bool> FindById(const CollectionInfo& coll, BsonValue id, Record* out,
                        const ReadView& view = kNow);
  /// By full record key.
  Result<bool> Fetch(const CollectionInfo& coll, std::string_view record_key, Record* out,
                     const ReadView& view = kNow);

  /// Nothing is read before the first move, which also reports errors. A cursor keeps the
  /// definitions of its collection and index, also when they are dropped meanwhile, but must not
  /// outlive the storage.
  std::unique_ptr<RecordCursor> ScanRecords(CollectionInfoPtr coll, RecordScan scan);
  std::unique_ptr<IndexCursor> ScanIndex(CollectionInfoPtr coll, IndexInfoPtr index,
                                         IndexScan scan);

  /// Exact number of documents and of BSON bytes.
  static int64_t DocumentCount(const CollectionInfo& coll) { return coll.counters->documents; }
  uint64_t StorageBytes(const CollectionInfo& coll);
  uint64_t IndexBytes(const CollectionInfo& coll, const IndexInfo& index);

  /// Checks every record (BSON, header, key) and every index against its documents; appends
  /// MongoDB's `validate` fields (valid, nrecords, keysPerIndex, indexDetails, errors, warnings …)
  /// to `reply`.
  Result<void> Validate(Operation& op, CollectionInfoPtr coll, bool full, class BsonBuilder& reply);

  static const ReadView kNow;  ///< each look-up sees the latest

  /// Storage's own files share it (storage/core/storage_impl.h).
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  Storage();
  void* QuerySlot(std::shared_ptr<void> (*make)());
  std::unique_ptr<Impl> impl_;
};

}  // namespace mayfly
