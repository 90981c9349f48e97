#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mayfly {

/// How the process' descriptors are shared out, so that no crowd of clients takes those of the
/// store.
struct DescriptorPlan {
  int64_t store = 0;        ///< as given
  int64_t http = 0;         ///< connections of the HTTP endpoint
  int64_t members = 0;      ///< a set's links, and what wants to become one
  int64_t other = 0;        ///< logs, listeners, event queues, files of sorts that spill
  int64_t reserved = 0;     ///< for administrators, above the limit
  int64_t room = 0;         ///< what is left for clients
  int64_t connections = 0;  ///< of these, at most what was wished for
};
/// Connections of the HTTP endpoint at this limit of descriptors.
int64_t HttpConnections(int64_t limit);
/// `limit`: RLIMIT_NOFILE. `wished`: --maxConns. `member`: of a replica set. `access`: with access
/// control, so administrators can be told from others.
DescriptorPlan PlanDescriptors(int64_t limit, int64_t store, int64_t wished, bool member,
                               bool access = false);

/// Counts client sockets from accept to close and refuses those above the limit. A few more
/// (`extra`) are accepted to see who they are: a member of a replica set serves other members on
/// them, so that many clients cannot separate the members of a set, and with access control an
/// administrator may stay. For the next one, an extra socket that has not identified itself is
/// closed: the oldest of the address that has most of them, so that nobody keeps administrators
/// elsewhere out. Exempt clients do not count for the limit; they take what room the descriptors
/// leave.
/// Threads: any. Outlives its tickets.
class ConnectionGate {
 public:
  /// The place of one connection, given back when it is destroyed.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& o) noexcept
        : gate_(std::exchange(o.gate_, nullptr)),
          extra_(std::move(o.extra_)),
          exempt_(o.exempt_),
          unknown_(std::move(o.unknown_)),
          counted_(std::move(o.counted_)) {}
    Ticket& operator=(Ticket&& o) noexcept {
      std::swap(gate_, o.gate_);
      std::swap(extra_, o.extra_);
      std::swap(exempt_, o.exempt_);
      std::swap(unknown_, o.unknown_);
      std::swap(counted_, o.counted_);
      return *this;
    }
    ~Ticket();
    /// Above the limit: only members and administrators are heard.
    bool extra() const { return extra_ != nullptr; }
    /// REQUIRES: extra(). An administrator's: it is not closed for the next one any more. False:
    /// there are enough of them, or it was told to go already. May be called again.
    bool Keep();
    /// Counts it among those that have not logged in: released at its login (an empty one), or with
    /// the ticket.
    void set_unknown(std::shared_ptr<void> share) { unknown_ = std::move(share); }
    /// Counts it among those of its address: released with the ticket.
    void set_counted(std::shared_ptr<void> share) { counted_ = std::move(share); }
    /// REQUIRES: extra(). Called once, from any thread and under a lock, when the place is needed;
    /// at once when that has happened already. Must not block.
    void OnEvict(std::function<void()> evict);

   private:
    friend class ConnectionGate;
    struct Extra {
      std::string client;  ///< ClientOf its address
      std::function<void()> evict;
      bool evicted = false, kept = false;
    };
    ConnectionGate* gate_ = nullptr;
    std::shared_ptr<Extra> extra_;
    bool exempt_ = false;
    std::shared_ptr<void> unknown_, counted_;
  };

  static constexpr int64_t kExtra = 32;          ///< of a replica set's member
  static constexpr int64_t kStrangers = 16;      ///< of others, with access control
  static constexpr int64_t kAdministrators = 8;  ///< that may stay, with access control
  /// `room`: of clients, exempt ones included; at least `limit`.
  ConnectionGate(int64_t limit, int64_t extra, int64_t room = 0, int64_t kept = 0)
      : limit_(limit), extra_limit_(extra), room_(std::max(limit, room)), keep_limit_(kept) {}
  /// `address`: "ip:port" of the other side. None: the connection is to be closed.
  std::optional<Ticket> Enter(std::string_view address, bool exempt = false);

 private:
  std::shared_ptr<Ticket::Extra> TakeOne();
  const int64_t limit_, extra_limit_, room_, keep_limit_;
  std::atomic<int64_t> clients_{0}, exempt_{0};
  std::mutex mutex_;
  std::deque<std::shared_ptr<Ticket::Extra>> extras_;  ///< not yet told to go, the oldest first
  int64_t extra_count_ = 0;                            ///< those with tickets
  int64_t kept_ = 0;                                   ///< of administrators, not among these
};

}  // namespace mayfly
