#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "server/commands/info_cmds.h"
#include "storage/kv/rocks_kv.h"

namespace mayfly {

std::string ReadSmallFile(const char* path) {
  std::ifstream in(path);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

namespace {
int64_t NumberAfter(const std::string& text, std::string_view key) {
  const size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + key.size(), nullptr, 10);
}
int64_t Micros(const timeval& t) { return int64_t{t.tv_sec} * 1'000'000 + t.tv_usec; }
}  // namespace

ProcessFacts ReadProcessFacts() {
  ProcessFacts f;
  const std::string status = ReadSmallFile("/proc/self/status");
  f.virtual_bytes = NumberAfter(status, "VmSize:") * 1024;
  f.resident_bytes = NumberAfter(status, "VmRSS:") * 1024;
  f.threads = NumberAfter(status, "Threads:");
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  f.peak_resident_kb = u.ru_maxrss;
  f.page_faults = u.ru_majflt;
  f.page_reclaims = u.ru_minflt;
  f.user_micros = Micros(u.ru_utime);
  f.system_micros = Micros(u.ru_stime);
  f.voluntary_switches = u.ru_nvcsw;
  f.involuntary_switches = u.ru_nivcsw;
  f.blocks_in = u.ru_inblock;
  f.blocks_out = u.ru_oublock;
  return f;
}

int64_t MachineMemoryBytes() {
  return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

int64_t CgroupMemoryLimitBytes() {
  const uint64_t limit = CgroupMemoryLimit();
  return limit < static_cast<uint64_t>(MachineMemoryBytes()) ? static_cast<int64_t>(limit) : 0;
}

}  // namespace mayfly
