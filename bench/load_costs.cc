// What expiry costs those who use it and those who do not: reads, writes, rules that have nothing
// to do, a backlog at start-up.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

constexpr int64_t kDocuments = 100'000;
constexpr std::string_view kText =
    "The quick brown mayfly dances over the quiet stream for the one evening that it has, and then "
    "is gone.";

void Set(SyncClient& client, const char* name, int64_t value) {
  client.Call(
      Command("admin", [&](BsonBuilder& b) { b.Append("setParameter", 1).Append(name, value); }));
}
void Set(SyncClient& client, const char* name, bool value) {
  client.Call(
      Command("admin", [&](BsonBuilder& b) { b.Append("setParameter", 1).Append(name, value); }));
}
void Drop(SyncClient& client, std::string_view name) {
  client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("drop", name); }), false);
}

/// One middle value of several runs: what else the machine does falls on all of them alike.
double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

/// Server CPU of an operation in microseconds, the runs of all variants taking turns.
std::vector<double> TakeTurns(
    LoadOptions o, int rounds,
    const std::vector<std::function<void(int64_t, std::string&)>>& variants,
    const std::function<void(size_t)>& before = {}) {
  std::vector<std::vector<double>> cpu(variants.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t v = 0; v < variants.size(); ++v) {
      if (before) before(v);
      const LoadResult r = RunLoad(o, variants[v]);
      if (r.errors > 0)
        std::printf("ERRORS: %ld of %ld replies were errors\n", r.errors, r.operations);
      cpu[v].push_back(r.server_cpu_seconds * 1e6 /
                       static_cast<double>(std::max<int64_t>(r.operations, 1)));
    }
  }
  std::vector<double> out;
  for (auto& list : cpu) out.push_back(Median(list));
  return out;
}

void Fill(SyncClient& client, std::string_view name, int64_t count, int64_t expire_after,
          Instant at) {
  for (int64_t first = 0; first < count; first += 1000) {
    client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("insert", name);
      {
        auto docs = b.OpenArray("documents");
        for (int64_t i = first; i < std::min(first + 1000, count); ++i) {
          auto d = docs.OpenDocument();
          d.Append("_id", i).Append("at", at).Append("text", kText);
        }
      }
      if (expire_after > 0) b.Append("expireAfterSeconds", expire_after);
    }));
  }
}

void CreateTtlIndex(SyncClient& client, std::string_view name, bool exact) {
  client.Call(Command(kDb, [&](BsonBuilder& b) {
    b.Append("createIndexes", name);
    auto indexes = b.OpenArray("indexes");
    auto i = indexes.OpenDocument();
    {
      auto k = i.OpenDocument("key");
      k.Append("at", 1);
    }
    i.Append("name", "at_1").Append("expireAfterSeconds", 0);
    if (exact) i.Append("expireReads", "exact");
  }));
}

struct Variant {
  const char* name;
  const char* collection;
};
constexpr Variant kVariants[] = {{"a collection without expiry", "plain"},
                                 {"every document has a deadline of its own", "own"},
                                 {"a TTL index, lazy", "lazy"},
                                 {"a TTL index with exact reads", "exact"},
                                 {"likewise, and something is overdue", "overdue"}};

/// Makes the collections; finds by `_id` in each of them.
std::vector<std::function<void(int64_t, std::string&)>> MakeReads(SyncClient& client,
                                                                  int64_t documents) {
  const Instant far{32503680000000}, past{1'000'000'000'000};
  for (const Variant& v : kVariants) Drop(client, v.collection);
  Fill(client, "plain", documents, 0, far);
  Fill(client, "own", documents, 100'000'000, far);
  CreateTtlIndex(client, "lazy", false);
  Fill(client, "lazy", documents, 0, far);
  CreateTtlIndex(client, "exact", true);
  Fill(client, "exact", documents, 0, far);
  CreateTtlIndex(client, "overdue", true);
  Fill(client, "overdue", documents, 0, far);
  // Held for ever, so that every read has to look at its document's date.
  client.Call(Command(kDb, [&](BsonBuilder& b) {
    b.Append("ttlHold", "overdue");
    auto f = b.OpenDocument("filter");
    f.Append("_id", "late");
  }));
  client.Call(Command(kDb, [&](BsonBuilder& b) {
    b.Append("insert", "overdue");
    auto docs = b.OpenArray("documents");
    docs.OpenDocument().Append("_id", "late").Append("at", past);
  }));
  for (const Variant& v : kVariants)
    client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("compact", v.collection); }), false);
  std::vector<std::function<void(int64_t, std::string&)>> reads;
  for (const Variant& v : kVariants)
    reads.emplace_back([random = std::mt19937_64(7), documents, c = v.collection](
                           int64_t, std::string& m) mutable {
      m = Command(kDb, [&](BsonBuilder& b) {
        b.Append("find", c);
        {
          auto f = b.OpenDocument("filter");
          f.Append("_id", static_cast<int64_t>(random() % static_cast<uint64_t>(documents)));
        }
        b.Append("limit", 1).Append("singleBatch", true);
      });
    });
  return reads;
}

}  // namespace

void RunReadInstructions(const LoadOptions& base, const std::string& out_file) {
  SyncClient client(base.host, base.port);
  const auto reads = MakeReads(client, 2000);
  double plain = 0;
  std::printf(
      "| find by `_id` of | instructions an operation | against without expiry |\n| --- | ---: | "
      "---: |\n");
  for (size_t v = 0; v < reads.size(); ++v) {
    const double n = CountInstructions(base, out_file, reads[v]);
    if (v == 0) plain = n;
    std::printf("| %s | %.0f | %+.1f%% |\n", kVariants[v].name, n, 100 * (n / plain - 1));
    std::fflush(stdout);
  }
}

void RunReadCosts(const LoadOptions& base, double seconds) {
  SyncClient client(base.host, base.port);
  const auto reads = MakeReads(client, kDocuments);
  LoadOptions o = base;
  o.connections = 16;
  o.seconds = seconds / 2;
  const std::vector<double> cpu = TakeTurns(o, 9, reads);
  std::printf(
      "| find by `_id` of | server CPU us | against without expiry |\n| --- | ---: | ---: |\n");
  for (size_t v = 0; v < cpu.size(); ++v)
    std::printf("| %s | %.2f | %+.1f%% |\n", kVariants[v].name, cpu[v],
                100 * (cpu[v] / cpu[0] - 1));
  for (const Variant& v : kVariants) Drop(client, v.collection);
  std::fflush(stdout);
}

void RunTombstoneCosts(const LoadOptions& base, double seconds) {
  SyncClient client(base.host, base.port);
  const int64_t per_run = static_cast<int64_t>(seconds * 20'000);
  LoadOptions o = base;
  o.connections = 16;
  o.max_operations = per_run;
  o.seconds = 60;
  int64_t next = 0;
  auto remove = [&next](int64_t, std::string& m) {
    m = Command(kDb, [&](BsonBuilder& b) {
      b.Append("delete", "marked");
      auto deletes = b.OpenArray("deletes");
      auto d = deletes.OpenDocument();
      {
        auto q = d.OpenDocument("q");
        q.Append("_id", next++);
      }
      d.Append("limit", 1);
    });
  };
  const std::vector<double> cpu = TakeTurns(o, 5, {remove, remove}, [&](size_t v) {
    Drop(client, "marked");
    Fill(client, "marked", per_run + o.connections, 0, Instant{0});
    next = 0;
    Set(client, "metadataPurgeIntervalSecs", v == 0 ? int64_t{0} : int64_t{259'200});
  });
  std::printf("| deleteOne | server CPU us |\n| --- | ---: |\n");
  std::printf("| without tombstones (metadataPurgeIntervalSecs: 0) | %.2f |\n| with | %.2f |\n",
              cpu[0], cpu[1]);
  Drop(client, "marked");
  std::fflush(stdout);
}

void RunIdleRules(const LoadOptions& base, int64_t rules, double seconds) {
  SyncClient client(base.host, base.port);
  constexpr int64_t kIndexes = 50;
  const int64_t before = ResidentBytes(base.pid);
  const int64_t collections = (rules + kIndexes - 1) / kIndexes;
  auto name = [](int64_t c) { return "idle" + std::to_string(c); };
  for (int64_t c = 0; c < collections; ++c) {
    Drop(client, name(c));
    client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("createIndexes", name(c));
      auto indexes = b.OpenArray("indexes");
      for (int64_t i = 0; i < std::min(kIndexes, rules - c * kIndexes); ++i) {
        const std::string field = "at" + std::to_string(i);
        auto x = indexes.OpenDocument();
        {
          auto k = x.OpenDocument("key");
          k.Append(field, 1);
        }
        x.Append("name", field + "_1").Append("expireAfterSeconds", 3600);
      }
    }));
    client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("insert", name(c));
      auto docs = b.OpenArray("documents");
      auto d = docs.OpenDocument();
      d.Append("_id", 1);
      for (int64_t i = 0; i < kIndexes; ++i)
        d.Append("at" + std::to_string(i), Instant{32503680000000});
    }));
  }
  const int64_t resident = ResidentBytes(base.pid) - before;
  std::this_thread::sleep_for(std::chrono::seconds(2));  // what the inserts left to do
  const double cpu = CpuSeconds(base.pid);
  std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
  const double used = CpuSeconds(base.pid) - cpu;
  std::printf("| %ld TTL rules with nothing due | |\n| --- | ---: |\n", rules);
  std::printf("| server CPU while idle, of a core | %.2f%% |\n", 100 * used / seconds);
  std::printf("| resident memory, KiB a rule | %.1f |\n",
              static_cast<double>(resident) / 1024 / static_cast<double>(rules));
  for (int64_t c = 0; c < collections; ++c) Drop(client, name(c));
  std::fflush(stdout);
}

void FillBacklog(const LoadOptions& base, int64_t documents) {
  SyncClient client(base.host, base.port);
  Set(client, "ttlMonitorEnabled", false);
  for (const char* c : {"backlog", "kept"}) Drop(client, c);
  CreateTtlIndex(client, "backlog", false);
  Fill(client, "kept", kDocuments, 0, Instant{32503680000000});
  for (int64_t first = 0; first < documents; first += 1000) {
    client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("insert", "backlog");
      auto docs = b.OpenArray("documents");
      for (int64_t i = first; i < std::min(first + 1000, documents); ++i)
        docs.OpenDocument()
            .Append("_id", i)
            .Append("at", Instant{1'000'000'000'000 + i})
            .Append("text", kText);
    }));
  }
}

void RunBacklog(const LoadOptions& base) {
  SyncClient client(base.host, base.port);
  auto left = [&client] {
    return client.Call(Command(kDb, [](BsonBuilder& b) { b.Append("count", "backlog"); }))
        .view()["n"]
        .NumberAsInt64();
  };
  std::mt19937_64 random(7);
  auto read = [&](int64_t, std::string& m) {
    m = Command(kDb, [&](BsonBuilder& b) {
      b.Append("find", "kept");
      {
        auto f = b.OpenDocument("filter");
        f.Append("_id", static_cast<int64_t>(random() % kDocuments));
      }
      b.Append("limit", 1).Append("singleBatch", true);
    });
  };
  LoadOptions o = base;
  o.connections = 16;
  o.rate = 10'000;
  // The server has found it at its start and is at work.
  const int64_t found = left();
  int64_t rest = 0;
  double took = 0;
  const LoadResult during = RunLoadUntil(
      o, read, [&] { return (rest = left()) == 0; }, &took);
  std::this_thread::sleep_for(std::chrono::seconds(5));  // what the store tidies up
  o.seconds = 5;
  const LoadResult after = RunLoad(o, read);
  std::printf(
      "| a backlog found at start-up, reads at 10k/s beside it | documents/s | read p50 us | p99 "
      "us | p99.9 us | max us |\n");
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: |\n");
  std::printf("| while %ld documents go | %.0f | %ld | %ld | %ld | %ld |\n", found,
              static_cast<double>(found - rest) / took, during.latency.Percentile(0.5),
              during.latency.Percentile(0.99), during.latency.Percentile(0.999),
              during.latency.max());
  std::printf("| afterwards |  | %ld | %ld | %ld | %ld |\n", after.latency.Percentile(0.5),
              after.latency.Percentile(0.99), after.latency.Percentile(0.999), after.latency.max());
}

}  // namespace mayfly::bench
