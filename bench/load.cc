// The load generator's workloads and its command line. See bench/README.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

constexpr int64_t kDocuments = 200000;  // what reads and updates work on

/// The document all workloads use: about 200 bytes with two indexed fields.
void AppendDocument(BsonBuilder& b, int64_t id) {
  b.Append("_id", id).Append("a", static_cast<int32_t>(id % 1000)).Append("b", id);
  b.Append("text", std::string_view("The quick brown mayfly dances over the quiet stream for the "
                                    "one evening that it has, and then is gone "
                                    "without leaving any trace behind it."));
  b.Append("n", int32_t{0});
}

std::string InsertMany(std::string_view collection, int64_t first, int64_t count) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("insert", collection);
    auto docs = b.OpenArray("documents");
    for (int64_t i = 0; i < count; ++i) {
      auto d = docs.OpenDocument();
      AppendDocument(d, first + i);
    }
    docs.Done();
    b.Append("ordered", true);
  });
}

std::string CreateIndexes(std::string_view collection) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("createIndexes", collection);
    auto indexes = b.OpenArray("indexes");
    for (const char* f : {"a", "b"}) {
      auto i = indexes.OpenDocument();
      {
        auto k = i.OpenDocument("key");
        k.Append(f, 1);
      }
      i.Append("name", std::string(f) + "_1");
    }
  });
}

std::string Drop(std::string_view collection) {
  return Command(kDb, [&](BsonBuilder& b) { b.Append("drop", collection); });
}

struct Workload {
  const char* name;
  int64_t documents_per_operation;
  std::function<void(int64_t n, std::string&)> next;
  /// What no server could do without: rows of mayfly_limits and how often; "echo" is that of the
  /// same number of connections.
  std::vector<std::pair<const char*, double>> floor;
};

/// CPU microseconds by row, out of a file that mayfly_limits has printed.
std::map<std::string, double> ReadLimits(const std::string& file) {
  std::map<std::string, double> limits;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t a = line.find('|'), b = line.find(" |", a + 1), c = line.rfind(" |"),
                 d = line.rfind("| ", c);
    if (a != 0 || b == std::string::npos || d == std::string::npos || d <= b) continue;
    limits[line.substr(2, b - 2)] = std::strtod(line.c_str() + d + 1, nullptr);
  }
  return limits;
}

/// The floor in microseconds; 0: not known.
double Floor(const Workload& w, const std::map<std::string, double>& limits, int connections) {
  double sum = 0;
  for (auto [name, times] : w.floor) {
    std::string row = name;
    if (row == "echo")
      row = "Asio coroutine echo of 100 bytes, " + std::to_string(connections) + " connections";
    auto it = limits.find(row);
    if (it == limits.end()) return 0;
    sum += it->second * times;
  }
  return sum;
}

constexpr const char* kGet = "RocksDB get, warm";
constexpr const char* kSeek = "RocksDB iterator, seek and one entry, warm";
constexpr const char* kNext = "RocksDB iterator, next";
constexpr const char* kNeighbour = "RocksDB get of 100 neighbours, each";
constexpr const char* kPut = "RocksDB put, 200 bytes, log written";
constexpr const char* kInsert =
    "RocksDB one document and two index entries in one batch, log written";
constexpr const char* kBatched = "RocksDB batch of 1000 puts, 200 bytes, per document";

std::vector<Workload> MakeWorkloads(SyncClient& client) {
  client.Call(Drop("read"), false);
  client.Call(Drop("ins"), false);
  client.Call(Drop("many"), false);
  client.Call(CreateIndexes("read"));
  client.Call(CreateIndexes("ins"));
  for (int64_t i = 0; i < kDocuments; i += 1000) client.Call(InsertMany("read", i, 1000));
  auto random = std::make_shared<std::mt19937_64>(42);
  auto any = [random] { return static_cast<int64_t>((*random)() % kDocuments); };
  auto counter = std::make_shared<int64_t>(0);
  auto many = std::make_shared<int64_t>(0);
  auto doomed = std::make_shared<int64_t>(0);
  auto find = [](std::string_view field, int64_t value, int limit) {
    return Command(kDb, [&](BsonBuilder& b) {
      b.Append("find", "read");
      {
        auto f = b.OpenDocument("filter");
        f.Append(field, value);
      }
      if (limit > 0) b.Append("limit", limit).Append("singleBatch", true);
    });
  };
  return {
      {"insertOne, two indexes",
       1,
       [counter](int64_t, std::string& m) {
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("insert", "ins");
           auto docs = b.OpenArray("documents");
           auto d = docs.OpenDocument();
           AppendDocument(d, (*counter)++);
           d.Done();
           docs.Done();
         });
       },
       {{"echo", 1}, {kInsert, 1}}},
      {"insertOne, two indexes, j:true", 1,
       [counter](int64_t, std::string& m) {
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("insert", "ins");
           auto docs = b.OpenArray("documents");
           auto d = docs.OpenDocument();
           AppendDocument(d, (*counter)++);
           d.Done();
           docs.Done();
           auto wc = b.OpenDocument("writeConcern");
           wc.Append("w", 1).Append("j", true);
         });
       }},
      {"insertMany(1000), no index",
       1000,
       [many](int64_t, std::string& m) { m = InsertMany("many", (*many += 1000) - 1000, 1000); },
       {{"echo", 1}, {kBatched, 1000}}},
      {"find by _id",
       1,
       [=](int64_t, std::string& m) { m = find("_id", any(), 1); },
       {{"echo", 1}, {kGet, 1}}},
      {"find by secondary index",
       1,
       [=](int64_t, std::string& m) { m = find("b", any(), 0); },
       {{"echo", 1}, {kSeek, 1}, {kGet, 1}}},
      {"range of 100 by secondary index",
       1,
       [=](int64_t, std::string& m) {
         int64_t v = any();
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("find", "read");
           {
             auto f = b.OpenDocument("filter");
             auto r = f.OpenDocument("b");
             r.Append("$gte", v).Append("$lt", v + 100);
           }
           b.Append("batchSize", 101);
         });
       },
       {{"echo", 1}, {kSeek, 1}, {kNext, 100}, {kNeighbour, 100}}},
      {"updateOne $inc",
       1,
       [=](int64_t, std::string& m) {
         int64_t v = any();
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("update", "read");
           auto us = b.OpenArray("updates");
           auto u = us.OpenDocument();
           {
             auto q = u.OpenDocument("q");
             q.Append("_id", v);
           }
           {
             auto c = u.OpenDocument("u");
             auto inc = c.OpenDocument("$inc");
             inc.Append("n", 1);
           }
         });
       },
       {{"echo", 1}, {kGet, 1}, {kPut, 1}}},
      {"count by index (200)",
       1,
       [=](int64_t n, std::string& m) {
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("count", "read");
           auto q = b.OpenDocument("query");
           q.Append("a", static_cast<int32_t>(n % 1000));
         });
       },
       {{"echo", 1}, {kSeek, 1}, {kNext, 200}}},
      {"group of 2000 documents",
       1,
       [=](int64_t, std::string& m) {
         int64_t v = any() % (kDocuments - 2000);
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("aggregate", "read");
           {
             auto p = b.OpenArray("pipeline");
             {
               auto s = p.OpenDocument();
               auto f = s.OpenDocument("$match");
               auto r = f.OpenDocument("_id");
               r.Append("$gte", v).Append("$lt", v + 2000);
             }
             {
               auto s = p.OpenDocument();
               auto g = s.OpenDocument("$group");
               g.Append("_id", "$a");
               auto sum = g.OpenDocument("total");
               sum.Append("$sum", "$b");
             }
           }
           auto c = b.OpenDocument("cursor");
           c.Append("batchSize", 10000);
         });
       },
       {{"echo", 1}, {kSeek, 1}, {kNext, 2000}}},
      {"deleteOne",
       1,
       [doomed](int64_t, std::string& m) {
         int64_t v = (*doomed)++;
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("delete", "ins");
           auto ds = b.OpenArray("deletes");
           auto d = ds.OpenDocument();
           {
             auto q = d.OpenDocument("q");
             q.Append("_id", v);
           }
           d.Append("limit", 1);
         });
       },
       {{"echo", 1}, {kGet, 1}, {kInsert, 1}}},
      {"ping",
       1,
       [](int64_t, std::string& m) {
         m = Command("admin", [](BsonBuilder& b) { b.Append("ping", 1); });
       },
       {{"echo", 1}}},
  };
}

}  // namespace
}  // namespace mayfly::bench

int main(int argc, char** argv) {
  using namespace mayfly::bench;
  LoadOptions options;
  std::vector<int> connections{1, 8, 64};
  std::string only;
  int64_t reap = 0, scan = 0;
  std::string callgrind, limits_file;
  CLI::App app{"Load generator for servers that speak MongoDB's wire protocol"};
  app.add_option("--host", options.host, "IPv4 address");
  app.add_option("--port", options.port);
  app.add_option("--pid", options.pid,
                 "process id of the server: its CPU time and memory are then measured");
  app.add_option("--seconds", options.seconds, "per workload and number of connections");
  app.add_option("--connections", connections, "numbers of connections")->delimiter(',');
  app.add_option("--only", only, "workloads whose name contains this");
  app.add_option("--operations", options.max_operations,
                 "at most so many a run; 0: as many as the time allows");
  app.add_option("--instructions", callgrind,
                 "instead of times: instructions an operation in user space, of a server that runs "
                 "under callgrind; its --callgrind-out-file");
  app.add_option(
      "--limits", limits_file,
      "what mayfly_limits has printed: the floor of each workload is then shown beside it");
  app.add_option("--reap", reap,
                 "instead: a mass expiry of this many documents, with reads beside it");
  app.add_option("--scan", scan,
                 "instead: scans and sorts of a collection of this many documents, with the "
                 "server's peak memory");
  int64_t redis = 0, trickle = 0, head = 0;
  app.add_option("--redis-reap", redis, "instead: the same on a Redis server on that port");
  app.add_option(
      "--trickle", trickle,
      "instead: 1000 documents a second fall due for so many seconds; how late each is gone");
  app.add_option("--head", head,
                 "instead: this many pending deadlines, their bytes, and the head of the index "
                 "once they are reaped");
  bool read_costs = false, backlog = false;
  int64_t idle_rules = 0, fill_backlog = 0;
  app.add_flag(
      "--expiry-costs", read_costs,
      "instead: find by _id with and without expiry, deleteOne with and without tombstones");
  app.add_option("--idle-rules", idle_rules,
                 "instead: CPU and memory of this many TTL rules that have nothing to do");
  app.add_option("--fill-backlog", fill_backlog,
                 "instead: this many documents that are due, with the monitor off");
  app.add_flag("--backlog", backlog,
               "instead: after a restart, reads beside the reaping of that backlog");
  std::vector<int> set_ports, set_pids;
  app.add_option("--set-ports", set_ports,
                 "instead: what replica sets cost: the primary of a set, its secondaries, a set of "
                 "one member, a standalone server")
      ->delimiter(',');
  app.add_option("--set-pids", set_pids,
                 "their process ids, in the same order; --operations: documents of the mass expiry")
      ->delimiter(',');
  bool set_memory = false;
  app.add_flag("--set-memory", set_memory,
               "with --set-ports: only what they have resident after the same writes and reads");
  CLI11_PARSE(app, argc, argv);
  if (set_ports.size() >= 4 && set_ports.size() == set_pids.size()) {
    auto part = [&](size_t from, size_t to) {
      return SetMembers{{set_ports.begin() + static_cast<ptrdiff_t>(from),
                         set_ports.begin() + static_cast<ptrdiff_t>(to)},
                        {set_pids.begin() + static_cast<ptrdiff_t>(from),
                         set_pids.begin() + static_cast<ptrdiff_t>(to)}};
    };
    const size_t n = set_ports.size();
    RunSetMemory(options, part(0, n - 2), part(n - 2, n - 1), part(n - 1, n));
    if (!set_memory) RunSets(options, part(0, n - 2), part(n - 2, n - 1), part(n - 1, n));
    return 0;
  }
  if (redis > 0) {
    RunRedisReap(options, redis);
    return 0;
  }
  SyncClient client(options.host, options.port);
  if (reap > 0) {
    RunReap(options, reap);
    return 0;
  }
  if (trickle > 0) {
    RunTrickle(options, 1000, trickle);
    return 0;
  }
  if (head > 0) {
    RunHead(options, head);
    return 0;
  }
  if (read_costs) {
    RunReadCosts(options, options.seconds);
    std::printf("\n");
    RunTombstoneCosts(options, options.seconds);
    return 0;
  }
  if (idle_rules > 0) {
    RunIdleRules(options, idle_rules, options.seconds * 3);
    return 0;
  }
  if (fill_backlog > 0) {
    FillBacklog(options, fill_backlog);
    return 0;
  }
  if (backlog) {
    RunBacklog(options);
    return 0;
  }
  if (scan > 0) {
    RunScan(options, scan);
    return 0;
  }
  if (!callgrind.empty()) {
    if (options.max_operations == 0) options.max_operations = 2000;
    options.seconds = 8;
    std::printf("| workload | instructions an operation |\n| --- | ---: |\n");
    for (Workload& w : MakeWorkloads(client)) {
      if (std::string(w.name).find(only) == std::string::npos) continue;
      options.connections = 8;
      // What the store would tidy up beside the operations is done before them.
      for (const char* c : {"read", "ins", "many"})
        client.Call(Command(kDb, [&](mayfly::BsonBuilder& b) { b.Append("compact", c); }), false);
      std::printf("| %s | %.0f |\n", w.name, CountInstructions(options, callgrind, w.next));
      std::fflush(stdout);
    }
    if (std::string("find by _id with and without expiry").find(only) != std::string::npos) {
      std::printf("\n");
      RunReadInstructions(options, callgrind);
    }
    return 0;
  }
  const std::map<std::string, double> limits = ReadLimits(limits_file);
  std::printf(
      "| workload | connections | ops/s | docs/s | p50 us | p99 us | p99.9 us | server CPU us/op | "
      "floor us/op | floor / CPU | RSS MiB |\n");
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (Workload& w : MakeWorkloads(client)) {
    if (std::string(w.name).find(only) == std::string::npos) continue;
    for (int n : connections) {
      options.connections = n;
      LoadResult r = RunLoad(options, w.next);
      double ops = static_cast<double>(r.operations);
      const double cpu = r.server_cpu_seconds * 1e6 / ops, floor = Floor(w, limits, n);
      std::printf("| %s | %d | %.0f | %.0f | %ld | %ld | %ld | %.2f |", w.name, n, ops / r.seconds,
                  ops / r.seconds * static_cast<double>(w.documents_per_operation),
                  r.latency.Percentile(0.5), r.latency.Percentile(0.99),
                  r.latency.Percentile(0.999), cpu);
      if (floor > 0 && cpu > 0)
        std::printf(" %.2f | %.0f%% |", floor, 100 * floor / cpu);
      else
        std::printf("  |  |");
      std::printf(" %.0f |\n", static_cast<double>(r.resident_bytes) / 1048576);
      std::fflush(stdout);
      if (r.errors > 0)
        std::printf("ERRORS: %ld of %ld replies to '%s' were errors\n", r.errors, r.operations,
                    w.name);
    }
  }
  return 0;
}
