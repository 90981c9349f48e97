#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"

namespace mayfly::bench {

int64_t NowMicros();

/// CPU seconds (user and system) and resident bytes of a process, from /proc. Zero for pid 0.
double CpuSeconds(int pid);
int64_t ResidentBytes(int pid);
/// CPU seconds of those of its threads whose names begin so.
double ThreadSeconds(int pid, std::string_view name);

/// A whole OP_MSG with `body` as its only section.
std::string EncodeMessage(BsonView body);
/// EncodeMessage of a document filled by `fill`, with $db added.
template <class F>
std::string Command(std::string_view db, F&& fill) {
  return EncodeMessage(BuildBson([&](BsonBuilder& b) {
    fill(b);
    b.Append("$db", db);
  }));
}

/// A blocking connection for set-up work.
class SyncClient {
 public:
  SyncClient(const std::string& host, int port);
  ~SyncClient();
  SyncClient(const SyncClient&) = delete;
  /// Sends and returns the reply document. Exits with a message when the reply is not ok.
  BsonDocument Call(std::string_view message, bool must_succeed = true);

 private:
  int fd_;
};

inline constexpr std::string_view kDb = "bench";  ///< the benchmarks' database

/// Documents in a collection of the benchmark's database, by the `count` command.
int64_t Count(SyncClient& client, std::string_view collection);

/// Latencies of one run, in microseconds, exact up to 1 ms and to 1% above.
class Histogram {
 public:
  void Add(int64_t micros);
  int64_t Percentile(double p) const;
  int64_t count() const { return count_; }
  int64_t max() const { return max_; }

 private:
  std::vector<int64_t> buckets_ = std::vector<int64_t>(4096);
  int64_t count_ = 0, max_ = 0;
};

struct LoadResult {
  int64_t operations = 0, errors = 0;
  double seconds = 0, server_cpu_seconds = 0;
  int64_t resident_bytes = 0;
  Histogram latency;
};

/// What the connections say where a request depends on the replies before it. One thread.
class Conversation {
 public:
  virtual ~Conversation() = default;
  /// Whether the connection is between two operations: a run ends there.
  virtual bool Idle(size_t connection) const = 0;
  virtual void Next(size_t connection, std::string& message) = 0;
  virtual void Reply(size_t connection, BsonView reply) = 0;
};

struct LoadOptions {
  std::string host = "127.0.0.1";
  int port = 27017;
  int pid = 0;  ///< of the server, for CPU and memory; 0: not measured
  int connections = 1;
  double seconds = 3;
  int64_t max_operations = 0;  ///< 0: no limit
  double rate = 0;  ///< operations a second over all connections; 0: as fast as they come back
  const std::atomic<bool>* stop = nullptr;  ///< ends the run early when it becomes true; any thread
  Conversation* conversation = nullptr;     ///< instead of `next`; it counts errors itself
  bool redis = false;  ///< requests and replies are Redis's (RESP bulk strings)
};

/// Runs `next` (writes the n-th request into the string) closed-loop on every connection, or paced
/// by `rate`, where latency counts from the moment a request was due, so that a stall is not
/// hidden.
LoadResult RunLoad(const LoadOptions& options,
                   const std::function<void(int64_t n, std::string& message)>& next);
/// RunLoad until `over` says so, which is asked every 20 ms on a thread of its own (ten minutes at
/// most). `*seconds`: how long that took.
LoadResult RunLoadUntil(LoadOptions options,
                        const std::function<void(int64_t n, std::string& message)>& next,
                        const std::function<bool()>& over, double* seconds);

/// Instructions in user space that the server runs for an operation, once warm: exact where times
/// depend on what else the machine does. The server (`options.pid`) runs under callgrind with
/// instrumentation off and writes its counts to `out_file`.
double CountInstructions(LoadOptions options, const std::string& out_file,
                         const std::function<void(int64_t n, std::string& message)>& next);

/// The mass expiry (load_reap.cc).
void RunReap(const LoadOptions& options, int64_t documents);
/// Look-ups, ranges and updates of collections of these sizes, one after the other, each in several
/// states of the store and beside a ping, and what delays steady finds (load_sizes.cc).
/// `only`: of rows whose name contains this, and pings.
void RunSizes(const LoadOptions& options, const std::vector<int64_t>& sizes, std::string_view only);
/// Scans and sorts of a large collection, with the memory they take (load_scan.cc).
void RunScan(const LoadOptions& options, int64_t documents);
/// RunReap on a Redis server, with keys (load_redis.cc).
void RunRedisReap(const LoadOptions& options, int64_t keys);
/// Documents that fall due one after the other: how long after its deadline each is gone
/// (load_expiry.cc).
void RunTrickle(const LoadOptions& options, int64_t per_second, int64_t seconds);
/// What a pending deadline costs, and what a look at the head of the index costs after as many have
/// been reaped.
void RunHead(const LoadOptions& options, int64_t documents);

/// What transactions cost, on a set's primary (load_transactions.cc). `out_file`: of a server that
/// runs under callgrind, which is counted instead; empty: times. `only`: of rows whose name
/// contains this.
void RunTransactions(const LoadOptions& options, const std::string& out_file,
                     std::string_view only);

/// find by `_id` with and without expiry (load_costs.cc).
void RunReadCosts(const LoadOptions& options, double seconds);
/// Likewise, in instructions: of a server that runs under callgrind.
void RunReadInstructions(const LoadOptions& options, const std::string& out_file);
/// deleteOne with and without tombstones.
void RunTombstoneCosts(const LoadOptions& options, double seconds);
/// What so many rules cost that have nothing to do.
void RunIdleRules(const LoadOptions& options, int64_t rules, double seconds);
/// Documents that are due, with the monitor off; and, after the server was started again, reads
/// while they go.
void FillBacklog(const LoadOptions& options, int64_t documents);
void RunBacklog(const LoadOptions& options);

/// The members of a replica set, its primary first; or one server alone.
struct SetMembers {
  std::vector<int> ports, pids;
};
/// A set of three, a set of one and a standalone server side by side, then a mass expiry of
/// `options.max_operations` documents on the set of three (load_sets.cc).
void RunSets(const LoadOptions& options, const SetMembers& set, const SetMembers& one,
             const SetMembers& alone);
/// What each of them has resident after the same writes and reads; on servers that have done
/// nothing before (load_set_memory.cc).
void RunSetMemory(const LoadOptions& options, const SetMembers& set, const SetMembers& one,
                  const SetMembers& alone);

}  // namespace mayfly::bench
