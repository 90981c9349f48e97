#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "replication/consensus.h"

namespace mayfly {

// clang-format off
/// Periodic messages between members beside the log, and their answers:
///
///   heartbeat := version:u8 (1) sent:le64 body
///   answer    := version:u8 (1) echo:le64 body
///   body      := wall:le64 role:u8 flags:u8 term:le64 applied:2*le64 durable:2*le64 sync_done:le64
///   sync_total:le64 payload
///   flags     := 1 electable | 2 copying | 4 without you | 8 works
// clang-format on
struct Heartbeat {
  int64_t stamp_us = 0;  ///< the sender's monotonic clock; an answer has that of its question
  Instant wall;
  uint8_t role = 0;
  bool electable = true, copying = false;
  /// The thread that has the log is not stuck: it writes to disk at most, and not for too long.
  bool works = false;
  /// In an answer: the sender's configuration does not contain the asking member, and `payload` is
  /// that configuration (log_store.h).
  bool without_you = false;
  uint64_t term = 0;
  LogPosition applied, durable;
  uint64_t sync_done = 0, sync_total = 0;
  std::string payload;
};

/// A question or an answer, in the format above. The payload goes to the end of the bytes.
std::string EncodeHeartbeat(const Heartbeat& h);
/// False when the bytes are not one; `h` is then of no use.
bool DecodeHeartbeat(std::string_view in, Heartbeat* h);

}  // namespace mayfly
