#pragma once
#include <rocksdb/env.h>

#include <memory>

#include "protocol/file_cipher.h"

namespace mayfly {

/// `base` with everything that the store writes encrypted: RocksDB's own encryption of files, with
/// our ciphers, and with corrections:
///   - a file that is opened again to be synced or cut keeps its key (RocksDB would append another
///     prefix in the midst of its log);
///   - a file that ends inside its prefix, since the process died or the power went, is empty;
///   - pages of a log that never reached the disk are read as the zeros that they are, not as what
///     zeros decrypt to: CheckLogs and RocksDB know by them where the power went.
/// Not encrypted: names, and RocksDB's log for humans (LOG), which has no keys or values of users
/// in it (DBOptions::allow_data_in_errors is off). Outlives the stores that are opened with it.
std::unique_ptr<rocksdb::Env> MakeEncryptedEnv(rocksdb::Env& base, FileCiphersPtr ciphers);

}  // namespace mayfly
