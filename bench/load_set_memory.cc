// What a member holds in memory beside what a standalone server holds: both have done the same
// writes and reads, counted, not timed.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

constexpr std::string_view kDb = "memory";
constexpr int64_t kKept = 100000;

std::string Insert(std::string_view collection, int64_t first, int64_t count) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("insert", collection);
    auto docs = b.OpenArray("documents");
    for (int64_t i = first; i < first + count; ++i) {
      auto d = docs.OpenDocument();
      d.Append("_id", i).Append("user", i * 2654435761 % 1000003);
      d.Append("text", std::string_view("The quick brown mayfly dances over the quiet stream for "
                                        "the one evening that it has, and then is gone."));
    }
    docs.Done();
  });
}

std::string Find(int64_t id, bool secondary) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("find", "kept");
    {
      auto f = b.OpenDocument("filter");
      f.Append("_id", id);
    }
    b.Append("limit", 1).Append("singleBatch", true);
    if (!secondary) return;
    auto p = b.OpenDocument("$readPreference");
    p.Append("mode", "secondary");
  });
}

/// The most that was ever resident, in bytes.
int64_t PeakBytes(int pid) {
  std::ifstream f("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(f, line);)
    if (line.starts_with("VmHWM:")) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

}  // namespace

void RunSetMemory(const LoadOptions& base, const SetMembers& set, const SetMembers& one,
                  const SetMembers& alone) {
  struct Server {
    std::string name;
    int pid;
    std::vector<int64_t> resident;
  };
  std::vector<Server> servers;
  for (size_t i = 0; i < set.pids.size(); ++i)
    servers.push_back({i == 0 ? "primary of three" : "secondary", set.pids[i], {}});
  servers.push_back({"set of one", one.pids[0], {}});
  servers.push_back({"standalone", alone.pids[0], {}});
  std::mt19937_64 random(7);
  const SetMembers* all[] = {&set, &one, &alone};
  auto load = [&](int port, int connections, int64_t operations,
                  const std::function<void(int64_t, std::string&)>& next) {
    LoadOptions o = base;
    o.port = port;
    o.connections = connections;
    o.max_operations = operations;
    o.seconds = 600;
    o.rate = 0;
    const LoadResult r = RunLoad(o, next);
    if (r.errors > 0)
      std::printf("ERRORS: %ld of %ld replies were errors\n", r.errors, r.operations);
  };
  auto inserts = [&](std::string_view collection, int connections, int64_t operations,
                     int64_t documents, int64_t first) {
    for (const SetMembers* m : all)
      load(m->ports[0], connections, operations, [&](int64_t n, std::string& message) {
        message = Insert(collection, first + n * documents, documents);
      });
  };
  auto measure = [&] {
    for (Server& s : servers) s.resident.push_back(ResidentBytes(s.pid));
  };
  measure();
  inserts("kept", 1, kKept / 1000, 1000, 0);
  measure();
  inserts("single", 64, 100000, 1, 0);
  inserts("single", 512, 100000, 1, 100000);
  measure();
  inserts("many", 8, 200, 1000, 0);
  measure();
  for (const SetMembers* m : all)
    for (size_t i = 0; i < m->ports.size(); ++i)
      load(m->ports[i], 64, 100000, [&](int64_t, std::string& message) {
        message = Find(static_cast<int64_t>(random() % kKept), i > 0);
      });
  measure();
  auto mb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  const Server& standalone = servers.back();
  std::printf(
      "| resident MB after | start | 100,000 documents by insertMany(1000) | 200,000 by insertOne "
      "| 200,000 by insertMany(1000), 8 connections "
      "| 100,000 finds on each | over standalone | at most ever | over standalone |\n");
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Server& s : servers) {
    std::printf("| memory: %s |", s.name.c_str());
    for (int64_t bytes : s.resident) std::printf(" %.0f |", mb(bytes));
    const int64_t peak = PeakBytes(s.pid), reference = PeakBytes(standalone.pid);
    if (&s == &standalone) {
      std::printf("  | %.0f |  |\n", mb(peak));
    } else {
      std::printf(" %.1f | %.0f | %.1f |\n", mb(s.resident.back() - standalone.resident.back()),
                  mb(peak), mb(peak - reference));
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace mayfly::bench
