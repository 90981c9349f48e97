// The load generator's workloads and its command line. See bench/README.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "bench/load_client.h"
#include "bench/load_commands.h"

namespace mayfly::bench {
namespace {

constexpr int64_t kDocuments = 200000;  // what reads and updates work on

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

/// What the workloads share: where each is in its data.
struct Positions {
  std::mt19937_64 random{42};
  int64_t inserted = 0, many = 0, deleted = 0;
  int64_t AnyDocument() { return static_cast<int64_t>(random() % kDocuments); }
};
using PositionsPtr = std::shared_ptr<Positions>;

void FillCollections(SyncClient& client) {
  client.Call(Drop("read"), false);
  client.Call(Drop("ins"), false);
  client.Call(Drop("many"), false);
  client.Call(CreateIndexes("read"));
  client.Call(CreateIndexes("ins"));
  for (int64_t i = 0; i < kDocuments; i += 1000) client.Call(InsertDocuments("read", i, 1000));
}

std::string InsertNext(Positions& at, bool journal) {
  return InsertDocuments("ins", at.inserted++, 1, {.journal = journal, .b_of = {}});
}

std::vector<Workload> Inserts(PositionsPtr at) {
  return {
      {"insertOne, two indexes",
       1,
       [at](int64_t, std::string& m) { m = InsertNext(*at, false); },
       {{"echo", 1}, {kInsert, 1}}},
      {"insertOne, two indexes, j:true", 1,
       [at](int64_t, std::string& m) { m = InsertNext(*at, true); }},
      {"insertMany(1000), no index",
       1000,
       [at](int64_t, std::string& m) {
         m = InsertDocuments("many", (at->many += 1000) - 1000, 1000);
       },
       {{"echo", 1}, {kBatched, 1000}}},
  };
}

std::vector<Workload> Finds(PositionsPtr at) {
  return {
      {"find by _id",
       1,
       [at](int64_t, std::string& m) { m = FindEqual("read", "_id", at->AnyDocument(), 1); },
       {{"echo", 1}, {kGet, 1}}},
      {"find by secondary index",
       1,
       [at](int64_t, std::string& m) { m = FindEqual("read", "b", at->AnyDocument(), 0); },
       {{"echo", 1}, {kSeek, 1}, {kGet, 1}}},
      {"range of 100 by secondary index",
       1,
       [at](int64_t, std::string& m) { m = FindRange("read", "b", at->AnyDocument()); },
       {{"echo", 1}, {kSeek, 1}, {kNext, 100}, {kNeighbour, 100}}},
  };
}

std::vector<Workload> Changes(PositionsPtr at) {
  return {
      {"updateOne $inc",
       1,
       [at](int64_t, std::string& m) { m = Increment("read", at->AnyDocument()); },
       {{"echo", 1}, {kGet, 1}, {kPut, 1}}},
      {"deleteOne",
       1,
       [at](int64_t, std::string& m) {
         int64_t v = at->deleted++;
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
  };
}

std::vector<Workload> Sums(PositionsPtr at) {
  return {
      {"count by index (200)",
       1,
       [at](int64_t n, std::string& m) {
         m = Command(kDb, [&](BsonBuilder& b) {
           b.Append("count", "read");
           auto q = b.OpenDocument("query");
           q.Append("a", static_cast<int32_t>(n % 1000));
         });
       },
       {{"echo", 1}, {kSeek, 1}, {kNext, 200}}},
      {"group of 2000 documents",
       1,
       [at](int64_t, std::string& m) {
         int64_t v = at->AnyDocument() % (kDocuments - 2000);
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
  };
}

/// In the order of the report.
std::vector<Workload> MakeWorkloads(SyncClient& client) {
  FillCollections(client);
  auto at = std::make_shared<Positions>();
  std::vector<Workload> inserts = Inserts(at), finds = Finds(at), changes = Changes(at),
                        sums = Sums(at), all;
  auto take = [&](auto from, auto to) { std::move(from, to, std::back_inserter(all)); };
  take(inserts.begin(), inserts.end());
  take(finds.begin(), finds.end());
  take(changes.begin(), changes.begin() + 1);
  take(sums.begin(), sums.end());
  take(changes.begin() + 1, changes.end());
  all.push_back({"ping", 1, [](int64_t, std::string& m) { m = Ping(); }, {{"echo", 1}}});
  return all;
}

/// What the command line asks for.
struct Choices {
  LoadOptions options;
  std::vector<int> connections{1, 8, 64};
  std::string only, callgrind, limits_file;
  int64_t reap = 0, scan = 0, redis = 0, trickle = 0, head = 0, idle_rules = 0, fill_backlog = 0;
  bool read_costs = false, backlog = false, transactions = false, set_memory = false;
  std::vector<int> set_ports, set_pids;
  std::vector<int64_t> sizes;
};

void AddWorkloadOptions(CLI::App& app, Choices& c) {
  app.add_option("--host", c.options.host, "IPv4 address");
  app.add_option("--port", c.options.port);
  app.add_option("--pid", c.options.pid,
                 "process id of the server: its CPU time and memory are then measured");
  app.add_option("--seconds", c.options.seconds, "per workload and number of connections");
  app.add_option("--connections", c.connections, "numbers of connections")->delimiter(',');
  app.add_option("--only", c.only, "workloads whose name contains this");
  app.add_option("--operations", c.options.max_operations,
                 "at most so many a run; 0: as many as the time allows");
  app.add_option("--instructions", c.callgrind,
                 "instead of times: instructions an operation in user space, of a server that runs "
                 "under callgrind; its --callgrind-out-file");
  app.add_option(
      "--limits", c.limits_file,
      "what mayfly_limits has printed: the floor of each workload is then shown beside it");
}

/// Each is a run of its own, instead of the workloads.
void AddRunOptions(CLI::App& app, Choices& c) {
  app.add_option("--reap", c.reap,
                 "instead: a mass expiry of this many documents, with reads beside it");
  app.add_option("--scan", c.scan,
                 "instead: scans and sorts of a collection of this many documents, with the "
                 "server's peak memory");
  app.add_option("--sizes", c.sizes,
                 "instead: look-ups and updates of collections of these sizes, one after the other")
      ->delimiter(',');
  app.add_option("--redis-reap", c.redis, "instead: the same on a Redis server on that port");
  app.add_option(
      "--trickle", c.trickle,
      "instead: 1000 documents a second fall due for so many seconds; how late each is gone");
  app.add_option("--head", c.head,
                 "instead: this many pending deadlines, their bytes, and the head of the index "
                 "once they are reaped");
  app.add_flag(
      "--expiry-costs", c.read_costs,
      "instead: find by _id with and without expiry, deleteOne with and without tombstones");
  app.add_option("--idle-rules", c.idle_rules,
                 "instead: CPU and memory of this many TTL rules that have nothing to do");
  app.add_option("--fill-backlog", c.fill_backlog,
                 "instead: this many documents that are due, with the monitor off");
  app.add_flag("--backlog", c.backlog,
               "instead: after a restart, reads beside the reaping of that backlog");
  app.add_flag("--transactions", c.transactions,
               "instead: what transactions cost, on a set's primary; with --instructions those");
  app.add_option("--set-ports", c.set_ports,
                 "instead: what replica sets cost: the primary of a set, its secondaries, a set of "
                 "one member, a standalone server")
      ->delimiter(',');
  app.add_option("--set-pids", c.set_pids,
                 "their process ids, in the same order; --operations: documents of the mass expiry")
      ->delimiter(',');
  app.add_flag("--set-memory", c.set_memory,
               "with --set-ports: only what they have resident after the same writes and reads");
}

void RunOnSets(const Choices& c) {
  const size_t n = c.set_ports.size();
  auto part = [&](size_t from, size_t to) {
    return SetMembers{{c.set_ports.begin() + static_cast<ptrdiff_t>(from),
                       c.set_ports.begin() + static_cast<ptrdiff_t>(to)},
                      {c.set_pids.begin() + static_cast<ptrdiff_t>(from),
                       c.set_pids.begin() + static_cast<ptrdiff_t>(to)}};
  };
  RunSetMemory(c.options, part(0, n - 2), part(n - 2, n - 1), part(n - 1, n));
  if (!c.set_memory) RunSets(c.options, part(0, n - 2), part(n - 2, n - 1), part(n - 1, n));
}

/// False when none was asked for.
bool RunInstead(const Choices& c) {
  const LoadOptions& o = c.options;
  if (c.set_ports.size() >= 4 && c.set_ports.size() == c.set_pids.size()) {
    RunOnSets(c);
  } else if (c.transactions) {
    RunTransactions(o, c.callgrind, c.only);
  } else if (c.redis > 0) {
    RunRedisReap(o, c.redis);
  } else if (c.reap > 0) {
    RunReap(o, c.reap);
  } else if (c.trickle > 0) {
    RunTrickle(o, 1000, c.trickle);
  } else if (c.head > 0) {
    RunHead(o, c.head);
  } else if (c.read_costs) {
    RunReadCosts(o, o.seconds);
    std::printf("\n");
    RunTombstoneCosts(o, o.seconds);
  } else if (c.idle_rules > 0) {
    RunIdleRules(o, c.idle_rules, o.seconds * 3);
  } else if (c.fill_backlog > 0) {
    FillBacklog(o, c.fill_backlog);
  } else if (c.backlog) {
    RunBacklog(o);
  } else if (!c.sizes.empty()) {
    RunSizes(o, c.sizes, c.only);
  } else if (c.scan > 0) {
    RunScan(o, c.scan);
  } else {
    return false;
  }
  return true;
}

bool IsChosen(const Choices& c, std::string_view name) {
  return name.find(c.only) != std::string_view::npos;
}

/// Reads everything once, records and indexes. Otherwise the first reads of each block would be
/// counted, a third of a find's instructions, and how many there are is chance.
void FillCache(SyncClient& client) {
  for (const char* collection : {"read", "ins"}) {
    auto count = [&](const std::function<void(BsonBuilder&)>& query) {
      client.Call(Command(kDb,
                          [&](BsonBuilder& b) {
                            b.Append("count", collection);
                            auto q = b.OpenDocument("query");
                            query(q);
                          }),
                  false);
    };
    count([](BsonBuilder& q) { q.Append("n", -1); });
    for (const char* field : {"a", "b"})
      count([&](BsonBuilder& q) { q.OpenDocument(field).Append("$gte", 0); });
  }
}

void PrintInstructions(const Choices& c, SyncClient& client) {
  LoadOptions options = c.options;
  if (options.max_operations == 0) options.max_operations = 2000;
  options.seconds = 120;    // ends runs that hang: the count of operations ends all others
  options.connections = 1;  // with several, chance decides which writes share a commit
  std::printf("| workload | instructions an operation |\n| --- | ---: |\n");
  for (Workload& w : MakeWorkloads(client)) {
    if (!IsChosen(c, w.name)) continue;
    // What the store would tidy up beside the operations is done before them.
    for (const char* name : {"read", "ins", "many"})
      client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("compact", name); }), false);
    FillCache(client);
    std::printf("| %s | %.0f |\n", w.name, CountInstructions(options, c.callgrind, w.next));
    std::fflush(stdout);
  }
  if (!IsChosen(c, "find by _id with and without expiry")) return;
  std::printf("\n");
  RunReadInstructions(options, c.callgrind);
}

void PrintWorkload(const Choices& c, Workload& w, int connections,
                   const std::map<std::string, double>& limits) {
  LoadOptions options = c.options;
  options.connections = connections;
  LoadResult r = RunLoad(options, w.next);
  double ops = static_cast<double>(r.operations);
  const double cpu = r.server_cpu_seconds * 1e6 / ops, floor = Floor(w, limits, connections);
  std::printf("| %s | %d | %.0f | %.0f | %ld | %ld | %ld | %.2f |", w.name, connections,
              ops / r.seconds, ops / r.seconds * static_cast<double>(w.documents_per_operation),
              r.latency.Percentile(0.5), r.latency.Percentile(0.99), r.latency.Percentile(0.999),
              cpu);
  if (floor > 0 && cpu > 0)
    std::printf(" %.2f | %.0f%% |", floor, 100 * floor / cpu);
  else
    std::printf("  |  |");
  std::printf(" %.0f |\n", static_cast<double>(r.resident_bytes) / 1048576);
  std::fflush(stdout);
  if (r.errors > 0)
    std::printf("ERRORS: %ld of %ld replies to '%s' were errors\n", r.errors, r.operations, w.name);
}

void PrintWorkloads(const Choices& c, SyncClient& client) {
  const std::map<std::string, double> limits = ReadLimits(c.limits_file);
  std::printf(
      "| workload | connections | ops/s | docs/s | p50 us | p99 us | p99.9 us | server CPU us/op | "
      "floor us/op | floor / CPU | RSS MiB |\n");
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (Workload& w : MakeWorkloads(client)) {
    if (!IsChosen(c, w.name)) continue;
    for (int n : c.connections) PrintWorkload(c, w, n, limits);
  }
}

}  // namespace
}  // namespace mayfly::bench

int main(int argc, char** argv) {
  using namespace mayfly::bench;
  Choices choices;
  CLI::App app{"Load generator for servers that speak MongoDB's wire protocol"};
  AddWorkloadOptions(app, choices);
  AddRunOptions(app, choices);
  CLI11_PARSE(app, argc, argv);
  if (RunInstead(choices)) return 0;
  SyncClient client(choices.options.host, choices.options.port);
  if (choices.callgrind.empty())
    PrintWorkloads(choices, client);
  else
    PrintInstructions(choices, client);
  return 0;
}
