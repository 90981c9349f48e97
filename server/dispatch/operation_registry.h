#pragma once
#include <array>
#include <atomic>
#include <boost/intrusive/list.hpp>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "security/names.h"
#include "storage/operation.h"

namespace mayfly {

struct OperationReport;

/// A lock for a few instructions, held by an io thread and now and then by currentOp.
class SpinLock {
 public:
  /// Spins without giving up the processor: nothing that may block belongs under it. Taken
  /// by std::lock_guard.
  void lock() {
    while (flag_.exchange(true, std::memory_order_acquire))
      while (flag_.load(std::memory_order_relaxed)) __builtin_ia32_pause();
  }
  void unlock() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> flag_{false};
};

/// One client (a connection, or a thread of the server's own such as the TTL monitor) and what it
/// does right now. Owned by the client; known to the registry from construction to destruction.
/// Begin and End are called by whoever runs the operation and cost a few nanoseconds; everything
/// else may come from any thread.
class ClientSlot : public boost::intrusive::list_base_hook<> {
 public:
  /// An empty `desc` with a connection id becomes "conn<id>".
  ClientSlot(class OperationRegistry& registry, std::string desc, int64_t connection_id);
  ~ClientSlot();

  /// `command`, `db` and `report` must live until End.
  void Begin(Operation& op, std::string_view command_name, std::string_view db, BsonView command,
             OperationReport* report, std::string_view session, int64_t start_micros);
  void End();
  /// Runs (any thread, must not block) when the running operation is killed; cleared by End and by
  /// an empty function. Returns false, without keeping it, when the operation was killed already.
  bool SetKillWaker(std::function<void()> wake);
  /// Stops the running operation, if `op_id` is 0 or its id. True when there was one.
  bool Kill(uint64_t op_id, ErrorCode code);
  /// The running operation writes although its command as such does not (aggregate with $out).
  /// Until End.
  void SetWrites(bool on);

  /// The client's metadata from its first hello, and its address ("127.0.0.1:5000"; empty for
  /// internal clients).
  void SetMetadata(BsonDocument metadata, std::string app_name);
  BsonDocument metadata() const;
  std::string app_name() const;
  void SetAddresses(std::string remote, std::string local);
  /// Who has logged in; none while nobody has. Between two operations.
  void SetUser(std::optional<UserName> user);
  std::optional<UserName> user() const;
  std::string address, local_address;  ///< change with SetAddresses only, before the first command
  const std::string desc;              ///< "conn12", "TTLMonitor"
  const int64_t connection_id;         ///< 0 for internal ones

  /// Held while the report of the running operation is changed; for a few instructions only.
  SpinLock& lock() const { return lock_; }

  /// A client and what it runs, as currentOp shows it. Views are valid while the client's lock is
  /// held.
  struct View {
    const ClientSlot& slot;
    const Operation* op;  ///< null: idle
    std::string_view command_name, db, session;
    BsonView command;
    const OperationReport* report;
    int64_t start_micros;
    std::string_view app_name;
    BsonView metadata;
    bool kill_pending;
    bool waiting;          ///< only waits (for documents, a change, time): has a kill waker
    bool writes;           ///< SetWrites
    const UserName* user;  ///< null: nobody has logged in
  };

 private:
  friend class OperationRegistry;
  View MakeView() const;  // REQUIRES: lock_ is held
  OperationRegistry& registry_;
  const size_t shard_;
  mutable SpinLock lock_;
  Operation* op_ = nullptr;
  std::string_view command_name_, db_, session_;
  BsonView command_;
  OperationReport* report_ = nullptr;
  int64_t start_micros_ = 0;
  bool writes_ = false;
  std::function<void()> kill_waker_;
  BsonDocument metadata_;
  std::string app_name_;
  std::optional<UserName> user_;
};

/// All clients, in shards: a visit of all of them makes a client that comes or goes wait for a few
/// others at most. Threads: any.
class OperationRegistry {
 public:
  uint64_t NextOperationId() { return next_op_id_.fetch_add(1, std::memory_order_relaxed); }
  int64_t NextConnectionId() { return next_connection_id_.fetch_add(1, std::memory_order_relaxed); }

  /// Calls `f` for each client, busy or idle, with its slot locked: copy what you need and return.
  /// A client that comes or goes meanwhile may be missing; the order is none in particular.
  void ForEach(const std::function<void(const ClientSlot::View&)>& f) const;
  /// killOp. False when no such operation runs.
  bool Kill(uint64_t op_id, ErrorCode code = ErrorCode::kInterrupted);
  int KillSession(std::string_view session, ErrorCode code = ErrorCode::kInterrupted);
  /// Every operation `which` is true for; how many.
  int KillWhere(const std::function<bool(const ClientSlot::View&)>& which, ErrorCode code);
  int KillAll(ErrorCode code);
  int ActiveCount() const;

 private:
  friend class ClientSlot;
  std::atomic<uint64_t> next_op_id_{1};
  std::atomic<int64_t> next_connection_id_{1};
  struct Shard {
    mutable std::mutex mutex;
    boost::intrusive::list<ClientSlot> clients;
  };
  std::atomic<size_t> next_shard_{0};
  std::array<Shard, 64> shards_;
};

/// An operation of the server's own (a TTL pass, an index build resumed at start-up) as currentOp
/// shows it.
class InternalOperation {
 public:
  /// `op`: insert, remove, command … (a literal); `command` is shown as what it does, `ns` is
  /// "db.coll".
  InternalOperation(OperationRegistry& registry, const Clock& clock, std::string desc,
                    std::string_view op, std::string db, std::string ns, BsonView command);
  ~InternalOperation();
  Operation& op() { return op_; }
  const OperationReport& report() const;
  const ClientSlot& slot() const { return slot_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  Operation op_;
  ClientSlot slot_;
};

}  // namespace mayfly
