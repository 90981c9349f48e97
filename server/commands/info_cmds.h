#pragma once
#include <cstdint>
#include <string>

namespace mayfly {

/// Figures of this process from /proc. Zero if /proc has none.
struct ProcessFacts {
  int64_t resident_bytes = 0, virtual_bytes = 0, peak_resident_kb = 0;
  int64_t page_faults = 0, page_reclaims = 0;
  int64_t user_micros = 0, system_micros = 0;
  int64_t threads = 0;
  int64_t voluntary_switches = 0, involuntary_switches = 0, blocks_in = 0, blocks_out = 0;
};
/// Reads files of /proc and getrusage: some microseconds, no waiting.
ProcessFacts ReadProcessFacts();

/// A small text file such as /proc/meminfo; empty if unreadable.
std::string ReadSmallFile(const char* path);
/// Bytes of memory of the machine, and what the cgroup allows of it (0: no limit).
int64_t MachineMemoryBytes();
int64_t CgroupMemoryLimitBytes();

}  // namespace mayfly
