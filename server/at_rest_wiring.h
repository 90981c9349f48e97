#pragma once
#include "security/at_rest.h"
#include "server/dispatch/config.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// Encryption at rest of the data directory, before its store is opened.
struct AtRest {
  FileCiphersPtr ciphers;  ///< null: it is off
  std::string key_id;      ///< of the master key, in hexadecimal digits
  bool created = false;    ///< the directory had no store: it has a data key now
  bool rotated = false;
};

/// Whether the data directory is to be encrypted.
bool EncryptionEnabled(const ServerConfig& config);

/// The master keys that the options name; none when encryption is off.
struct MasterKeys {
  std::optional<MasterKey> now, before;
};
/// Errors: InvalidOptions 72.
Result<MasterKeys> ReadMasterKeys(const ServerConfig& config);

/// Checks that the directory matches the options, encrypted or not; returns its ciphers. `plain`:
/// the kind of store, which knows its files. Errors, each with what to change; nothing is modified:
/// InvalidOptions 72, FileNotOpen 38, InternalError 1.
Result<AtRest> OpenAtRest(const std::string& directory, const MasterKeys& keys,
                          const KvEngine& plain);

}  // namespace mayfly
