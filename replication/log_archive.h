#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "protocol/file_cipher.h"
#include "replication/consensus.h"
#include "replication/log_segment.h"

/// An archive of a set's log: a folder of segments (replication/log_segment.h). LogArchiver
/// (replication/log_archiver.h) writes it; this reads it.
namespace mayfly {

class MasterKey;
class Storage;

/// Where an archive is, and what opens its files.
struct ArchiveSource {
  std::string folder;
  /// Tried one after the other on encrypted segments: the members that wrote them have keys of
  /// their own. Empty: there are no encrypted ones.
  std::vector<FileCiphersPtr> ciphers;
};

/// What opens the encrypted segments in an archive: of each keystore in the folder, with one of the
/// master keys given. Empty: there are no keystores, so no segment is encrypted. Errors:
/// InvalidOptions 72 (there are keystores and no master key opens one), FileNotOpen 38,
/// InternalError 1.
Result<std::vector<FileCiphersPtr>> OpenArchiveKeys(const std::string& folder,
                                                    const std::vector<const MasterKey*>& keys);

/// A finished segment and what its header and trailer say.
struct ArchivedSegment {
  std::string path;
  SegmentHeader header;
  SegmentTrailer trailer;
};
/// The finished segments of a set in the folder, by their first index; `set_id` empty: of all sets,
/// one set after the other. Reads headers and trailers, not what is between them. Files of other
/// names are left out; those that name another set are not opened. Errors, each naming the file:
/// FileNotOpen 38, InternalError 1 (damaged), InvalidOptions 72 (no cipher opens it),
/// UnsupportedFormat 12.
Result<std::vector<ArchivedSegment>> ListArchive(const ArchiveSource& source,
                                                 std::string_view set_id = {});

/// What VerifyArchive found.
struct ArchiveSummary {
  std::vector<ArchivedSegment> segments;  ///< those that could be opened, as ListArchive has them
  uint64_t entries = 0, bytes = 0;
  /// One line each: a damaged file, two that overlap, what is missing between two of a set. Empty:
  /// all of the archive is whole and follows on.
  std::vector<std::string> faults;
};
/// Reads everything and checks every checksum, and that the segments of each set follow on one
/// another.
/// `progress` is told the bytes of entries of each block; an error from it ends this; may be null.
/// Errors: FileNotOpen 38 (the folder), those of `progress`. What is wrong with the segments is in
/// `faults`.
Result<ArchiveSummary> VerifyArchive(const ArchiveSource& source,
                                     const std::function<Result<void>(uint64_t bytes)>& progress);

/// How far a replay is.
struct ReplayProgress {
  uint64_t index = 0;       ///< of the log: applied
  uint64_t ts = 0;          ///< of the last record applied
  int64_t wall_millis = 0;  ///< its time
  int64_t operations = 0;   ///< applied: records of the oplog
  uint64_t bytes = 0;       ///< of entries read
};

/// What ReplayArchive is to do.
struct ReplayRequest {
  ArchiveSource archive;
  /// Seconds since 1970 << 32 | increment. Units are applied whose last record is not later; no
  /// unit (transaction, batch of expiry deletes) is applied in part. None: to the archive's end.
  std::optional<uint64_t> until;
  /// Between two batches; an error from it ends the replay with that error. May be null.
  std::function<Result<void>(const ReplayProgress&)> progress;
};

/// A restore's facts about its backup before it copies anything: the store's position is not before
/// `from` and not behind `latest_index`.
struct ArchiveQuestion {
  ArchiveSource archive;
  std::optional<uint64_t> until;  ///< as ReplayRequest's
  std::string set_id;
  LogPosition from;
  uint64_t from_ts = 0;
  uint64_t latest_index = 0, latest_ts = 0;
};
/// Whether the archive can bring that backup to `until`, judging by headers and trailers: the
/// checks of ReplayArchive before it applies anything. So nothing is copied in vain. Errors: those
/// of ReplayArchive; NoSuchKey 4 also when there are no segments at all, which a wrong folder has.
/// Segments of other sets, such as one that was restored earlier, are passed by in both.
Result<void> CheckArchive(const ArchiveQuestion& question);

/// Applies the archive's entries to a store that nobody else uses: a backup of a member, opened
/// with StorageOptions::logged, before ForgetSet (its applied position and its chunks of units that
/// have not ended are in the log's keyspace). Begins behind the store's own applied position.
/// Afterwards the data is that of the set at the time returned, and the log's keyspace is of no
/// use: the caller calls ForgetSet. After an error the directory is of no use either.
///
/// Before anything is applied: the segments of the store's set reach from its position to `until`
/// without a gap, and the term at the store's position is the store's.
/// Errors, each naming the segment or what is missing: InvalidOptions 72 (`until` is before the
/// store's position or behind the archive's end; the store has no log; all segments are of other
/// sets; no cipher),
/// NoSuchKey 4 (a gap, or the archive begins too late), InternalError 1 (damage, overlap),
/// FileNotOpen 38, UnsupportedFormat 12, the store's, those of `progress`.
Result<ReplayProgress> ReplayArchive(Storage& storage, const ReplayRequest& request);

}  // namespace mayfly
