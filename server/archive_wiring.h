#pragma once
#include <memory>

#include "replication/log_archive.h"
#include "replication/log_archiver.h"
#include "server/dispatch/config.h"

namespace mayfly {

class Log;
class ParameterRegistry;
class ReplicaSet;
class ServerContext;
struct MasterKeys;

/// Archiving of this member's log, as the options ask for it.
struct ArchiveWiring {
  LogArchiveLimits limits;
  /// Null: the options ask for no archive. Else given to the replica set before it opens.
  std::shared_ptr<std::atomic<uint64_t>> keep_from;
  std::unique_ptr<LogArchiver> archiver;
  void RegisterParameters(ParameterRegistry& parameters);
};

/// Whether the options ask for an archive. Errors: InvalidOptions 72 (without --replSet, a command
/// without a folder), BadValue 2 (the command line cannot be split).
Result<bool> ArchiveWanted(const ServerConfig& config);

/// Makes the archiver and starts it, and adds `logArchive` to serverStatus. `ciphers` null: the
/// data directory is not encrypted, nor are the segments. REQUIRES: ArchiveWanted; the set has
/// started. The caller stops the archiver before the set goes.
Result<void> StartArchiver(ServerContext& server, ReplicaSet& set, FileCiphersPtr ciphers,
                           ArchiveWiring& wiring);

struct BackupManifest;

/// Whether the archive can bring the backup to `until`: before anything is copied. `keys` as
/// below. Errors: those of CheckArchive and OpenArchiveKeys.
Result<void> CheckArchiveOf(const BackupManifest& backup, const MasterKeys& keys,
                            const std::string& archive, std::optional<uint64_t> until);

/// Replays an archive on the data directory of a backup: what --restore does before it makes a new
/// node of it (ForgetSet). `engine` opens the directory; `keys` open encrypted segments. The log
/// has a line every few seconds. Errors: those of ReplayArchive, OpenArchiveKeys and Storage::Open.
Result<ReplayProgress> ReplayOnDirectory(const std::string& directory, KvEnginePtr engine,
                                         const MasterKeys& keys, const std::string& archive,
                                         std::optional<uint64_t> until, Clock& clock, Log* log);

}  // namespace mayfly
