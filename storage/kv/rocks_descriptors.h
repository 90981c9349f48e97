#pragma once
#include <rocksdb/env.h>

#include <functional>
#include <memory>
#include <string_view>

namespace mayfly {

/// The system's files, for a process that may run out of descriptors. RocksDB takes a log that it
/// cannot open for damage that only a restart mends. So some descriptors are kept: when there are
/// no others, an open takes one of these, and once they become few, `few` is called, behind which
/// the store refuses writes until Refill has got them back. The last of them are for logs and
/// manifests alone. What finds none fails as on a full disk, from which RocksDB recovers. Threads:
/// any.
class DescriptorEnv {
 public:
  virtual ~DescriptorEnv() = default;
  virtual rocksdb::Env* env() = 0;
  /// Opens what was taken again. False: there is not enough yet.
  virtual bool Refill() = 0;
};
/// `few`: any thread, inside an open; must not block. The env outlives the stores that use it.
std::unique_ptr<DescriptorEnv> MakeDescriptorEnv(std::function<void()> few);

/// Whether a status's text says that there were no descriptors (EMFILE, ENFILE).
bool LacksDescriptors(std::string_view status_text);

}  // namespace mayfly
