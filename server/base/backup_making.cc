#include "server/base/backup_making.h"

#include <filesystem>
#include <set>

#include "protocol/hex.h"
#include "security/at_rest.h"
#include "security/crypto.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/store_file.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWorkDirectory = ".backup";

}  // namespace

Result<BackupWork> BackupWork::Begin(const std::string& data) {
  MAYFLY_TRY(DiskFile root, DiskFile::Directory(fs::weakly_canonical(data).string()));
  MAYFLY_TRY(root.MakeDirectory(kWorkDirectory));
  MAYFLY_TRY(DiskFile mine, root.OpenDirectory(kWorkDirectory));
  MAYFLY_TRY(const bool locked, mine.Lock(true));
  if (!locked)
    return Error{ErrorCode::kLockBusy,
                 "this server makes a backup already: currentOp shows it, killOp ends it"};
  BackupWork w(std::move(mine));
  w.Clear();
  return w;
}

BackupWork::~BackupWork() {
  if (directory_.fd() >= 0) Clear();
}

void BackupWork::Clear() const {
  std::error_code ec;
  fs::remove_all(checkpoint(), ec);
  fs::remove_all(checkpoint() + ".tmp", ec);
}

void RemoveBackupLeftovers(const std::string& data_directory) {
  std::error_code ec;
  fs::remove_all(fs::path(data_directory) / kWorkDirectory, ec);
}

Result<void> NameBackup(Instant now, BackupManifest* manifest) {
  MAYFLY_TRY(const std::string random, RandomBytes(6));
  manifest->time = now;
  manifest->id = MakeBackupId(now, random);
  return Ok();
}

void CountCatalog(Catalog& catalog, BackupManifest* m) {
  std::set<std::string_view> databases;
  const std::vector<CollectionInfoPtr> all = catalog.ListAll();
  for (const CollectionInfoPtr& c : all) {
    // A member's `local` is not part of the set's data and is not restored.
    if (!m->set_name.empty() && c->db == "local") continue;
    databases.insert(c->db);
    if (c->is_view() || c->source) continue;
    ++m->collections;
    m->indexes += static_cast<int64_t>(c->indexes.size()) + 1;
    m->documents += Storage::DocumentCount(*c);
    m->bytes += c->counters->bytes.load();
  }
  m->databases = static_cast<int64_t>(databases.size());
}

Result<std::vector<SourceFile>> ListBackupSources(const KvStore& kv, const std::string& data,
                                                  const std::string& checkpoint,
                                                  BackupManifest* m) {
  std::vector<SourceFile> sources;
  MAYFLY_TRY(DiskFile directory, DiskFile::Directory(checkpoint));
  MAYFLY_TRY(const std::vector<std::string> names, directory.List());
  for (const std::string& n : names)
    sources.push_back({checkpoint + "/" + n, n, IsImmutableStoreFile(n)});
  if (CiphersOf(kv)) {
    const std::string path = fs::weakly_canonical(data).string();
    sources.push_back({path + "/" + std::string(kKeystoreFile), std::string(kKeystoreFile)});
    MAYFLY_TRY(const std::string id, MasterKeyIdOf(path));
    m->key_id = HexDigits(id);
  }
  return sources;
}

}  // namespace mayfly
