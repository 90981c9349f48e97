#include "server/at_rest_wiring.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "protocol/hex.h"

namespace mayfly {
namespace {

namespace fs = std::filesystem;

/// What is in the directory.
struct Found {
  bool keystore = false;
  bool store = false;      ///< some file of a store, or a copy of one that is to become it
  bool encrypted = false;  ///< its root file begins as an encrypted one,
  bool plain = false;      ///< or is that of a plain store
};

Result<Found> Look(const std::string& directory, const KvEngine& plain) {
  Found found;
  std::error_code ec;
  fs::directory_iterator it(directory, ec), end;
  if (ec == std::errc::no_such_file_or_directory) return found;
  for (; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    found.keystore |= name == kKeystoreFile;
    // A start that was refused may have left a lock and a log for humans.
    found.store |= (plain.IsStoreFile(name) && !name.starts_with("LO")) || name == ".resync";
    if (name != plain.RootFile()) continue;
    std::ifstream in(it->path(), std::ios::binary);
    char bytes[8] = {};
    in.read(bytes, sizeof bytes);
    found.encrypted = BeginsEncrypted({bytes, static_cast<size_t>(in.gcount())});
    // If it is neither, it is damaged, and the store says so.
    const std::string named = plain.FileNamedByRoot(directory);
    std::error_code unknown;
    found.plain = !found.encrypted && plain.IsStoreFile(named) &&
                  fs::exists(it->path().parent_path() / named, unknown);
  }
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "cannot list the data directory " + directory + ": " + ec.message()};
  return found;
}

/// Whether another process has the store open: it holds the lock of its file.
bool StoreInUse(const std::string& directory) {
  const int fd = ::open((directory + "/LOCK").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool used = ::fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(fd);
  return used;
}

/// As given, by the flag or in the file.
BsonValue SecurityOption(const ServerConfig& config, std::string_view name) {
  const BsonValue security = config.parsed.view()["security"];
  return security.IsDocument() ? security.Document()[name] : BsonValue();
}

Error LostKeystore(const std::string& directory) {
  return InvalidOptions(
      "the data in " + directory + " is encrypted, and the file " + std::string(kKeystoreFile) +
      ", which has its key, is missing: restore it from a backup of this directory. "
      "Nothing was changed");
}

}  // namespace

bool EncryptionEnabled(const ServerConfig& config) {
  return SecurityOption(config, "enableEncryption").Truthy();
}

Result<MasterKeys> ReadMasterKeys(const ServerConfig& config) {
  MasterKeys keys;
  if (!EncryptionEnabled(config)) return keys;
  auto read = [&](std::string_view name, std::optional<MasterKey>* key) -> Result<void> {
    const BsonValue path = SecurityOption(config, name);
    if (!path.IsString()) return Ok();
    MAYFLY_TRY(*key, MasterKey::Read(name, std::string(path.String())));
    return Ok();
  };
  MAYFLY_TRY(read("encryptionKeyFile", &keys.now));
  MAYFLY_TRY(read("encryptionRotateFrom", &keys.before));
  return keys;
}

Result<AtRest> OpenAtRest(const std::string& directory, const MasterKeys& keys,
                          const KvEngine& plain) {
  MAYFLY_TRY(const Found found, Look(directory, plain));
  AtRest at_rest;
  if (!found.keystore && found.encrypted) return LostKeystore(directory);
  if (found.keystore && found.plain)
    return InvalidOptions(
        "the data in " + directory + " is not encrypted, but there is " +
        std::string(kKeystoreFile) +
        ": they do not belong together. Move the one away that is not this directory's. "
        "Nothing was changed");
  if (!keys.now) {
    if (found.keystore)
      return InvalidOptions(
          "the data in " + directory + " is encrypted (there is " + std::string(kKeystoreFile) +
          "): start with --enableEncryption and --encryptionKeyFile. Nothing was changed");
    return at_rest;
  }
  if (found.plain || (found.store && !found.keystore))
    return InvalidOptions(
        "the data in " + directory +
        " is not encrypted, and cannot become so in its place: start without "
        "--enableEncryption, or with an empty directory, and copy the data into that (an "
        "initial sync, or mongodump and mongorestore). Nothing was changed");
  if (!found.keystore) {
    std::error_code ec;
    fs::create_directories(directory, ec);
    if (ec)
      return Error{ErrorCode::kFileNotOpen,
                   "cannot create the data directory " + directory + ": " + ec.message()};
    MAYFLY_TRY(MakeKeystore(directory, *keys.now));
    at_rest.created = true;
  }
  // This start would be refused later, but it would first replace the master key of a running
  // server, whose next start would not know the new key.
  if (keys.before && StoreInUse(directory))
    return Error{ErrorCode::kLockBusy, "another process is using the data directory " + directory +
                                           ": stop it first. Nothing was changed"};
  MAYFLY_TRY(OpenedKeystore opened,
             OpenKeystore(directory, *keys.now, keys.before ? &*keys.before : nullptr));
  at_rest.ciphers = std::move(opened.ciphers);
  at_rest.rotated = opened.rotated;
  at_rest.key_id = HexDigits(keys.now->id());
  return at_rest;
}

}  // namespace mayfly
