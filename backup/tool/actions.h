#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// What mayfly-backup was asked for.
struct BackupToolOptions {
  std::string uri, path, id;
  int64_t rate = 0;      ///< bytes a second; 0: no limit
  bool full = false;     ///< create: reads and writes every file
  int keep = 0;          ///< prune: how many backups stay
  std::string key_file;  ///< verify: opens encrypted backups, and segments of an archive
  std::string archive;   ///< verify: folder of an archive of the log; empty: none is named
  bool checksums_only = false;
  bool json = false;  ///< list
};

// Each prints its results on standard output, and its progress on standard error. Errors: those of
// BackupFolder and of what is said below.

/// Lets the server make one; SIGINT ends it there too. Errors: the server's.
Result<void> CreateBackup(const BackupToolOptions& options);
Result<void> ListBackups(const BackupToolOptions& options);
/// Reads every file of one backup or of all, and compares the indexes of each with its documents.
/// Then every segment of the archive of the log: the one that is named, or `log` in the folder of
/// the backups, if it is there. An archive may be named without backups. Errors: InternalError 1
/// when anything is wrong: all of it was printed.
Result<void> VerifyBackups(const BackupToolOptions& options);
Result<void> DeleteBackup(const BackupToolOptions& options);
Result<void> PruneBackups(const BackupToolOptions& options);

/// Reads every segment of an archive of the log and checks all checksums, and that those of each
/// set follow on one another. Prints each fault, and what there is; returns the number of faults.
/// Errors: FileNotOpen 38, InvalidOptions 72 (it is encrypted, and `key_file` does not open it).
Result<int> CheckArchiveSegments(const std::string& archive, const std::string& key_file);

/// Opens a backup as a temporary copy inside its folder, whose large files are links, and runs
/// `validate` on each collection. What is wrong, a line each. Errors: when it cannot be opened.
class BackupFolder;
struct BackupManifest;
Result<std::vector<std::string>> CheckIndexes(const BackupFolder& folder,
                                              const BackupManifest& manifest,
                                              const std::string& key_file);

}  // namespace mayfly
