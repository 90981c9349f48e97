#pragma once
#include "protocol/file_cipher.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// RocksDB as the store, its files encrypted by these ciphers. `env` as for the plain one
/// (storage/kv/rocks_kv.h).
KvEnginePtr MakeRocksEngine(void* env, FileCiphersPtr ciphers);

/// The ciphers of a kind of store's files, or of one store's (StoreFile uses them); null: plain
/// files.
FileCiphersPtr CiphersOf(const KvEngine& engine);
FileCiphersPtr CiphersOf(const KvStore& store);

/// Base of stores and kinds of stores with possibly encrypted files, for CiphersOf.
class HasCiphers {
 public:
  virtual ~HasCiphers() = default;
  /// Null: its files are plain. The same object for its whole life.
  virtual FileCiphersPtr ciphers() const = 0;
};

}  // namespace mayfly
