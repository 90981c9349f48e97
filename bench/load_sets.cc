// A replica set on one machine: what a write, a read and a mass expiry cost there, and how far the
// secondaries are behind.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include "bench/load_client.h"
#include "bench/load_commands.h"

namespace mayfly::bench {
namespace {

constexpr int64_t kReadable = 100000;

void AppendDocument(BsonBuilder& b, int64_t id, Instant at) {
  b.Append("_id", id).Append("user", id * 2654435761 % 1000003).Append("at", at);
  b.Append("text", std::string_view("The quick brown mayfly dances over the quiet stream for the "
                                    "one evening that it has, and then is gone."));
}

std::string Insert(std::string_view collection, int64_t first, int64_t count, bool journal,
                   Instant at) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("insert", collection);
    auto docs = b.OpenArray("documents");
    for (int64_t i = first; i < first + count; ++i) {
      auto d = docs.OpenDocument();
      AppendDocument(d, i, at);
    }
    docs.Done();
    if (!journal) return;
    auto wc = b.OpenDocument("writeConcern");
    wc.Append("w", 1).Append("j", true);
  });
}

/// The log of a set's primary: entries, write units and bytes since it began.
struct LogTotals {
  int64_t entries = 0, bytes = 0;
};
LogTotals ReadTotals(SyncClient& client) {
  const BsonDocument s =
      client.Call(Command("admin", [](BsonBuilder& b) { b.Append("serverStatus", 1); }));
  const BsonValue log =
      s.view()["repl"].IsDocument() ? s.view()["repl"].Document()["log"] : BsonValue();
  if (!log.IsDocument()) return {};
  return {log.Document()["entries"].NumberAsInt64(), log.Document()["bytes"].NumberAsInt64()};
}

/// Seconds and increment of the newest write that a member has applied, as one number.
uint64_t AppliedTime(SyncClient& client) {
  const BsonDocument h =
      client.Call(Command("admin", [](BsonBuilder& b) { b.Append("hello", 1); }));
  return h.view()["lastWrite"].Document()["opTime"].Document()["ts"].Timestamp();
}

/// How long ago the primary was where each secondary is, looked at every few milliseconds.
class LagWatch {
 public:
  explicit LagWatch(const SetMembers& set) : thread_([this, set] { Run(set); }) {}
  Histogram Stop() {
    stop_ = true;
    thread_.join();
    return lag_;
  }

 private:
  void Run(const SetMembers& set) {
    SyncClient primary("127.0.0.1", set.ports[0]);
    std::vector<std::unique_ptr<SyncClient>> secondaries;
    for (size_t i = 1; i < set.ports.size(); ++i)
      secondaries.push_back(std::make_unique<SyncClient>("127.0.0.1", set.ports[i]));
    struct Seen {
      int64_t micros;
      uint64_t ts;
    };
    std::deque<Seen> seen;
    while (!stop_) {
      seen.push_back({NowMicros(), AppliedTime(primary)});
      if (seen.size() > 20000) seen.pop_front();
      for (auto& s : secondaries) {
        const uint64_t ts = AppliedTime(*s);
        const int64_t now = NowMicros();
        // The first time at which the primary was seen to have more than this member has now.
        auto ahead = std::upper_bound(seen.begin(), seen.end(), ts,
                                      [](uint64_t t, const Seen& x) { return t < x.ts; });
        lag_.Add(ahead == seen.end() ? 0 : now - ahead->micros);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::atomic<bool> stop_{false};
  Histogram lag_;
  std::thread thread_;
};

double CpuOf(const std::vector<int>& pids, size_t from, size_t to) {
  double sum = 0;
  for (size_t i = from; i < std::min(to, pids.size()); ++i) sum += CpuSeconds(pids[i]);
  return sum;
}

std::unique_ptr<SyncClient> Primary(const SetMembers& m) {
  return std::make_unique<SyncClient>("127.0.0.1", m.ports[0]);
}

void Fill(const SetMembers& m, std::string_view collection, int64_t count, Instant at) {
  auto c = Primary(m);
  for (int64_t i = 0; i < count; i += 1000) c->Call(Insert(collection, i, 1000, false, at));
}

std::string FindAny(std::mt19937_64& random, bool on_secondary) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("find", "kept");
    {
      auto f = b.OpenDocument("filter");
      f.Append("_id", static_cast<int64_t>(random() % kReadable));
    }
    b.Append("limit", 1).Append("singleBatch", true);
    if (!on_secondary) return;
    auto p = b.OpenDocument("$readPreference");
    p.Append("mode", "secondary");
  });
}

constexpr Instant kNever{32503680000000};

/// One row of the first table.
struct SetWorkload {
  const char* name;
  const SetMembers& members;
  size_t member;
  int connections;
  int64_t documents;   ///< of one operation
  const char* writes;  ///< the collection; null: it reads
  bool journal;
};

class SetRows {
 public:
  explicit SetRows(const LoadOptions& base) : base_(base) {}
  void Run(const SetWorkload& w);

 private:
  static void PrintLog(const SetWorkload& w, const LoadResult& r, const LogTotals& written,
                       double secondaries);
  const LoadOptions& base_;
  std::mt19937_64 random_{11};
  int64_t next_id_ = 0;
};

void SetRows::Run(const SetWorkload& w) {
  const SetMembers& m = w.members;
  auto log = Primary(m);
  LoadOptions o = base_;
  o.port = m.ports[w.member];
  o.pid = m.pids[w.member];
  o.connections = w.connections;
  const LogTotals before = ReadTotals(*log);
  const double others = CpuOf(m.pids, 1, m.pids.size());
  LoadResult r = RunLoad(o, [&](int64_t, std::string& message) {
    if (w.writes == nullptr) {
      message = FindAny(random_, w.member != 0);
      return;
    }
    message = Insert(w.writes, next_id_, w.documents, w.journal, kNever);
    next_id_ += w.documents;
  });
  const LogTotals after = ReadTotals(*log);
  const double secondaries =
      m.pids.size() > 1 && w.writes != nullptr
          ? (CpuOf(m.pids, 1, m.pids.size()) - others) / static_cast<double>(m.pids.size() - 1)
          : 0;
  const double ops = static_cast<double>(r.operations),
               docs = ops * static_cast<double>(w.documents);
  std::printf("| %s | %d | %.0f | %.0f | %ld | %ld | %.2f |", w.name, w.connections,
              ops / r.seconds, docs / r.seconds, r.latency.Percentile(0.5),
              r.latency.Percentile(0.99), r.server_cpu_seconds * 1e6 / ops);
  PrintLog(w, r, {after.entries - before.entries, after.bytes - before.bytes}, secondaries);
  std::printf(" %.0f |\n", static_cast<double>(r.resident_bytes) / 1048576);
  std::fflush(stdout);
  if (r.errors > 0)
    std::printf("ERRORS: %ld of %ld replies to '%s' were errors\n", r.errors, r.operations, w.name);
}

void SetRows::PrintLog(const SetWorkload& w, const LoadResult& r, const LogTotals& written,
                       double secondaries) {
  if (written.entries <= 0) {
    std::printf("  |  |  |  |");
    return;
  }
  const double e = static_cast<double>(written.entries), ops = static_cast<double>(r.operations),
               docs = ops * static_cast<double>(w.documents);
  std::printf(" %.2f | %.0f | %.1f | %.1f |", secondaries * 1e6 / ops,
              static_cast<double>(written.bytes) / docs, docs / e, r.server_cpu_seconds * 1e6 / e);
}

void SetTtlMonitor(SyncClient& primary, bool on) {
  primary.Call(Command("admin", [&](BsonBuilder& b) {
    b.Append("setParameter", 1).Append("ttlMonitorEnabled", on);
  }));
}

void RunSetExpiry(const LoadOptions& base, const SetMembers& set) {
  std::mt19937_64 random(12);
  auto primary = Primary(set);
  SetTtlMonitor(*primary, false);
  primary->Call(CreateSessionIndexes());
  const int64_t documents = base.max_operations;
  Fill(set, "sessions", documents, Instant{1000000000000});
  LoadOptions o = base;
  o.max_operations = 0;
  o.port = set.ports[0];
  o.pid = set.pids[0];
  o.connections = 16;
  o.rate = 5000;
  o.seconds = 5;
  auto read = [&](int64_t, std::string& m) { m = FindAny(random, false); };
  LoadResult before = RunLoad(o, read);
  double seconds = 0;
  const double cpu = CpuSeconds(set.pids[0]), others = CpuOf(set.pids, 1, set.pids.size());
  const LogTotals log = ReadTotals(*primary);
  LagWatch lag(set);
  SetTtlMonitor(*primary, true);
  SyncClient watcher("127.0.0.1", set.ports[0]);
  LoadResult during = RunLoadUntil(
      o, read, [&] { return Count(watcher, "sessions") == 0; }, &seconds);
  const Histogram lags = lag.Stop();
  const LogTotals after = ReadTotals(*primary);
  const double n = static_cast<double>(documents);
  std::printf(
      "| mass expiry of %ld documents with two indexes, three members | documents/s | primary CPU "
      "us/document | each secondary | log bytes/document "
      "| documents/log entry | lag of secondaries p50 ms | p99 ms | max ms | read p50 us | p99 us "
      "| max us |\n",
      documents);
  std::printf(
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  std::printf("| before: reads at 5k/s |  |  |  |  |  |  |  |  | %ld | %ld | %ld |\n",
              before.latency.Percentile(0.5), before.latency.Percentile(0.99),
              before.latency.max());
  std::printf(
      "| during | %.0f | %.2f (reads included) | %.2f | %.0f | %.0f | %.1f | %.1f | %.1f | %ld | "
      "%ld | %ld |\n",
      n / seconds, (CpuSeconds(set.pids[0]) - cpu) * 1e6 / n,
      (CpuOf(set.pids, 1, set.pids.size()) - others) * 1e6 / n /
          static_cast<double>(set.pids.size() - 1),
      static_cast<double>(after.bytes - log.bytes) / n,
      n / static_cast<double>(std::max<int64_t>(after.entries - log.entries, 1)),
      static_cast<double>(lags.Percentile(0.5)) / 1000,
      static_cast<double>(lags.Percentile(0.99)) / 1000, static_cast<double>(lags.max()) / 1000,
      during.latency.Percentile(0.5), during.latency.Percentile(0.99), during.latency.max());
}

}  // namespace

void RunSets(const LoadOptions& base, const SetMembers& set, const SetMembers& one,
             const SetMembers& alone) {
  SetRows rows(base);
  for (const SetMembers* m : {&set, &one, &alone}) Fill(*m, "kept", kReadable, kNever);
  std::printf(
      "| workload | connections | ops/s | docs/s | p50 us | p99 us | primary CPU us/op | CPU us/op "
      "of each secondary | log bytes/document "
      "| documents/log entry | primary CPU us/log entry | RSS MiB |\n");
  std::printf(
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (int n : {1, 64, 512})
    rows.Run({"three members: insertOne, w:majority", set, 0, n, 1, "ins", false});
  for (int n : {1, 8})
    rows.Run({"three members: insertMany(1000), w:majority", set, 0, n, 1000, "many", false});
  rows.Run({"three members: find by _id, primary", set, 0, 64, 1, nullptr, false});
  rows.Run({"three members: find by _id, secondary", set, 1, 64, 1, nullptr, false});
  for (int n : {1, 64}) rows.Run({"one member: insertOne, j:true", one, 0, n, 1, "ins", true});
  for (int n : {1, 64}) rows.Run({"standalone: insertOne, j:true", alone, 0, n, 1, "ins", true});
  rows.Run({"one member: find by _id", one, 0, 64, 1, nullptr, false});
  rows.Run({"standalone: find by _id", alone, 0, 64, 1, nullptr, false});

  std::printf("\n");
  RunSetExpiry(base, set);
}

}  // namespace mayfly::bench
