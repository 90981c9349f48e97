#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace mayfly {

/// How the process' descriptors are shared out, so that no crowd of clients takes those of the
/// store.
struct DescriptorPlan {
  int64_t store = 0;        ///< as given
  int64_t http = 0;         ///< connections of the HTTP endpoint
  int64_t members = 0;      ///< a set's links, and what wants to become one
  int64_t other = 0;        ///< logs, listeners, event queues, files of sorts that spill
  int64_t connections = 0;  ///< what is left for clients, at most what was wished for
};
/// Connections of the HTTP endpoint, of so many descriptors.
int64_t HttpConnections(int64_t limit);
/// `limit`: RLIMIT_NOFILE. `wished`: --maxConns. `member`: of a replica set.
DescriptorPlan PlanDescriptors(int64_t limit, int64_t store, int64_t wished, bool member);

/// Counts client sockets from accept to close and refuses those above the limit. A member of a
/// replica set accepts a few more (`extra`) and serves only other members on them, so that many
/// clients cannot separate the members of a set. The oldest extra socket that has not identified
/// itself is closed for the next one. Threads: any. Outlives its tickets.
class ConnectionGate {
 public:
  /// The place of one connection, given back when it is destroyed.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& o) noexcept
        : gate_(std::exchange(o.gate_, nullptr)), extra_(std::move(o.extra_)) {}
    Ticket& operator=(Ticket&& o) noexcept {
      std::swap(gate_, o.gate_);
      std::swap(extra_, o.extra_);
      return *this;
    }
    ~Ticket();
    /// Above the limit: only a member is heard.
    bool extra() const { return extra_ != nullptr; }
    /// REQUIRES: extra(). Called once, from any thread and under a lock, when the place is needed;
    /// at once when that has happened already. Must not block.
    void OnEvict(std::function<void()> evict);

   private:
    friend class ConnectionGate;
    struct Extra {
      std::function<void()> evict;
      bool evicted = false;
    };
    ConnectionGate* gate_ = nullptr;
    std::shared_ptr<Extra> extra_;
  };

  static constexpr int64_t kExtra = 32;
  ConnectionGate(int64_t limit, int64_t extra) : limit_(limit), extra_limit_(extra) {}
  /// None: the connection is to be closed.
  std::optional<Ticket> Enter();

 private:
  const int64_t limit_, extra_limit_;
  std::atomic<int64_t> clients_{0};
  std::mutex mutex_;
  std::deque<std::shared_ptr<Ticket::Extra>> extras_;  ///< not yet told to go, the oldest first
  int64_t extra_count_ = 0;                            ///< those with tickets
};

}  // namespace mayfly
