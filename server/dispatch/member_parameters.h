#pragma once
#include <atomic>
#include <cstdint>

namespace mayfly {

/// Parameters of a replica set's member. Threads: any.
struct MemberParameters {
  std::atomic<bool> write_periodic_noops{true};
  std::atomic<int64_t> periodic_noop_secs{10};
  std::atomic<bool> allow_old_member_handshake{false};
};

}  // namespace mayfly
