#pragma once
#include <rocksdb/status.h>

#include "protocol/error.h"

namespace mayfly {

/// The only place where a status of RocksDB becomes an error of ours. REQUIRES: neither ok nor
/// NotFound.
Error FromStorage(const rocksdb::Status& s);

}  // namespace mayfly
