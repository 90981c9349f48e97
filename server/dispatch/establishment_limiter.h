#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "storage/clock.h"
#include "storage/write/counter.h"

namespace mayfly {

class ParameterRegistry;

/// A connection that was accepted and is not served yet. Destroying it closes it, unless it was
/// served. Threads: that of the listeners.
class NewConnection {
 public:
  virtual ~NewConnection() = default;
  virtual bool Gone() = 0;   ///< its client has closed it, or cannot be reached; must not block
  virtual void Serve() = 0;  ///< called at most once
};

/// How many connections are taken up in a second: a bucket of tokens that fills with time, one for
/// each connection. A connection that finds none waits in line until there is one, and is closed
/// when the line is as long as it may be. Off unless a parameter switches it on.
/// Threads: Arrived, Advance and Clear on that of the listeners, the rest on any.
class EstablishmentLimiter {
 public:
  explicit EstablishmentLimiter(const Clock& clock) : clock_(clock) {}

  /// MongoDB's ingressConnectionEstablishment…; this must outlive the registry's use.
  void RegisterParameters(ParameterRegistry& parameters);
  /// `changed` runs after each change of a parameter, on any thread; it must not block. Empty:
  /// nothing does, and once this returns, what was set before is not running either.
  void OnChange(std::function<void()> changed);

  enum class Outcome { kServed, kWaits, kRefused };
  /// A client has come; a refused one is closed when this returns. `exempt`: it is served whatever
  /// the others do, and takes no token.
  Outcome Arrived(std::unique_ptr<NewConnection> connection, bool exempt);
  /// Serves those whose turn has come, and closes those whose clients have gone: a bounded number
  /// of them. The microseconds after which it is to be called again; none: nobody waits.
  std::optional<int64_t> Advance();
  /// Closes all that wait.
  void Clear();

  /// serverStatus.queues.ingressSessionEstablishment; those while it is on.
  struct Figures {
    Counter attempted, served, refused, exempted;
    Counter queued, dequeued;  ///< into the line, and out of it to be served
    Counter gone;              ///< out of it because their clients had gone
    Counter waited_micros;     ///< of `dequeued`, all together
    Counter waiting;           ///< now
  };
  const Figures& figures() const { return figures_; }
  /// Connections that would be taken up at once if they came now.
  int64_t Tokens() const;

 private:
  struct Waiting {
    std::unique_ptr<NewConnection> connection;
    int64_t since;  ///< MonotonicMicros
  };
  /// The tokens that there are at this time.
  double TokensAt(int64_t now) const;
  bool TakeToken();
  void DropGone();
  std::list<Waiting>::iterator Remove(std::list<Waiting>::iterator at);

  const Clock& clock_;
  std::atomic<bool> enabled_{false};
  std::atomic<int64_t> rate_{INT32_MAX}, most_waiting_{0};
  std::atomic<double> burst_secs_{1};
  std::mutex mutex_;
  std::function<void()> changed_;  ///< under the lock
  Figures figures_;
  // Written by the listeners' thread alone; others see one of them before the other.
  std::atomic<double> tokens_{0};       ///< at filled_at_
  std::atomic<int64_t> filled_at_{-1};  ///< MonotonicMicros; -1: none was taken yet, it is full

  // Of the listeners' thread.
  std::list<Waiting> line_;
  std::list<Waiting>::iterator look_at_ = line_.end();  ///< next for DropGone
  int64_t looked_at_ = 0;                               ///< MonotonicMicros; when it last began
};

}  // namespace mayfly
