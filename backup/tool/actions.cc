#include "backup/tool/actions.h"

#include <cstdio>
#include <ctime>
#include <filesystem>

#include "backup/copy.h"
#include "backup/folder.h"
#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"

namespace mayfly {
namespace {

std::string TimeText(Instant time) {
  const time_t seconds = time.millis / 1000;
  struct tm t {};
  ::gmtime_r(&seconds, &t);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t);
  return text;
}

BsonDocument Described(const BackupManifest& m) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("id", m.id).Append("time", m.time).Append("serverVersion", m.server_version);
    if (!m.set_name.empty()) {
      b.Append("set", m.set_name);
      b.OpenDocument("position")
          .AppendTimestamp("ts", m.ts)
          .Append("t", m.term)
          .Append("index", m.index);
    }
    b.Append("databases", m.databases).Append("collections", m.collections);
    b.Append("documents", m.documents).Append("files", static_cast<int64_t>(m.files.size()));
    b.Append("bytes", m.TotalBytes());
    if (!m.key_id.empty()) b.Append("keyId", m.key_id);
  });
}

/// Checks one backup: prints each fault, and returns their number.
int Verify(const BackupFolder& folder, const BackupToolOptions& options, const std::string& id) {
  int faults = 0;
  auto fault = [&](const std::string& what) {
    std::printf("%s: %s\n", id.c_str(), what.c_str());
    ++faults;
  };
  auto manifest = folder.Read(id);
  if (!manifest) {
    fault(manifest.error().message);
    return faults;
  }
  const BackupManifest& m = manifest.value();
  uint64_t done = 0;
  int told = -1;
  for (const BackupFile& f : m.files) {
    auto checked = CheckStoredFile(folder, f, nullptr, [&](uint64_t bytes) {
      done += bytes;
      const int percent = static_cast<int>(done * 100 / std::max<uint64_t>(1, m.TotalBytes()));
      if (percent != told) std::fprintf(stderr, "\r%s: %d%%", id.c_str(), told = percent);
      return Result<void>(Ok());
    });
    if (!checked) fault(checked.error().message);
  }
  std::fprintf(stderr, "\n");
  if (faults > 0 || options.checksums_only) {
    if (faults == 0) std::printf("%s: all checksums are right\n", id.c_str());
    return faults;
  }
  if (!m.key_id.empty() && options.key_file.empty()) {
    std::printf(
        "%s: all checksums are right; the indexes were not checked, for the backup is "
        "encrypted: give --encryptionKeyFile\n",
        id.c_str());
    return faults;
  }
  auto wrong = CheckIndexes(folder, m, options.key_file);
  if (!wrong) {
    fault("cannot be opened: " + wrong.error().message);
    return faults;
  }
  for (const std::string& w : wrong.value()) fault(w);
  if (faults == 0) std::printf("%s: all checksums and indexes are right\n", id.c_str());
  return faults;
}

}  // namespace

Result<void> ListBackups(const BackupToolOptions& options) {
  MAYFLY_TRY(BackupFolder folder, BackupFolder::Open(options.path, BackupFolder::Use::kRead));
  MAYFLY_TRY(const std::vector<std::string> ids, folder.Ids());
  for (const std::string& id : ids) {
    auto m = folder.Read(id);
    if (!m && options.json) {
      const BsonDocument said = BuildBson(
          [&](BsonBuilder& b) { b.Append("id", id).Append("damaged", m.error().message); });
      std::printf("%s\n", ToRelaxedJson(said).c_str());
      continue;
    }
    if (!m) {
      std::printf("%s  damaged: %s\n", id.c_str(), m.error().message.c_str());
      continue;
    }
    const BackupManifest& b = m.value();
    if (options.json) {
      std::printf("%s\n", ToRelaxedJson(Described(b)).c_str());
      continue;
    }
    std::printf("%s  %s  %s  %lld documents  %llu MB%s\n", id.c_str(), TimeText(b.time).c_str(),
                b.set_name.empty() ? "standalone" : b.set_name.c_str(),
                static_cast<long long>(b.documents),
                static_cast<unsigned long long>(b.TotalBytes() >> 20),
                b.key_id.empty() ? "" : "  encrypted");
  }
  return Ok();
}

Result<void> VerifyBackups(const BackupToolOptions& options) {
  if (options.path.empty() && options.archive.empty())
    return Error{ErrorCode::kBadValue, "give --path, --archive or both"};
  int faults = 0;
  std::string archive = options.archive;
  if (!options.path.empty()) {
    // Alone: a copy of the backup is made in its folder.
    MAYFLY_TRY(BackupFolder folder, BackupFolder::Open(options.path, BackupFolder::Use::kChange));
    std::vector<std::string> ids{options.id};
    if (options.id.empty()) {
      MAYFLY_TRY(ids, folder.Ids());
    }
    for (const std::string& id : ids) faults += Verify(folder, options, id);
    // The archive that --restore takes if none is named.
    std::error_code ec;
    if (archive.empty() && std::filesystem::is_directory(options.path + "/log", ec))
      archive = options.path + "/log";
  }
  if (!archive.empty()) {
    auto checked = CheckArchiveSegments(archive, options.key_file);
    if (!checked) std::printf("%s: %s\n", archive.c_str(), checked.error().message.c_str());
    faults += checked ? checked.value() : 1;
  }
  if (faults == 0) return Ok();
  return Error{ErrorCode::kInternalError, std::to_string(faults) + " faults were found"};
}

Result<void> DeleteBackup(const BackupToolOptions& options) {
  MAYFLY_TRY(BackupFolder folder, BackupFolder::Open(options.path, BackupFolder::Use::kChange));
  MAYFLY_TRY(folder.Remove(options.id));
  MAYFLY_TRY(const BackupFolder::Removed removed, folder.Collect());
  std::printf("removed the backup %s and %llu files of it alone (%llu MB)\n", options.id.c_str(),
              static_cast<unsigned long long>(removed.files),
              static_cast<unsigned long long>(removed.bytes >> 20));
  return Ok();
}

Result<void> PruneBackups(const BackupToolOptions& options) {
  if (options.keep < 1)
    return Error{ErrorCode::kBadValue, "--keep must be at least 1: the newest backup stays"};
  MAYFLY_TRY(BackupFolder folder, BackupFolder::Open(options.path, BackupFolder::Use::kChange));
  MAYFLY_TRY(const std::vector<std::string> ids, folder.Ids());
  const auto keep = static_cast<size_t>(options.keep);
  const size_t go = ids.size() > keep ? ids.size() - keep : 0;
  for (size_t i = 0; i < go; ++i) {
    MAYFLY_TRY(folder.Remove(ids[i]));
    std::printf("removed the backup %s\n", ids[i].c_str());
  }
  MAYFLY_TRY(const BackupFolder::Removed removed, folder.Collect());
  std::printf("removed %llu files that no backup needs (%llu MB)\n",
              static_cast<unsigned long long>(removed.files),
              static_cast<unsigned long long>(removed.bytes >> 20));
  return Ok();
}

}  // namespace mayfly
