#pragma once
#include <rocksdb/env.h>

#include <memory>
#include <string_view>

namespace mayfly {

/// The system's files, for a process that may run out of descriptors. RocksDB takes a failed open
/// of a log or a table for damage that only a restart mends; here it is tried again for half a
/// second, and then fails as a full disk does: writes are refused and go on by themselves once
/// there are descriptors again. Threads: any. Only opening files passes through it.
std::unique_ptr<rocksdb::Env> MakeDescriptorEnv();

/// Whether a status's text says that there were no descriptors (EMFILE, ENFILE).
bool LacksDescriptors(std::string_view status_text);

}  // namespace mayfly
