#include "server/archive_wiring.h"

#include <filesystem>

#include "backup/manifest.h"
#include "query/match/record_filter.h"
#include "replication/archive_command.h"
#include "replication/replica_set.h"
#include "server/at_rest_wiring.h"
#include "server/base/log.h"
#include "server/base/stop_signal.h"
#include "server/dispatch/server_context.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

/// As given, by the flag or in the file.
std::string Option(const ServerConfig& config, std::string_view name) {
  const BsonValue section = config.parsed.view()["replication"];
  const BsonValue v = section.IsDocument() ? section.Document()[name] : BsonValue();
  return v.IsString() ? std::string(v.String()) : std::string();
}

void AppendStatus(const LogArchiveStatus& s, BsonBuilder& reply) {
  BsonBuilder b = reply.OpenDocument("logArchive");
  b.Append("state", LogArchiveStateName(s.state)).Append("path", s.folder);
  b.Append("archivedIndex", static_cast<int64_t>(s.archived.index));
  b.AppendTimestamp("archivedTs", s.archived_ts);
  b.Append("waitingEntries", static_cast<int64_t>(s.waiting_entries));
  b.Append("waitingMillis", s.waiting_millis);
  b.Append("segments", s.segments).Append("bytes", s.bytes).Append("failures", s.failures);
  b.Append("gaps", s.gaps).Append("gapEntries", static_cast<int64_t>(s.gap_entries));
  b.Append("lostEntries", static_cast<int64_t>(s.lost_entries));
  if (!s.error.empty()) b.Append("error", s.error);
}

}  // namespace

void ArchiveWiring::RegisterParameters(ParameterRegistry& p) {
  p.AddInt("logArchiveSegmentMB", &limits.segment_mb, 1, 4096,
           "A segment of the archive of the log ends when it has so many MiB.");
  p.AddInt("logArchiveSegmentSecs", &limits.segment_secs, 1, 86'400,
           "A segment of the archive of the log ends when it is so old, if it has an entry: what "
           "the archive may be behind.");
  p.AddInt("logArchiveMaxWaitMB", &limits.max_wait_mb, 0, 1 << 30,
           "The log is not trimmed before it is archived until it has so many MiB. 0: twice the "
           "size that it is to have.");
  p.AddDouble("logArchiveMaxWaitHours", &limits.max_wait_hours, 0, 24 * 366,
              "Nor until its oldest entry that is not archived is so many hours old. 0: no such "
              "bound.");
  p.AddInt("logArchiveCommandTimeoutSecs", &limits.command_secs, 1, 86'400,
           "A command for a segment of the archive that takes longer is ended, and run again.");
}

Result<bool> ArchiveWanted(const ServerConfig& config) {
  const std::string folder = Option(config, "logArchivePath"),
                    command = Option(config, "logArchiveCommand");
  if (folder.empty() && command.empty()) return false;
  if (folder.empty())
    return InvalidOptions(
        "logArchiveCommand needs logArchivePath: segments are written there, and then given "
        "to the command");
  if (config.repl_set.empty())
    return InvalidOptions("logArchivePath needs replSet: a standalone has no log to archive");
  if (!command.empty()) {
    MAYFLY_TRY(SplitCommandLine(command));
  }
  return true;
}

Result<void> StartArchiver(ServerContext& server, ReplicaSet& set, FileCiphersPtr ciphers,
                           ArchiveWiring& wiring) {
  const ServerConfig& config = server.config();
  LogArchiverOptions o;
  // Also when the command changes into another folder.
  std::error_code ec;
  o.folder = fs::absolute(Option(config, "logArchivePath"), ec).lexically_normal().string();
  if (ec) return InvalidOptions("logArchivePath: " + ec.message());
  if (fs::weakly_canonical(o.folder, ec) == fs::weakly_canonical(config.db_path, ec))
    return InvalidOptions("logArchivePath: " + o.folder +
                          " is the data directory: give a folder of its own, best on another disk");
  if (const std::string command = Option(config, "logArchiveCommand"); !command.empty()) {
    MAYFLY_TRY(o.command, SplitCommandLine(command));
  }
  if (ciphers) o.keystore = config.db_path + "/" + std::string(kKeystoreFile);
  o.ciphers = std::move(ciphers);
  o.clock = &server.clock();
  o.kv = &server.storage().kv();
  o.consensus = &set.consensus();
  o.limits = &wiring.limits;
  o.log_max_bytes = [&set] { return set.log_max_bytes(); };
  o.keep_from = wiring.keep_from;
  o.log = [&log = server.log()](char severity, int32_t id, std::string_view message,
                                std::string_view error) {
    log.Write(LogSeverityOf(severity), LogComponent::kRepl, id, message,
              BuildBson([&](BsonBuilder& b) {
                if (!error.empty()) b.Append("error", error);
              }));
  };
  wiring.archiver = std::make_unique<LogArchiver>(std::move(o));
  wiring.archiver->Start();
  server.server_status_hooks.push_back(
      [a = wiring.archiver.get()](BsonBuilder& reply) { AppendStatus(a->Status(), reply); });
  return Ok();
}

static std::vector<const MasterKey*> Given(const MasterKeys& keys) {
  std::vector<const MasterKey*> out;
  for (const auto* key : {&keys.now, &keys.before})
    if (*key) out.push_back(&**key);
  return out;
}

Result<void> CheckArchiveOf(const BackupManifest& backup, const MasterKeys& keys,
                            const std::string& archive, std::optional<uint64_t> until) {
  ArchiveQuestion q;
  q.archive.folder = archive;
  MAYFLY_TRY(q.archive.ciphers, OpenArchiveKeys(archive, Given(keys)));
  q.until = until;
  q.set_id = backup.set_id;
  q.from = {backup.term, backup.index};
  q.from_ts = backup.ts;
  q.latest_index = backup.latest_index;
  q.latest_ts = backup.latest_ts;
  return CheckArchive(q);
}

Result<ReplayProgress> ReplayOnDirectory(const std::string& directory, KvEnginePtr engine,
                                         const MasterKeys& keys, const std::string& archive,
                                         std::optional<uint64_t> until, Clock& clock, Log* log) {
  constexpr int64_t kTellMicros = 5'000'000;
  ReplayRequest request;
  request.archive.folder = archive;
  request.until = until;
  MAYFLY_TRY(request.archive.ciphers, OpenArchiveKeys(archive, Given(keys)));
  int64_t told = clock.MonotonicMicros();
  request.progress = [&](const ReplayProgress& p) -> Result<void> {
    MAYFLY_TRY(CheckNoStopSignal());
    if (log == nullptr || clock.MonotonicMicros() - told < kTellMicros) return Ok();
    told = clock.MonotonicMicros();
    log->Write(
        LogSeverity::kInfo, LogComponent::kStorage, 9000316, "The archive is being replayed",
        BuildBson([&](BsonBuilder& b) {
          b.AppendTimestamp("ts", p.ts).Append("time", Instant{p.wall_millis});
          b.Append("operations", p.operations).Append("bytes", static_cast<int64_t>(p.bytes));
        }));
    return Ok();
  };
  StorageOptions o;
  o.path = directory;
  o.clock = &clock;
  o.engine = std::move(engine);
  o.logged = true;
  o.compile_filter = [&clock](BsonView filter, bool for_index) {
    return CompileRecordFilter(filter, for_index, &clock);
  };
  MAYFLY_TRY(const std::unique_ptr<Storage> storage, Storage::Open(std::move(o)));
  return ReplayArchive(*storage, request);
}

}  // namespace mayfly
