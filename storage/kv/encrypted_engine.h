#pragma once
#include "protocol/file_cipher.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// RocksDB as the store, its files encrypted by these ciphers. `env` as for the plain one
/// (storage/kv/rocks_kv.h).
KvEnginePtr MakeRocksEngine(void* env, FileCiphersPtr ciphers);

/// What encrypts the files of a kind of store, or of one store (StoreFile reads and writes them);
/// null: they are plain.
FileCiphersPtr CiphersOf(const KvEngine& engine);
FileCiphersPtr CiphersOf(const KvStore& store);

/// What CiphersOf asks: stores and kinds of stores whose files may be encrypted are one.
class HasCiphers {
 public:
  virtual ~HasCiphers() = default;
  /// Null: its files are plain. The same object for its whole life.
  virtual FileCiphersPtr ciphers() const = 0;
};

}  // namespace mayfly
