#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backup/folder.h"
#include "protocol/error.h"

namespace mayfly {

/// Called after each piece that was read, with the bytes done and their total. An error stops the
/// work. It may wait, to limit the rate.
using CopyStep = std::function<Result<void>(uint64_t done, uint64_t total)>;

/// A file that is to go into a backup.
struct SourceFile {
  std::string path, name;
  bool immutable = false;  ///< never changed once it is written: its tag says which it is
};

/// What a backup has cost.
struct CopyCounts {
  uint64_t files = 0, bytes = 0;                ///< of the backup
  uint64_t copied_files = 0, copied_bytes = 0;  ///< of those, not yet in the folder
};

/// Copies the files that the folder lacks, fills in `manifest->files` and adds the backup.
/// `incremental`: an immutable file whose tag and size the folder has is not read. Otherwise every
/// file is read, and written again even if the folder has it, which mends damaged files. After an
/// error the folder is as before. Blocks. Errors: those of DiskFile, the step's, OutOfDiskSpace
/// 14031.
Result<CopyCounts> CopyIntoBackup(BackupFolder& folder, const std::vector<SourceFile>& sources,
                                  bool incremental, const CopyStep& step, BackupManifest* manifest);

/// Copies a backup into the directory, which must have no files of these names, and checks every
/// byte. Copies `threads` files at a time; the step is called by one thread at a time, any of
/// them. Files copied before an error stay: the caller removes them. Errors: InternalError 1 for a
/// missing or damaged file, by its name; those of DiskFile and of the step.
Result<void> CopyOutOfBackup(const BackupFolder& folder, const BackupManifest& manifest,
                             const DiskFile& directory, const CopyStep& step, size_t threads = 4);

/// Reads a stored file and compares it with the manifest. `to`: the copy's place; null: none.
/// `chunk`: called for each piece; may be null.
Result<void> CheckStoredFile(const BackupFolder& folder, const BackupFile& file, const DiskFile* to,
                             const std::function<Result<void>(uint64_t bytes)>& chunk);

}  // namespace mayfly
