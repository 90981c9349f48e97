// Deadlines one after the other, and many of them pending.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "bench/load_client.h"

namespace mayfly::bench {
namespace {

int64_t WallMicros() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

void CreateTtlCollection(SyncClient& client, std::string_view name) {
  client.Call(Command(kDb, [&](BsonBuilder& b) { b.Append("drop", name); }), false);
  client.Call(Command(kDb, [&](BsonBuilder& b) {
    b.Append("createIndexes", name);
    auto indexes = b.OpenArray("indexes");
    auto i = indexes.OpenDocument();
    {
      auto k = i.OpenDocument("key");
      k.Append("at", 1);
    }
    i.Append("name", "at_1").Append("expireAfterSeconds", 0);
  }));
}

template <class At>
void Fill(SyncClient& client, std::string_view name, int64_t count, At at) {
  for (int64_t first = 0; first < count; first += 1000) {
    client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("insert", name);
      auto docs = b.OpenArray("documents");
      for (int64_t i = first; i < std::min(first + 1000, count); ++i) {
        auto d = docs.OpenDocument();
        d.Append("_id", i).Append("at", Instant{at(i)});
        d.Append("text", std::string_view("The quick brown mayfly dances over the quiet stream for "
                                          "the one evening that it has, and then is gone."));
      }
    }));
  }
}

void Set(SyncClient& client, const char* name, bool value) {
  client.Call(
      Command("admin", [&](BsonBuilder& b) { b.Append("setParameter", 1).Append(name, value); }));
}

}  // namespace

void RunTrickle(const LoadOptions& o, int64_t per_second, int64_t seconds) {
  SyncClient client(o.host, o.port);
  CreateTtlCollection(client, "trickle");
  const int64_t count = per_second * seconds;
  const int64_t start = WallMicros() / 1000 + 3000;
  auto deadline = [&](int64_t i) { return start + i * 1000 / per_second; };
  Fill(client, "trickle", count, deadline);
  if (WallMicros() / 1000 >= start)
    std::printf("ERROR: the load was not in before the first deadline\n");
  const std::string ask = Command(kDb, [](BsonBuilder& b) { b.Append("count", "trickle"); });
  Histogram late;
  int64_t gone = 0;
  while (gone < count) {
    const int64_t before = WallMicros();
    const int64_t left = client.Call(ask).view()["n"].NumberAsInt64();
    const int64_t now = WallMicros();
    // Deadlines are in order, so the first have gone; at the latest when the reply was here.
    for (; gone < count - left; ++gone) late.Add(std::max<int64_t>(now - deadline(gone) * 1000, 0));
    if (now - before < 2000) std::this_thread::sleep_for(std::chrono::microseconds(2000));
    if (now / 1000 > start + seconds * 1000 + 60'000) {
      std::printf("ERROR: %ld documents are still there a minute after the last deadline\n", left);
      break;
    }
  }
  std::printf(
      "| %ld documents a second fall due for %ld s | p50 ms | p99 ms | max ms |\n| --- | ---: | "
      "---: | ---: |\n",
      per_second, seconds);
  std::printf("| deadline to gone, as a client sees it | %.1f | %.1f | %.1f |\n",
              static_cast<double>(late.Percentile(0.5)) / 1000,
              static_cast<double>(late.Percentile(0.99)) / 1000,
              static_cast<double>(late.max()) / 1000);
}

void RunHead(const LoadOptions& o, int64_t documents) {
  SyncClient client(o.host, o.port);
  Set(client, "ttlMonitorEnabled", false);
  CreateTtlCollection(client, "pending");
  const int64_t before = ResidentBytes(o.pid);
  // In rounds, half a day from one to the next, which fall due one after the other.
  constexpr int64_t kRounds = 40, kFirst = 1'000'000'000'000, kApart = 43'200'000;
  const int64_t in_round = (documents + kRounds - 1) / kRounds;
  Fill(client, "pending", documents,
       [&](int64_t i) { return kFirst + i / in_round * kApart + i % in_round; });
  const int64_t after = ResidentBytes(o.pid);
  client.Call(Command("admin", [](BsonBuilder& b) { b.Append("fsync", 1); }));
  client.Call(Command(kDb, [](BsonBuilder& b) { b.Append("compact", "pending"); }), false);
  BsonDocument stats =
      client.Call(Command(kDb, [](BsonBuilder& b) { b.Append("collStats", "pending"); }));
  const double bytes =
      static_cast<double>(stats.view()["indexSizes"].Document()["at_1"].NumberAsInt64());
  // Two that stay: the head of the index is behind all that was reaped.
  client.Call(Command(kDb, [&](BsonBuilder& b) {
    b.Append("insert", "pending");
    auto docs = b.OpenArray("documents");
    for (int64_t i = 0; i < 2; ++i)
      docs.OpenDocument().Append("_id", documents + i).Append("at", Instant{32503680000000 + i});
  }));
  const std::string head = Command(kDb, [](BsonBuilder& b) {
    b.Append("find", "pending");
    {
      auto s = b.OpenDocument("sort");
      s.Append("at", 1);
    }
    b.Append("limit", 1).Append("singleBatch", true);
  });
  const std::string by_id = Command(kDb, [&](BsonBuilder& b) {
    b.Append("find", "pending");
    {
      auto f = b.OpenDocument("filter");
      f.Append("_id", documents);
    }
    b.Append("limit", 1).Append("singleBatch", true);
  });
  CreateTtlCollection(client, "other");
  Fill(client, "other", 1000, [](int64_t i) { return 32503680000000 + i; });
  const std::string other = Command(kDb, [](BsonBuilder& b) {
    b.Append("find", "other");
    {
      auto s = b.OpenDocument("sort");
      s.Append("at", 1);
    }
    b.Append("limit", 1).Append("singleBatch", true);
  });
  auto time = [&](const std::string& m) {
    const int64_t begin = NowMicros();
    client.Call(m);
    return NowMicros() - begin;
  };
  auto median = [&](const std::string& m) {
    Histogram h;
    for (int i = 0; i < 200; ++i) h.Add(time(m));
    return h.Percentile(0.5);
  };
  // The first time something may have to be written out or read in.
  const std::string forecast = Command(kDb, [](BsonBuilder& b) {
    b.Append("ttlForecast", "pending").Append("horizonSeconds", 86'400).Append("buckets", 24);
  });
  const int64_t forecast_first = time(forecast);
  double error = client.Call(forecast).view()["errorFraction"].NumberAsDouble();
  Histogram forecasts;
  for (int i = 0; i < 5; ++i) forecasts.Add(time(forecast));
  const int64_t head_before = median(head);
  // Each round leaves a longer reaped stretch: one look alone says more of what the machine does
  // beside it than of the index. So it is taken in the midst of the same queries of another
  // collection, as on a server in use, and every other time after a rest, beside a find by `_id`
  // after as long a rest.
  const double cpu = CpuSeconds(o.pid);
  double seconds = 0;
  int64_t worst = 0, worst_id = 0;
  Histogram firsts, rested, rested_ids;
  auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  auto stay_in_use = [&] {
    for (const int64_t until = NowMicros() + 20'000; NowMicros() < until;) client.Call(other);
  };
  for (int64_t round = 1; round <= kRounds; ++round) {
    const int64_t left = documents + 2 - std::min(in_round * round, documents);
    const int64_t age = WallMicros() / 1000 - kFirst - round * kApart + kApart / 2;
    const int64_t begin = NowMicros();
    client.Call(Command(kDb, [&](BsonBuilder& b) {
      b.Append("collMod", "pending");
      auto i = b.OpenDocument("index");
      i.Append("name", "at_1").Append("expireAfterSeconds", age / 1000);
    }));
    if (round == 1) Set(client, "ttlMonitorEnabled", true);
    for (;;) {
      BsonDocument n =
          client.Call(Command(kDb, [](BsonBuilder& b) { b.Append("count", "pending"); }));
      if (n.view()["n"].NumberAsInt64() <= left) break;
      worst = std::max(worst, time(head));
      worst_id = std::max(worst_id, time(by_id));
      pause();
    }
    seconds += static_cast<double>(NowMicros() - begin) / 1e6;
    if (round % 2 == 1) {
      stay_in_use();
      firsts.Add(time(head));
    } else {
      pause();
      rested_ids.Add(time(by_id));
      pause();
      rested.Add(time(head));
    }
  }
  const double used = CpuSeconds(o.pid) - cpu;
  const int64_t head_after = median(head), id = median(by_id);
  const double n = static_cast<double>(documents);
  std::printf("| %ld pending deadlines | |\n| --- | ---: |\n", documents);
  std::printf("| bytes of TTL index each, on disk | %.1f |\n", bytes / n);
  std::printf(
      "| growth of resident memory while they came in, bytes each (caches and memtables, bounded) "
      "| %.1f |\n",
      static_cast<double>(after - before) / n);
  std::printf("| so 100M pending take on disk, GB; 1B | %.2f; %.1f |\n", bytes / n * 0.1,
              bytes / n);
  std::printf("| forecast over all of them, ms: first; median of 5 | %.0f; %.0f |\n",
              static_cast<double>(forecast_first) / 1000,
              static_cast<double>(forecasts.Percentile(0.5)) / 1000);
  std::printf("| error that it states | %.3f |\n", error);
  std::printf("| all of them found due at once: documents/s | %.0f |\n", n / seconds);
  std::printf("| server CPU us each (one index) | %.2f |\n", used * 1e6 / n);
  std::printf("| first document in TTL order, client's us: before | %ld |\n", head_before);
  std::printf("| worst while they were reaped; of a find by `_id` meanwhile | %ld; %ld |\n", worst,
              worst_id);
  std::printf(
      "| first look behind what was reaped, among finds elsewhere, %ld times as it grew: median; "
      "worst | %ld; %ld |\n",
      kRounds / 2, firsts.Percentile(0.5), firsts.max());
  std::printf(
      "| likewise after a rest of 20 ms; find by `_id` after as long a rest: medians | %ld; %ld "
      "|\n",
      rested.Percentile(0.5), rested_ids.Percentile(0.5));
  std::printf(
      "| afterwards, median of 200: first document in TTL order; find by `_id` | %ld; %ld |\n",
      head_after, id);
}

}  // namespace mayfly::bench
