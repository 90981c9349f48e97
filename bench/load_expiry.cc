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

namespace {

/// The first document in TTL order.
std::string FindHead(std::string_view collection) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("find", collection);
    {
      auto s = b.OpenDocument("sort");
      s.Append("at", 1);
    }
    b.Append("limit", 1).Append("singleBatch", true);
  });
}

std::string FindById(std::string_view collection, int64_t id) {
  return Command(kDb, [&](BsonBuilder& b) {
    b.Append("find", collection);
    {
      auto f = b.OpenDocument("filter");
      f.Append("_id", id);
    }
    b.Append("limit", 1).Append("singleBatch", true);
  });
}

/// A backlog of deadlines that falls due in rounds, half a day from one to the next; and what it
/// costs to look at the head of its index meanwhile.
class HeadRun {
 public:
  HeadRun(const LoadOptions& o, int64_t documents)
      : o_(o),
        documents_(documents),
        client_(o.host, o.port),
        head_(FindHead("pending")),
        by_id_(FindById("pending", documents)),
        other_(FindHead("other")) {}
  void Prepare();
  void Forecast();
  void Reap();
  void Print() const;

 private:
  static constexpr int64_t kRounds = 40, kFirst = 1'000'000'000'000, kApart = 43'200'000;
  int64_t Time(const std::string& m) {
    const int64_t begin = NowMicros();
    client_.Call(m);
    return NowMicros() - begin;
  }
  int64_t Median(const std::string& m) {
    Histogram h;
    for (int i = 0; i < 200; ++i) h.Add(Time(m));
    return h.Percentile(0.5);
  }
  void ReapRound(int64_t round);
  static void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  const LoadOptions& o_;
  const int64_t documents_;
  const int64_t in_round_ = (documents_ + kRounds - 1) / kRounds;
  SyncClient client_;
  const std::string head_, by_id_, other_;
  int64_t resident_before_ = 0, resident_after_ = 0, forecast_first_ = 0, head_before_ = 0,
          head_after_ = 0, id_after_ = 0, worst_ = 0, worst_id_ = 0;
  double index_bytes_ = 0, error_ = 0, seconds_ = 0, cpu_ = 0;
  Histogram forecasts_, firsts_, rested_, rested_ids_;
};

void HeadRun::Prepare() {
  Set(client_, "ttlMonitorEnabled", false);
  CreateTtlCollection(client_, "pending");
  resident_before_ = ResidentBytes(o_.pid);
  Fill(client_, "pending", documents_,
       [&](int64_t i) { return kFirst + i / in_round_ * kApart + i % in_round_; });
  resident_after_ = ResidentBytes(o_.pid);
  client_.Call(Command("admin", [](BsonBuilder& b) { b.Append("fsync", 1); }));
  client_.Call(Command(kDb, [](BsonBuilder& b) { b.Append("compact", "pending"); }), false);
  BsonDocument stats =
      client_.Call(Command(kDb, [](BsonBuilder& b) { b.Append("collStats", "pending"); }));
  index_bytes_ = static_cast<double>(stats.view()["indexSizes"].Document()["at_1"].NumberAsInt64());
  // Two that stay: the head of the index is behind all that was reaped.
  client_.Call(Command(kDb, [&](BsonBuilder& b) {
    b.Append("insert", "pending");
    auto docs = b.OpenArray("documents");
    for (int64_t i = 0; i < 2; ++i)
      docs.OpenDocument().Append("_id", documents_ + i).Append("at", Instant{32503680000000 + i});
  }));
  CreateTtlCollection(client_, "other");
  Fill(client_, "other", 1000, [](int64_t i) { return 32503680000000 + i; });
}

void HeadRun::Forecast() {
  // The first time something may have to be written out or read in.
  const std::string forecast = Command(kDb, [](BsonBuilder& b) {
    b.Append("ttlForecast", "pending").Append("horizonSeconds", 86'400).Append("buckets", 24);
  });
  forecast_first_ = Time(forecast);
  error_ = client_.Call(forecast).view()["errorFraction"].NumberAsDouble();
  for (int i = 0; i < 5; ++i) forecasts_.Add(Time(forecast));
}

void HeadRun::Reap() {
  head_before_ = Median(head_);
  const double cpu = CpuSeconds(o_.pid);
  for (int64_t round = 1; round <= kRounds; ++round) ReapRound(round);
  cpu_ = CpuSeconds(o_.pid) - cpu;
  head_after_ = Median(head_);
  id_after_ = Median(by_id_);
}

/// Each round leaves a longer reaped stretch: one look alone says more of what the machine does
/// beside it than of the index. So it is taken in the midst of the same queries of another
/// collection, as on a server in use, and every other time after a rest, beside a find by `_id`
/// after as long a rest.
void HeadRun::ReapRound(int64_t round) {
  const int64_t left = documents_ + 2 - std::min(in_round_ * round, documents_);
  const int64_t age = WallMicros() / 1000 - kFirst - round * kApart + kApart / 2;
  const int64_t begin = NowMicros();
  client_.Call(Command(kDb, [&](BsonBuilder& b) {
    b.Append("collMod", "pending");
    auto i = b.OpenDocument("index");
    i.Append("name", "at_1").Append("expireAfterSeconds", age / 1000);
  }));
  if (round == 1) Set(client_, "ttlMonitorEnabled", true);
  for (;;) {
    BsonDocument n =
        client_.Call(Command(kDb, [](BsonBuilder& b) { b.Append("count", "pending"); }));
    if (n.view()["n"].NumberAsInt64() <= left) break;
    worst_ = std::max(worst_, Time(head_));
    worst_id_ = std::max(worst_id_, Time(by_id_));
    Pause();
  }
  seconds_ += static_cast<double>(NowMicros() - begin) / 1e6;
  if (round % 2 == 1) {
    for (const int64_t until = NowMicros() + 20'000; NowMicros() < until;) client_.Call(other_);
    firsts_.Add(Time(head_));
    return;
  }
  Pause();
  rested_ids_.Add(Time(by_id_));
  Pause();
  rested_.Add(Time(head_));
}

void HeadRun::Print() const {
  const double n = static_cast<double>(documents_);
  std::printf("| %ld pending deadlines | |\n| --- | ---: |\n", documents_);
  std::printf("| bytes of TTL index each, on disk | %.1f |\n", index_bytes_ / n);
  std::printf(
      "| growth of resident memory while they came in, bytes each (caches and memtables, bounded) "
      "| %.1f |\n",
      static_cast<double>(resident_after_ - resident_before_) / n);
  std::printf("| so 100M pending take on disk, GB; 1B | %.2f; %.1f |\n", index_bytes_ / n * 0.1,
              index_bytes_ / n);
  std::printf("| forecast over all of them, ms: first; median of 5 | %.0f; %.0f |\n",
              static_cast<double>(forecast_first_) / 1000,
              static_cast<double>(forecasts_.Percentile(0.5)) / 1000);
  std::printf("| error that it states | %.3f |\n", error_);
  std::printf("| all of them found due at once: documents/s | %.0f |\n", n / seconds_);
  std::printf("| server CPU us each (one index) | %.2f |\n", cpu_ * 1e6 / n);
  std::printf("| first document in TTL order, client's us: before | %ld |\n", head_before_);
  std::printf("| worst while they were reaped; of a find by `_id` meanwhile | %ld; %ld |\n", worst_,
              worst_id_);
  std::printf(
      "| first look behind what was reaped, among finds elsewhere, %ld times as it grew: median; "
      "worst | %ld; %ld |\n",
      kRounds / 2, firsts_.Percentile(0.5), firsts_.max());
  std::printf(
      "| likewise after a rest of 20 ms; find by `_id` after as long a rest: medians | %ld; %ld "
      "|\n",
      rested_.Percentile(0.5), rested_ids_.Percentile(0.5));
  std::printf(
      "| afterwards, median of 200: first document in TTL order; find by `_id` | %ld; %ld |\n",
      head_after_, id_after_);
}

}  // namespace

void RunHead(const LoadOptions& o, int64_t documents) {
  HeadRun run(o, documents);
  run.Prepare();
  run.Forecast();
  run.Reap();
  run.Print();
}

}  // namespace mayfly::bench
