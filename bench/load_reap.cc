// A mass expiry: documents that are all due when the monitor is switched on, with paced reads
// before and during.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "bench/load_client.h"
#include "bench/load_commands.h"

namespace mayfly::bench {

void RunReap(const LoadOptions& base, int64_t documents) {
  constexpr int64_t kReadable = 100000;
  SyncClient client(base.host, base.port);
  auto set = [&](const char* name, bool value) {
    client.Call(
        Command("admin", [&](BsonBuilder& b) { b.Append("setParameter", 1).Append(name, value); }));
  };
  auto fill = [&](std::string_view collection, int64_t count, Instant at) {
    for (int64_t first = 0; first < count; first += 1000) {
      client.Call(Command(kDb, [&](BsonBuilder& b) {
        b.Append("insert", collection);
        auto docs = b.OpenArray("documents");
        for (int64_t i = first; i < first + 1000; ++i) {
          auto d = docs.OpenDocument();
          d.Append("_id", i)
              .Append("user", static_cast<int64_t>((i * 2654435761) % count))
              .Append("at", at);
          d.Append("text", std::string_view("The quick brown mayfly dances over the quiet stream "
                                            "for the one evening that it has, and then is gone."));
        }
      }));
    }
  };
  set("ttlMonitorEnabled", false);
  for (const char* c : {"sessions", "kept"})
    client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("drop", c); }), false);
  client.Call(CreateSessionIndexes());
  fill("sessions", documents, Instant{1000000000000});
  fill("kept", kReadable, Instant{32503680000000});
  std::mt19937_64 random(7);
  auto read = [&](int64_t, std::string& m) {
    m = Command(kDb, [&](BsonBuilder& b) {
      b.Append("find", "kept");
      {
        auto f = b.OpenDocument("filter");
        f.Append("_id", static_cast<int64_t>(random() % kReadable));
      }
      b.Append("limit", 1).Append("singleBatch", true);
    });
  };
  LoadOptions o = base;
  o.connections = 16;
  o.rate = 10000;
  o.seconds = 5;
  LoadResult before = RunLoad(o, read);

  // How many go by themselves, without reads beside them, is the second run; this one has the
  // reads.
  double seconds = 0;
  const double cpu = CpuSeconds(base.pid);
  set("ttlMonitorEnabled", true);
  SyncClient watcher(base.host, base.port);
  LoadResult during = RunLoadUntil(
      o, read, [&] { return Count(watcher, "sessions") == 0; }, &seconds);
  const double used = CpuSeconds(base.pid) - cpu;

  set("ttlMonitorEnabled", false);
  fill("sessions", documents, Instant{1000000000000});
  const double cpu2 = CpuSeconds(base.pid);
  const int64_t begin2 = NowMicros();
  set("ttlMonitorEnabled", true);
  while (Count(client, "sessions") > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double alone = static_cast<double>(NowMicros() - begin2) / 1e6;
  const double used2 = CpuSeconds(base.pid) - cpu2;

  std::printf(
      "| mass expiry of %ld documents with two indexes | documents/s | server CPU us/document (all "
      "threads) | read p50 us | p99 us | p99.9 us | max us |\n",
      documents);
  std::printf("| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  std::printf("| before: reads at 10k/s |  |  | %ld | %ld | %ld | %ld |\n",
              before.latency.Percentile(0.5), before.latency.Percentile(0.99),
              before.latency.Percentile(0.999), before.latency.max());
  std::printf("| during: reads at 10k/s | %.0f | %.2f (reads included) | %ld | %ld | %ld | %ld |\n",
              static_cast<double>(documents) / seconds, used * 1e6 / static_cast<double>(documents),
              during.latency.Percentile(0.5), during.latency.Percentile(0.99),
              during.latency.Percentile(0.999), during.latency.max());
  std::printf("| alone | %.0f | %.2f |  |  |  |  |\n", static_cast<double>(documents) / alone,
              used2 * 1e6 / static_cast<double>(documents));
}

}  // namespace mayfly::bench
