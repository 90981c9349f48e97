#include <sys/syscall.h>
#include <unistd.h>

#include <system_error>
#include <thread>

#include "backup/copy.h"
#include "replication/replica_set.h"
#include "server/base/backup_making.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/config.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"
#include "storage/kv/thread_scheduling.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

constexpr int64_t kLogMicros = 30'000'000;  ///< between two lines of the log about one backup
constexpr int64_t kNapMicros = 20'000;      ///< a throttled backup looks so often whether to stop
constexpr int kBackupNice = 15;

struct BackupArgs {
  std::string path;
  bool incremental = true;
  int64_t rate = 0;  ///< bytes a second; 0: as fast as others leave room
};

Result<BackupArgs> ReadBackupArgs(const CommandRequest& req) {
  ArgReader in(req);
  BackupArgs args;
  const BsonValue first = in.Any(req.name);
  if (!first.IsNumber() || first.NumberAsDouble() != 1)
    in.Fail({ErrorCode::kBadValue, "'backup' must be 1: it is of the whole server"});
  args.path = in.String("path");
  args.incremental = in.BoolOr("incremental", true);
  args.rate = in.OptInRange("rateBytesPerSecond", 1024, int64_t{1} << 40).value_or(0);
  MAYFLY_TRY(in.Finish());
  return args;
}

/// Lowest priority: the thread gets processors and the disk after all others.
void StandBack() {
  UseBackgroundScheduling(kBackupNice);
  constexpr int kWhoProcess = 1, kBestEffort = 2, kLowest = 7;
  (void)::syscall(SYS_ioprio_set, kWhoProcess, 0, kBestEffort << 13 | kLowest);
}

/// Progress, rate and end of one backup, on its thread.
class BackupPace {
 public:
  BackupPace(CommandContext& ctx, int64_t rate)
      : ctx_(ctx), rate_(rate), started_(Now()), told_(started_) {}

  Result<void> Step(uint64_t done, uint64_t total) {
    ctx_.EditReport([&](OperationReport& r) {
      r.progress = "Backup";
      r.progress_done = static_cast<int64_t>(done);
      r.progress_total = static_cast<int64_t>(total);
    });
    ctx_.server.backups().Progress(done, total);
    if (Now() - told_ > kLogMicros) {
      told_ = Now();
      ctx_.server.log().Write(LogSeverity::kInfo, LogComponent::kStorage, 9000204,
                              "The backup goes on", BuildBson([&](BsonBuilder& b) {
                                b.Append("bytesDone", done).Append("bytesTotal", total);
                              }));
    }
    MAYFLY_TRY(ctx_.op.CheckInterruptNow());
    if (rate_ == 0) return Ok();
    const double due = static_cast<double>(done) / static_cast<double>(rate_) * 1e6;
    for (;;) {
      const int64_t left = static_cast<int64_t>(due) - (Now() - started_);
      if (left <= 0) return Ok();
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(left, kNapMicros)));
      MAYFLY_TRY(ctx_.op.CheckInterruptNow());
    }
  }

 private:
  int64_t Now() const { return ctx_.server.clock().MonotonicMicros(); }
  CommandContext& ctx_;
  const int64_t rate_;
  const int64_t started_;
  int64_t told_;
};

void DescribeServer(CommandContext& ctx, BackupManifest* m) {
  m->server_version = kMayflyVersion;
  if (ReplicaSet* set = ctx.server.replica_set()) {
    const TopologyPtr t = set->topology();
    m->set_name = set->set_name();
    if (t->config) m->set_id = t->config->set_id;
    // Before the checkpoint: that has at least this.
    m->index = set->applied_index();
    const OpTime applied = set->last_applied();
    m->ts = applied.ts;
    m->term = static_cast<uint64_t>(std::max<int64_t>(0, applied.term));
  }
  CountCatalog(ctx.data.storage().catalog(), m);
}

struct BackupOutcome {
  BackupManifest manifest;
  CopyCounts counts;
};

Result<BackupOutcome> MakeBackup(CommandContext& ctx, const BackupArgs& args) {
  const std::string& data = ctx.server.config().db_path;
  MAYFLY_TRY(BackupWork work, BackupWork::Begin(data));
  MAYFLY_TRY(BackupFolder folder, BackupFolder::OpenOrMake(args.path, data));
  BackupOutcome o;
  MAYFLY_TRY(NameBackup(ctx.server.clock().Now(), &o.manifest));
  DescribeServer(ctx, &o.manifest);
  MAYFLY_TRY(ctx.data.storage().kv().Checkpoint(work.checkpoint()));
  if (ReplicaSet* set = ctx.server.replica_set()) {
    // Behind it: the checkpoint has at most this.
    o.manifest.latest_index = std::max(o.manifest.index, set->applied_index());
    o.manifest.latest_ts = std::max(o.manifest.ts, set->last_applied().ts);
  }
  MAYFLY_TRY(ctx.op.CheckInterruptNow());
  MAYFLY_TRY(const std::vector<SourceFile> sources,
             ListBackupSources(ctx.data.storage().kv(), data, work.checkpoint(), &o.manifest));
  BackupPace pace(ctx, args.rate);
  const CopyStep step = [&](uint64_t done, uint64_t total) { return pace.Step(done, total); };
  MAYFLY_TRY(o.counts, CopyIntoBackup(folder, sources, args.incremental, step, &o.manifest));
  // Remains of an earlier backup that died; not worth an error now.
  if (auto collected = folder.Collect(); !collected)
    ctx.server.log().Write(
        LogSeverity::kWarning, LogComponent::kStorage, 9000205,
        "The folder of the backups could not be cleaned up",
        BuildBson([&](BsonBuilder& b) { b.Append("error", collected.error().message); }));
  return o;
}

Result<void> RunBackup(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(const BackupArgs args, ReadBackupArgs(req));
  Log& log = ctx.server.log();
  log.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000203, "A backup begins",
            BuildBson([&](BsonBuilder& b) { b.Append("path", args.path); }));
  const int64_t started = ctx.server.clock().MonotonicMicros();
  const auto millis = [&] { return (ctx.server.clock().MonotonicMicros() - started) / 1000; };
  ctx.server.backups().Begin();
  std::optional<Result<BackupOutcome>> made;
  try {
    // A separate thread: a lowered priority cannot be raised again.
    std::thread thread([&] {
      Log::SetThreadContext("Backup");
      large_memory::SetThreadBudget(&ctx.server.large_memory());
      StandBack();
      try {
        made = MakeBackup(ctx, args);
      } catch (...) {
        made = Error{ErrorCode::kInternalError, CurrentExceptionText()};
      }
    });
    thread.join();
  } catch (const std::system_error& e) {
    made = Error{ErrorCode::kInternalError,
                 std::string("there is no thread for the backup: ") + e.what()};
  }
  if (!*made) {
    const Error& e = made->error();
    ctx.server.backups().End(BackupFigures::Failed{args.path, e.message, ctx.server.clock().Now()});
    Audit(
        ctx, "backup", [&](BsonBuilder& p) { p.Append("path", args.path); }, e.code);
    log.Write(
        LogSeverity::kWarning, LogComponent::kStorage, 9000206, "The backup failed",
        BuildBson([&](BsonBuilder& b) { b.Append("path", args.path).Append("error", e.message); }));
    return e;
  }
  const BackupOutcome& o = made->value();
  const int64_t took = millis();
  ctx.server.backups().End(BackupFigures::Made{o.manifest.id, args.path, o.manifest.time,
                                               o.counts.files, o.counts.bytes,
                                               o.counts.copied_files, o.counts.copied_bytes, took});
  const auto append = [&](BsonBuilder& b) {
    const BackupManifest& m = o.manifest;
    b.Append("id", m.id).Append("time", m.time);
    if (!m.set_name.empty()) {
      BsonBuilder p = b.OpenDocument("position");
      p.AppendTimestamp("ts", m.ts).Append("t", m.term).Append("index", m.index);
    }
    b.Append("files", o.counts.files).Append("bytes", o.counts.bytes);
    b.Append("filesCopied", o.counts.copied_files).Append("bytesCopied", o.counts.copied_bytes);
    b.Append("durationMillis", took);
  };
  log.Write(LogSeverity::kInfo, LogComponent::kStorage, 9000207, "The backup is complete",
            BuildBson([&](BsonBuilder& b) {
              b.Append("path", args.path);
              append(b);
            }));
  Audit(ctx, "backup",
        [&](BsonBuilder& p) { p.Append("path", args.path).Append("id", o.manifest.id); });
  append(reply);
  return Ok();
}

}  // namespace

void RegisterBackup(CommandRegistry& registry) {
  registry.Add({.name = "backup",
                .flags = kAdminOnly | kSecondaryOk | kWorker,
                .help = "Copies all data of the running server into a folder of backups.",
                .run = &RunBackup,
                .privileges = &privileges::OnCluster<Action::backup>});
}

}  // namespace mayfly
