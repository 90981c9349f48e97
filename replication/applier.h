#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "replication/consensus.h"
#include "replication/log_store.h"
#include "replication/patient_writes.h"

namespace mayfly {

/// Takes committed entries to the state machine, on a thread of its own (or by hand: Step), in
/// order, exactly once. Whatever waits at the same moment becomes one batch of the store.
class Applier {
 public:
  using Done = std::function<void(Result<LogPosition>)>;
  /// Committed entries in order with who waits for them.
  struct Work {
    std::vector<CommittedEntry> entries;
    std::vector<Done> done;                   ///< one per entry, or empty
    std::vector<std::shared_ptr<void>> keep;  ///< what the entries and contexts point into
    std::string conf_state,
        configuration;           ///< rows of the log store as of the last entry; empty: unchanged
    std::function<void()> call;  ///< instead of entries: run in order
    /// Instead of entries, when the machine holds them back: [from, to] of the log, read when they
    /// are due, so that a delay of hours costs no memory. 0: not so.
    uint64_t from = 0, to = 0;
    uint64_t newest = 0;  ///< of those, the last one that says when it is due, once it is known
    bool alone = false;   ///< its one entry stands alone (StateMachine::StandsAlone)
  };

  /// `moved`: something was applied; the applier's thread. May be empty.
  Applier(LogStore& log, StateMachine& machine, std::function<void(std::string_view)> fatal,
          std::function<void()> moved = {});
  ~Applier();  ///< Stop

  /// Uses these to wait for a store without room, instead of ending; null: it ends. Outlives this.
  /// Before StartThread.
  void set_writes(PatientWrites* writes) { writes_ = writes; }
  /// Before the first Push.
  void StartThread();
  /// Finishes what was pushed, then runs no more. Waiters of WhenApplied fail.
  void Stop();
  void Push(Work work);
  void PushCall(std::function<void()> call) { Push({.call = std::move(call)}); }
  /// Runs `call` before the queue, also while entries wait for room in the store: for news that is
  /// urgent and independent of what was pushed before.
  void PushUrgent(std::function<void()> call);
  void WhenApplied(uint64_t index, std::function<void(Result<void>)> done);
  /// Returns when everything pushed so far is done; what is held back is forgotten instead (raft-rs
  /// gives committed entries again that are not applied). REQUIRES: the thread runs and is not this
  /// one.
  void Drain();
  /// Does what is there, without a thread. False: nothing was.
  bool Step();

 private:
  void Run();
  /// Puts it into the queue, in parts where entries stand alone. REQUIRES: mutex_
  void Enqueue(Work work);
  void Apply(std::vector<Work>& group);
  /// Tells waiters for the entries that these will not be applied before the next start.
  static void GiveUp(std::vector<Work>& group);
  /// Writes the batch as soon as the store takes it.
  Result<void> WriteBatch(KvBatch& batch);
  bool RunUrgent();  ///< false: there was nothing
  /// The front of the queue is held back: applies what of it is due. False: nothing is.
  bool ApplyDue();
  void ForgetHeld();  ///< REQUIRES: mutex_

  LogStore& log_;
  StateMachine& machine_;
  const std::function<void(std::string_view)> fatal_;
  const std::function<void()> moved_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> queue_;
  size_t calls_ = 0;  ///< in the queue
  std::deque<std::function<void()>> urgent_;
  std::multimap<uint64_t, std::function<void(Result<void>)>> waiters_;
  bool stop_ = false;
  std::thread thread_;

  // The applier's thread alone.
  std::unique_ptr<KvBatch> batch_;
  std::vector<CommittedEntry> entries_;
  bool given_up_ = false;  ///< entries are missing, since the wait for room was ended: none follow
  PatientWrites* writes_ = nullptr;
};

}  // namespace mayfly
