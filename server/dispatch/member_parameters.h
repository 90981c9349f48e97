#pragma once
#include <atomic>

namespace mayfly {

/// Parameters of a replica set's member. Threads: any.
struct MemberParameters {
  std::atomic<bool> write_periodic_noops{true};
  std::atomic<bool> allow_old_member_handshake{false};
};

}  // namespace mayfly
