#pragma once
#include <rocksdb/env.h>

#include <functional>
#include <memory>
#include <string_view>

namespace mayfly {

/// The system's files, for a process that may run out of descriptors. RocksDB treats a log that it
/// cannot open as damage, which only a restart repairs. So this env keeps a reserve of descriptors.
/// When no others are free, an open takes one from the reserve. When the reserve becomes small,
/// `few` is called, and the store refuses writes until Refill has restored it. The last ones are
/// for logs and manifests only. One more log is open beforehand ("spare.tmp" beside the store's
/// logs): it serves when the limit itself falls below what is in use. An open that gets none fails
/// like an open on a full disk, from which RocksDB recovers. Threads: any.
class DescriptorEnv {
 public:
  virtual ~DescriptorEnv() = default;
  /// Owned by this; as long as it lives.
  virtual rocksdb::Env* env() = 0;
  /// Opens what was taken again. False: there is not enough yet.
  virtual bool Refill() = 0;
};
/// `few`: any thread, inside an open; must not block. The env outlives the stores that use it.
std::unique_ptr<DescriptorEnv> MakeDescriptorEnv(std::function<void()> few);

/// Whether a status's text says that there were no descriptors (EMFILE, ENFILE).
bool LacksDescriptors(std::string_view status_text);

}  // namespace mayfly
