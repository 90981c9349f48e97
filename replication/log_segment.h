#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "protocol/file_cipher.h"
#include "replication/consensus.h"
#include "security/checksum.h"

// clang-format off
/// A segment: a file of an archive of a set's log, with consecutive entries that are applied. The same grammar is in
/// docs/on-disk-format.md. DO NOT RENUMBER: change kSegmentVersion instead.
///
///   name     := [set "-"] first "-" last ".segment"  set: 24 hexadecimal digits, in names of earlier versions there is none; first, last: indexes
///                                                   of the log, 20 decimal digits each
///   segment  := [prefix] header block* trailer      prefix: of an encrypted file (security/at_rest.h); all behind it is encrypted
///   header   := "MayflyLA" version:le32 (1) set:bytes[12] node:le64 first:le64 previous_index:le64 previous_term:le64
///               follows:u8 created:le64 crc:le32
///               set: replicaSetId; node: the member that wrote it; first: index of the first entry; created: milliseconds since 1970
///               follows: 0 begins an archive: nothing is known of what was before (previous_*: 0)
///                        1 the entry before `first` is (previous_index, previous_term), the last one of the segment before
///                        2 likewise, but what is between previous_index and `first` was trimmed before it could be archived; with nothing
///                          between them: the data was changed without the log
///   block    := "B" bytes:le32 entries:le32 crc:le32 entry{entries}      bytes: of the entries together; crc: of bytes, entries, entry*
///   entry    := kind:u8 term:varint size:varint data:bytes[size]         kind, data: CommittedEntry
///   trailer  := "T" last:le64 first_term:le64 last_term:le64 first_ts:le64 last_ts:le64 first_wall:le64 last_wall:le64
///               entries:le64 blocks:le64 bytes:le64 sum:bytes[32] crc:le32
///               ts: of the first and the last record of the oplog in it, 0: it has none; wall: milliseconds since 1970 of the same
///               bytes: of the file before the trailer, without the prefix; sum: SHA-256 of these
///   crc      := CRC-32 (zlib) of what stands before it in the header, block (without "B") or trailer
// clang-format on
namespace mayfly {

inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr std::string_view kSegmentSuffix = ".segment";

/// The relation of a segment to the one before it.
enum class SegmentFollows : uint8_t { kNothing = 0, kPrevious = 1, kGap = 2 };

/// The facts known when a segment begins.
struct SegmentHeader {
  std::string set_id;  ///< 12 bytes
  NodeId node = 0;
  uint64_t first = 0;
  LogPosition previous;
  SegmentFollows follows = SegmentFollows::kNothing;
  int64_t created_millis = 0;
};

/// The facts known when it is finished.
struct SegmentTrailer {
  uint64_t last = 0, first_term = 0, last_term = 0;
  uint64_t first_ts = 0, last_ts = 0;
  int64_t first_wall = 0, last_wall = 0;
  uint64_t entries = 0, blocks = 0, bytes = 0;
  std::string sum;  ///< 32 bytes
};

/// The facts in a segment's name. Sets begin with the same indexes: without the id of its own the
/// segment of one would have the name of another's, and a command could replace it.
struct SegmentId {
  std::string set_id;  ///< 12 bytes; empty: not said, in a name of an earlier version
  uint64_t first = 0, last = 0;
};
/// Its name in the folder.
std::string SegmentName(const SegmentId& id);
/// nullopt: it is no segment's name.
std::optional<SegmentId> ParseSegmentName(std::string_view name);

/// Writes one segment under a name of the caller's, who renames it when it is finished. A file that
/// is not finished has no trailer and is worth nothing. One thread.
class SegmentWriter {
 public:
  /// Creates or replaces the file. `ciphers`: null: plain. Errors: OutOfDiskSpace 14031,
  /// FileNotOpen 38, those of the cipher.
  static Result<std::unique_ptr<SegmentWriter>> Create(const std::string& path,
                                                       SegmentHeader header,
                                                       const FileCiphers* ciphers);
  ~SegmentWriter();  ///< leaves the file

  /// REQUIRES: the index is header().first + entries(). Errors: OutOfDiskSpace 14031, FileNotOpen
  /// 38, InternalError 1 (the entry cannot be read); then the file is of no use.
  Result<void> Add(const CommittedEntry& entry);
  /// Writes what is left and the trailer, and syncs the file. REQUIRES: entries() > 0.
  Result<void> Finish();

  const SegmentHeader& header() const { return header_; }
  const SegmentTrailer& trailer() const { return trailer_; }
  uint64_t entries() const { return trailer_.entries; }
  /// The bytes of the file so far, with those that wait in memory.
  uint64_t bytes() const { return offset_ + block_.size(); }

 private:
  SegmentWriter() = default;
  Result<void> FlushBlock();
  Result<void> Write(std::string& bytes);

  std::string path_;
  int fd_ = -1;
  std::unique_ptr<FileCipher> cipher_;
  uint64_t offset_ = 0;  ///< in the file
  SegmentHeader header_;
  SegmentTrailer trailer_;
  std::string block_;
  uint32_t in_block_ = 0;
  Checksum sum_;
};

/// Reads one. One thread.
class SegmentReader {
 public:
  /// Reads and checks header and trailer, and that the file's name and size are theirs. Errors:
  /// FileNotOpen 38, InternalError 1 (damaged), UnsupportedFormat 12, InvalidOptions 72 (it is
  /// encrypted, and none of the ciphers opens it); all name the file.
  static Result<std::unique_ptr<SegmentReader>> Open(const std::string& path,
                                                     const std::vector<FileCiphersPtr>& ciphers);
  ~SegmentReader();

  const SegmentHeader& header() const { return header_; }
  const SegmentTrailer& trailer() const { return trailer_; }

  /// The next block's entries; they point into `*bytes`. False at the end, where the checksum of
  /// the whole and everything in the trailer have been found right. Errors: InternalError 1,
  /// FileNotOpen 38.
  Result<bool> NextBlock(std::vector<CommittedEntry>* entries, std::string* bytes);

 private:
  SegmentReader() = default;
  Result<void> Read(uint64_t offset, char* to, size_t n);
  Result<void> ReadHeader();
  Result<void> ReadTrailer(uint64_t size);
  Result<bool> End();
  Error Damaged(std::string_view how) const;

  std::string path_;
  int fd_ = -1;
  std::unique_ptr<FileCipher> cipher_;
  uint64_t prefix_ = 0, offset_ = 0, blocks_end_ = 0;
  SegmentHeader header_;
  SegmentTrailer trailer_;
  SegmentTrailer seen_;  ///< what the blocks so far say
  Checksum sum_;
};

/// The first and the last timestamp of the oplog that an entry has, and the time; false: none (a
/// chunk, a configuration). Errors: InternalError 1 when it cannot be read.
Result<bool> EntryTimes(const CommittedEntry& entry, uint64_t* first_ts, uint64_t* last_ts,
                        int64_t* wall);

/// `what` and the path with errno's words: OutOfDiskSpace 14031, else FileNotOpen 38.
Error FileError(std::string_view what, std::string_view path);

}  // namespace mayfly
