#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "storage/catalog/catalog_open.h"
#include "storage/core/highest_key.h"
#include "storage/core/lock_table.h"
#include "storage/core/open_storage.h"
#include "storage/expiry/expiry_policy.h"
#include "storage/expiry/expiry_state.h"
#include "storage/expiry/kept_documents.h"

namespace mayfly {

/// WatchCollections (storage/write/collection_watch.h).
struct CollectionWatch {
  std::string db;
  std::vector<std::string> names;
  std::function<void(std::string_view collection)> changed;  ///< empty: nobody watches
  /// False for every name while nobody watches.
  bool Covers(std::string_view of_db, std::string_view name) const {
    return changed && of_db == db && std::find(names.begin(), names.end(), name) != names.end();
  }
};

/// What storage's own files share. Not for the layers above: scripts/lib/check_tree.py looks.
/// Code that commits also includes storage/write/write_unit.h.
struct Storage::Impl {
  StorageOptions options;
  std::unique_ptr<KvStore> kv;
  LockTable locks;
  GateTable gates;
  HighestKeys highest_keys;
  std::unique_ptr<Committer> committer;
  /// Null only while the catalog itself is being opened (and in tests that make CollectionInfo by
  /// hand): write units then take the CollectionInfo they are given as it is. Otherwise they look
  /// it up again once they hold the gate.
  std::unique_ptr<OpenedCatalog> catalog;
  bool logged =
      false;  ///< units are described for a replica set's log; set before the first client
  ExpiryWaker expiry_waker;
  /// Rises before another member's writes become visible: they carry no dates, so ExpiryHead's
  /// knowledge is void.
  std::atomic<uint64_t> expiry_epoch{0};
  std::unique_ptr<ExpiryPolicy> expiry_policy = std::make_unique<ExpiryPolicy>();
  KeptDocuments kept;
  CollectionWatch watch;
  std::once_flag query_state_made;
  std::shared_ptr<void> query_state;
  Storage* self = nullptr;
  std::atomic<uint64_t> next_owner{1};
  std::atomic<bool> closing{
      false};  ///< set first thing when the Storage goes: background work stops

  LockOwner NewOwner() { return next_owner.fetch_add(1, std::memory_order_relaxed); }
  void Log(char severity, std::string_view message, BsonView attributes = {}) const {
    if (options.log) options.log(severity, "STORAGE", message, attributes);
  }
};

}  // namespace mayfly
