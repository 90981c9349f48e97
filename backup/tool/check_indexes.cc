#include <unistd.h>

#include <filesystem>

#include "backup/copy.h"
#include "backup/tool/actions.h"
#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "query/match/record_filter.h"
#include "security/at_rest.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/rocks_kv.h"
#include "storage/kv/store_file.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

/// A folder that goes with everything in it.
class Copy {
 public:
  explicit Copy(std::string path) : path_(std::move(path)) {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  ~Copy() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  Copy(const Copy&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The store's files under their names. Files that never change are linked, or copied if links are
/// not possible.
Result<void> Fill(const BackupFolder& folder, const BackupManifest& manifest,
                  const std::string& path) {
  MAYFLY_TRY(DiskFile directory, DiskFile::Directory(path));
  for (const BackupFile& f : manifest.files) {
    if (IsImmutableStoreFile(f.name) && ::linkat(folder.files().fd(), f.StoredName().c_str(),
                                                 directory.fd(), f.name.c_str(), 0) == 0)
      continue;
    MAYFLY_TRY(CheckStoredFile(folder, f, &directory, nullptr));
  }
  return Ok();
}

void AddFaults(const std::string& ns, BsonView reply, std::vector<std::string>* out) {
  if (reply["valid"].Truthy()) return;
  const BsonValue errors = reply["errors"];
  size_t n = 0;
  if (errors.IsArray())
    for (const BsonElement& e : errors.Document()) {
      out->push_back(ns + ": " +
                     (e.value.IsString() ? std::string(e.value.String()) : ToRelaxedJson(e.value)));
      ++n;
    }
  const BsonValue details = reply["indexDetails"];
  if (details.IsDocument())
    for (const BsonElement& e : details.Document())
      if (e.value.IsDocument() && !e.value.Document()["valid"].Truthy()) {
        out->push_back(ns + ": the index " + std::string(e.name) +
                       " does not agree with the documents");
        ++n;
      }
  if (n == 0) out->push_back(ns + ": is not valid");
}

}  // namespace

Result<std::vector<std::string>> CheckIndexes(const BackupFolder& folder,
                                              const BackupManifest& manifest,
                                              const std::string& key_file) {
  const Copy copy(folder.root().path() + "/" + std::string(BackupFolder::kVerifyCopy));
  MAYFLY_TRY(folder.root().MakeDirectory(BackupFolder::kVerifyCopy));
  MAYFLY_TRY(Fill(folder, manifest, copy.path()));
  SystemClock clock;
  StorageOptions o;
  o.path = copy.path();
  o.cache_bytes = 128 << 20;
  o.clock = &clock;
  o.logged = true;  // builds of indexes wait: nothing may change
  o.engine = MakeRocksEngine();
  if (!manifest.key_id.empty()) {
    MAYFLY_TRY(const MasterKey key, MasterKey::Read("encryptionKeyFile", key_file));
    MAYFLY_TRY(const OpenedKeystore opened, OpenKeystore(copy.path(), key, nullptr));
    o.engine = MakeRocksEngine(nullptr, opened.ciphers);
  }
  o.compile_filter = [&clock](BsonView filter, bool for_index) {
    return CompileRecordFilter(filter, for_index, &clock);
  };
  MAYFLY_TRY(const std::unique_ptr<Storage> storage, Storage::Open(std::move(o)));
  Operation op(clock);
  std::vector<std::string> wrong;
  for (const CollectionInfoPtr& c : storage->catalog().ListAll()) {
    if (c->is_view() || c->source) continue;
    std::string bytes;
    {
      BsonBuilder reply(bytes);
      MAYFLY_TRY(storage->Validate(op, c, /*full=*/true, reply));
    }
    AddFaults(c->ns, BsonView(bytes.data()), &wrong);
  }
  return wrong;
}

}  // namespace mayfly
