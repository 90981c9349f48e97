#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "protocol/instant.h"

// clang-format off
/// What a backup is: the last file that is written of it, so that there is a backup exactly if its
/// manifest is whole.
///
///   manifest := "MayflyBM" version:u8 (1) size:le32 BSON[size] sum:bytes[32]
///               sum: SHA-256 of all that stands before it; nothing follows it
///   BSON     := {id: string, time: date, serverVersion: string,
///                set: {name: string, id: binary},                  if of a member
///                position: {term, index, ts: int64,                of a member: at least this,
///                           latestIndex, latestTs: int64},         and at most this (if known)
///                catalog: {databases, collections, indexes, documents, bytes: int64},
///                keyId: string,                                    if encrypted: the master key's
///                files: [{name: string, size: int64, sum: binary(32), tag: binary(16)} …]}
///               Numbers are not negative, but for ts (timestamps use all 64 bits). There is a file
///               at least, no two have one name, and all sizes together are an int64.
///   sum      := SHA-256 of the file
///   tag      := the first 16 bytes of SHA-256(size:le64, first 4096 bytes, last 65536 bytes)
// clang-format on
namespace mayfly {

/// A file of a backup: as it was in the data directory, encryption included.
struct BackupFile {
  std::string name;  ///< without a folder
  uint64_t size = 0;
  std::string sum, tag;
  /// Its name in the folder of the backups: files with the same bytes are one.
  std::string StoredName() const;
  bool operator==(const BackupFile&) const = default;
};

/// One backup: its server, its time and its files (docs/on-disk-format.md). Threads: one at a
/// time.
struct BackupManifest {
  static constexpr size_t kSumBytes = 32, kTagBytes = 16;
  static constexpr size_t kMaxBytes = 256 << 20;  ///< of an encoded one
  static constexpr size_t kMaxFiles = 1'000'000;

  std::string id;
  Instant time{0};
  std::string server_version;
  std::string set_name, set_id;  ///< empty: of a standalone
  uint64_t term = 0, index = 0, ts = 0;
  uint64_t latest_index = 0, latest_ts = 0;  ///< looked at behind the copy; 0: not known
  int64_t databases = 0, collections = 0, indexes = 0, documents = 0, bytes = 0;
  std::string key_id;
  std::vector<BackupFile> files;

  /// Bytes of all files.
  uint64_t TotalBytes() const;
  /// The file that Decode reads.
  std::string Encode() const;
  /// `bytes` may be anything. Errors: UnsupportedFormat 12 for another version, InternalError 1
  /// when it is damaged.
  static Result<BackupManifest> Decode(std::string_view bytes);
  bool operator==(const BackupManifest&) const = default;
};

/// "20300101T120000Z-0123456789ab": in the order of time as text too.
std::string MakeBackupId(Instant time, std::string_view random_bytes);
/// Whether it may be an id: letters, digits and '-', so that it cannot lead out of its folder.
bool IsBackupId(std::string_view id);
/// Whether it may be a file's name in a data directory or a folder of backups.
bool IsPlainFileName(std::string_view name);

}  // namespace mayfly
