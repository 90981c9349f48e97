#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "replication/raft_node.h"
#include "storage/kv/memory_kv.h"

/// A replica set in one thread: its network, clock, disks and crashes come from one seed, so a
/// history that fails can be run again. What runs is the engine's own RaftNode, LogStore and
/// Applier; only threads, sockets and RocksDB are not.
namespace mayfly::testing {

struct SimOptions {
  uint64_t seed = 1;
  int nodes = 3;
  int steps = 4000;      ///< of 10 ms
  bool faults = true;    ///< loss, partitions, crashes, nodes that sleep, wall clocks that jump
  bool changes = false;  ///< members leave and come back, lose and get their votes, are emptied
  bool trimming = true;  ///< logs are cut short, so members need copies
  bool data_is_empty = true;
  bool lying_disk = false;
  /// Units in chunks, as large transactions are: open for long, ended, and given up.
  bool transactions = false;
  bool forgets_open = false;  ///< a mistake: logs are cut short through units that are open
};

struct SimResult {
  std::string failure;  ///< empty: every invariant held
  int acknowledged = 0, elections = 0, crashes = 0, partitions = 0, copies = 0, sleeps = 0;
  int changes = 0, emptied = 0;
  int begun = 0, committed = 0, given_up = 0;  ///< transactions
  uint64_t digest = 0;                         ///< of the whole history: equal seeds, equal digests
};

SimResult Simulate(const SimOptions& options);

}  // namespace mayfly::testing
