#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backup/disk_file.h"
#include "backup/manifest.h"
#include "protocol/error.h"

// clang-format off
/// A folder of backups:
///
///   LOCK                    "Mayfly backups 1\n": what it is; locked (flock) by users
///   backups/ID              the manifest of a backup (backup/manifest.h)
///   files/SUM-TAG-SIZE      a file of one or several backups
///   backups/ID.partial, files/*.partial, verify.partial/
///                           what a process left that died; goes with the next backup
// clang-format on
namespace mayfly {

/// One open folder of backups. One writer has it alone, or several readers share it; all others get
/// LockBusy 46. One thread.
class BackupFolder {
 public:
  /// A directory in it for the check of a backup: removed together with unfinished files.
  static constexpr std::string_view kVerifyCopy = "verify.partial";
  /// Where restores look for the archive of the log unless told otherwise; nothing here touches it.
  static constexpr std::string_view kLogArchive = "log";
  enum class Use : uint8_t { kRead, kChange };
  /// Errors: BadValue 2 (not an absolute path, or one with symbolic links), FileNotOpen 38 (there
  /// is none, or it is no folder of backups), LockBusy 46.
  static Result<BackupFolder> Open(const std::string& given, Use use);
  /// For a new backup: makes the folder (not those above it) unless there is one; one that is not
  /// empty, but for an archive of the log, must be a folder of backups. `data_directory`: must be
  /// neither in it nor around it.
  static Result<BackupFolder> OpenOrMake(const std::string& given,
                                         const std::string& data_directory);

  /// Oldest first.
  Result<std::vector<std::string>> Ids() const;
  /// Errors: NoSuchKey 4; those of BackupManifest::Decode, with the path.
  Result<BackupManifest> Read(std::string_view id) const;
  /// The newest, or the one named. Errors: NoSuchKey 4.
  Result<BackupManifest> Choose(std::string_view id) const;

  /// A stored file with this tag that has its whole size; its sum.
  std::optional<std::string> FindByTag(std::string_view tag, uint64_t size) const;
  /// Reads which files there are. Before FindByTag.
  Result<void> LoadFiles();
  const DiskFile& files() const { return files_; }
  const DiskFile& root() const { return root_; }

  /// The backup is there from now on: every file of it is in files() and synced.
  Result<void> Commit(const BackupManifest& manifest);
  /// What Collect has removed.
  struct Removed {
    uint64_t files = 0, bytes = 0;
  };
  /// Removes files that belong to no backup, and remains of dead processes. Nothing is removed when
  /// a manifest cannot be read.
  Result<Removed> Collect();
  /// Removes unfinished files: *.partial. At the start of a backup.
  Result<Removed> RemovePartial();
  /// Removes the backup; its files stay until Collect.
  Result<void> Remove(std::string_view id);

 private:
  static Result<BackupFolder> OpenAt(DiskFile root, Use use);
  DiskFile root_, lock_, backups_, files_;
  std::map<std::string, std::string, std::less<>> by_tag_;  ///< tag and size -> sum, as stored
};

}  // namespace mayfly
