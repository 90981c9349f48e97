#pragma once
#include <string>
#include <vector>

#include "backup/copy.h"
#include "backup/disk_file.h"
#include "backup/manifest.h"
#include "protocol/error.h"

// What the command `backup` and `mayflyd --backup` have in common.
namespace mayfly {

class Catalog;
class KvStore;

/// The place of the checkpoint in a data directory (`.backup/checkpoint`), which one backup has at
/// a time; what is in it goes with this. One thread.
class BackupWork {
 public:
  /// Empties it. `data`: the data directory. Errors: LockBusy 46, those of DiskFile.
  static Result<BackupWork> Begin(const std::string& data);
  ~BackupWork();
  BackupWork(BackupWork&&) = default;
  /// For KvStore::Checkpoint, which makes it.
  std::string checkpoint() const { return directory_.path() + "/checkpoint"; }

 private:
  explicit BackupWork(DiskFile directory) : directory_(std::move(directory)) {}
  void Clear() const;
  DiskFile directory_;
};

/// Removes the remains of a backup whose process died from the data directory. Before the store is
/// opened.
void RemoveBackupLeftovers(const std::string& data_directory);

/// Fills in `manifest->id` and `time` of a backup that begins now. Errors: those of RandomBytes.
Result<void> NameBackup(Instant now, BackupManifest* manifest);

/// Adds the catalog's figures. With a `manifest->set_name`, a member's `local` does not count.
void CountCatalog(Catalog& catalog, BackupManifest* manifest);

/// The files of the checkpoint, and with them the keystore if the store is encrypted; its key's
/// name goes into `manifest->key_id`. Errors: those of DiskFile, of MasterKeyIdOf.
Result<std::vector<SourceFile>> ListBackupSources(const KvStore& kv, const std::string& data,
                                                  const std::string& checkpoint,
                                                  BackupManifest* manifest);

}  // namespace mayfly
