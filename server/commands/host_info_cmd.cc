#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <set>
#include <sstream>
#include <thread>

#include "server/commands/info_cmds.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

std::string OsReleaseField(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != '=') continue;
    std::string v = line.substr(key.size() + 1);
    if (v.size() >= 2 && v.front() == '"') v = v.substr(1, v.size() - 2);
    return v;
  }
  return {};
}

Result<void> HostInfo(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_TRY(NoArguments(req));
  utsname u{};
  ::uname(&u);
  const std::string cpu = ReadSmallFile("/proc/cpuinfo");
  std::set<std::string> sockets;
  std::string features, mhz;
  int physical = 0;
  {
    std::istringstream lines(cpu);
    for (std::string line; std::getline(lines, line);) {
      const std::string value =
          line.find(": ") == std::string::npos ? "" : line.substr(line.find(": ") + 2);
      if (line.starts_with("physical id")) sockets.insert(value);
      if (line.starts_with("cpu cores")) physical = std::max(physical, std::atoi(value.c_str()));
      if (line.starts_with("flags") && features.empty()) features = value;
      if (line.starts_with("cpu MHz") && mhz.empty()) mhz = value;
    }
  }
  const auto cores = static_cast<int32_t>(::sysconf(_SC_NPROCESSORS_CONF));
  const int64_t memory = MachineMemoryBytes(), limit = CgroupMemoryLimitBytes();
  {
    BsonBuilder s = reply.OpenDocument("system");
    s.Append("currentTime", ctx.op.now)
        .Append("hostname", u.nodename)
        .Append("cpuAddrSize", int32_t{64});
    s.Append("memSizeMB", memory >> 20).Append("memLimitMB", (limit ? limit : memory) >> 20);
    s.Append("numCores", cores);
    s.Append("numCoresAvailableToProcess",
             static_cast<int32_t>(std::thread::hardware_concurrency()));
    s.Append(
        "numPhysicalCores",
        physical ? physical * std::max<int32_t>(1, static_cast<int32_t>(sockets.size())) : cores);
    s.Append("numCpuSockets", std::max<int32_t>(1, static_cast<int32_t>(sockets.size())));
    s.Append("cpuArch", u.machine);
    s.Append("numaEnabled", ::access("/sys/devices/system/node/node1", F_OK) == 0);
  }
  {
    const std::string release = ReadSmallFile("/etc/os-release");
    BsonBuilder o = reply.OpenDocument("os");
    o.Append("type", u.sysname).Append("name", OsReleaseField(release, "NAME"));
    o.Append("version", OsReleaseField(release, "VERSION_ID"));
  }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  BsonBuilder e = reply.OpenDocument("extra");
  e.Append("versionString", u.version).Append("libcVersion", gnu_get_libc_version());
  e.Append("kernelVersion", u.release)
      .Append("cpuFrequencyMHz", mhz)
      .Append("cpuFeatures", features);
  e.Append("pageSize", int64_t{::sysconf(_SC_PAGESIZE)})
      .Append("numPages", int32_t(::sysconf(_SC_PHYS_PAGES)));
  e.Append("maxOpenFiles", static_cast<int32_t>(std::min<rlim_t>(files.rlim_cur, INT32_MAX)));
  return Ok();
}

}  // namespace

void RegisterHostInfo(CommandRegistry& registry) {
  registry.Add({.name = "hostInfo",
                .flags = kSecondaryOk,
                .help = "The machine and the operating system.",
                .run = &HostInfo,
                .privileges = &privileges::OnCluster<Action::hostInfo>});
}

}  // namespace mayfly
