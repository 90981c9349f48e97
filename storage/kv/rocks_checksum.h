#pragma once

namespace mayfly {

/// Whether RocksDB's checksum of the write-ahead log is the one of rocks_checksum.cc, which takes
/// the processor's own instruction. Any thread.
bool HasFastChecksum();

}  // namespace mayfly
