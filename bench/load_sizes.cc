// How the costs of look-ups and updates grow with a collection: the same rows at one size after
// the other, each beside a ping of the same minute, in the states that a store is found in.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <utility>

#include "bench/load_client.h"
#include "bench/load_commands.h"

namespace mayfly::bench {
namespace {

constexpr std::string_view kCollection = "sized";
/// Takes inserts beside the finds whose delay is looked at.
constexpr std::string_view kOther = "beside";
constexpr std::string_view kStoreThreads = "rocksdb:";
constexpr int64_t kBatch = 1000;

/// The value of the indexed field of a document: neighbours by it are scattered by `_id`.
int64_t Scattered(int64_t id, int64_t documents) {
  return static_cast<int64_t>((static_cast<__int128>(id) * 2654435761) % documents);
}

std::string Fill(std::string_view collection, int64_t first, int64_t documents) {
  return InsertDocuments(
      collection, first, std::min(kBatch, documents - first),
      {.ordered = false, .b_of = [=](int64_t id) { return Scattered(id, documents); }});
}

/// One size: its documents, and how the rows are measured.
class Size {
 public:
  Size(const LoadOptions& base, int64_t documents, std::string_view only)
      : base_(base), documents_(documents), only_(only), client_(base.host, base.port) {}

  /// A collection that has so many documents already is taken as it is.
  void Load() {
    if (Count(client_, kCollection) == documents_) return;
    for (const std::string_view collection : {kCollection, kOther}) Create(collection);
    LoadOptions o = base_;
    o.connections = 4;
    o.seconds = 24 * 3600;
    const int64_t batches = (documents_ + kBatch - 1) / kBatch;
    o.max_operations = batches;
    LoadResult r = RunLoad(
        o, [&](int64_t n, std::string& m) { m = Fill(kCollection, n * kBatch, documents_); });
    const auto docs = static_cast<double>(documents_);
    Print("load", "insertMany(1000), two indexes, each document", r.operations * kBatch, r,
          docs / r.seconds, r.server_cpu_seconds * 1e6 / docs);
  }

  /// Finds at a steady rate, alone and while up to a million documents are loaded beside them and
  /// for as long after: what stalls them shows in the last columns.
  void Tails() {
    LoadOptions o = base_;
    o.connections = 16;
    o.rate = 10000;
    o.seconds = base_.seconds;
    LoadResult quiet =
        RunLoad(o, [&](int64_t, std::string& m) { m = FindEqual(kCollection, "_id", Any(), 1); });
    Print("quiet", "find by _id at 10k/s", quiet.operations, quiet);
    std::atomic<bool> over{false};
    std::thread loader([&] {
      SyncClient own(base_.host, base_.port);
      for (int64_t i = 0; i < std::min<int64_t>(documents_, 1'000'000); i += kBatch)
        own.Call(Fill(kOther, i, documents_));
      over = true;
    });
    double seconds = 0;
    LoadResult beside = RunLoadUntil(
        o, [&](int64_t, std::string& m) { m = FindEqual(kCollection, "_id", Any(), 1); },
        [&] { return over.load(); }, &seconds);
    loader.join();
    Print("beside a load", "find by _id at 10k/s", beside.operations, beside);
    LoadResult after =
        RunLoad(o, [&](int64_t, std::string& m) { m = FindEqual(kCollection, "_id", Any(), 1); });
    Print("right after it", "find by _id at 10k/s", after.operations, after);
  }

  void Rows(const char* state) {
    const double ping = Row(state, "ping", 0, Ping);
    Row(state, "find by _id", ping, [&] { return FindEqual(kCollection, "_id", Any(), 1); });
    Row(state, "find by secondary index", ping,
        [&] { return FindEqual(kCollection, "b", Any(), 1); });
    Row(state, "range of 100 by _id", ping, [&] { return FindRange(kCollection, "_id", Any()); });
    Row(state, "range of 100 by secondary index", ping,
        [&] { return FindRange(kCollection, "b", Any()); });
  }

  /// With what the store does behind them, as far as it is done within the row.
  void Updates(const char* state) {
    const double ping = Row(state, "ping", 0, Ping);
    Row(state, "updateOne $inc", ping, [&] { return Increment(kCollection, Any()); });
  }

  /// Until nothing is compacted any more, for two seconds on end.
  void Settle() {
    int quiet = 0;
    for (int i = 0; i < 6000 && quiet < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const BsonDocument status =
          client_.Call(Command("admin", [](BsonBuilder& b) { b.Append("serverStatus", 1); }));
      const BsonView writes = status.view().FindPath("rocksdb.writes").Document();
      quiet = writes["runningCompactions"].NumberAsInt64() == 0 ? quiet + 1 : 0;
    }
  }

 private:
  /// Anew, with its two indexes.
  void Create(std::string_view collection) {
    client_.Call(Drop(collection), false);
    client_.Call(CreateIndexes(collection));
  }
  int64_t Any() { return static_cast<int64_t>(random_() % static_cast<uint64_t>(documents_)); }

  /// Server CPU microseconds of an operation.
  double Row(const char* state, const char* name, double ping,
             const std::function<std::string()>& next) {
    if (ping > 0 && std::string_view(name).find(only_) == std::string_view::npos) return 0;
    LoadOptions o = base_;
    o.connections = 64;
    const double store = ThreadSeconds(base_.pid, kStoreThreads);
    LoadResult r = RunLoad(o, [&](int64_t, std::string& m) { m = next(); });
    store_cpu_ =
        (ThreadSeconds(base_.pid, kStoreThreads) - store) * 1e6 / static_cast<double>(r.operations);
    const double cpu = r.server_cpu_seconds * 1e6 / static_cast<double>(r.operations);
    Print(state, name, r.operations, r, static_cast<double>(r.operations) / r.seconds, cpu, ping);
    return cpu;
  }

  void Print(const char* state, const char* name, int64_t operations, const LoadResult& r,
             double per_second = 0, double cpu = 0, double ping = 0) {
    if (per_second == 0) per_second = static_cast<double>(operations) / r.seconds;
    if (cpu == 0) cpu = r.server_cpu_seconds * 1e6 / static_cast<double>(operations);
    std::printf("| %ld | %s | %s | %.0f | %.2f |", documents_, state, name, per_second, cpu);
    std::printf(" %.2f |", std::exchange(store_cpu_, 0));
    if (ping > 0)
      std::printf(" %.2f |", cpu / ping);
    else
      std::printf("  |");
    std::printf(" %ld | %ld | %ld | %.0f |\n", r.latency.Percentile(0.99),
                r.latency.Percentile(0.999), r.latency.max(),
                static_cast<double>(r.resident_bytes) / 1048576);
    std::fflush(stdout);
    if (r.errors > 0) std::printf("ERRORS: %ld of %ld in '%s'\n", r.errors, r.operations, name);
  }

  const LoadOptions base_;
  const int64_t documents_;
  const std::string only_;  ///< rows whose name contains it, and pings
  double store_cpu_ = 0;  ///< of the last row: microseconds of an operation, of the store's threads
  SyncClient client_;
  std::mt19937_64 random_{42};
};

}  // namespace

void RunSizes(const LoadOptions& base, const std::vector<int64_t>& sizes, std::string_view only) {
  std::printf(
      "| documents | state | operation | a second | server CPU us | of it flushes and "
      "compactions | x ping | p99 us | p99.9 us | max us | RSS MiB |\n");
  std::printf("| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const int64_t documents : sizes) {
    Size size(base, documents, only);
    size.Load();
    size.Rows("after the load");
    size.Settle();
    size.Rows("settled");
    size.Updates("settled");
    size.Rows("after updates");
    if (only.empty()) size.Tails();
  }
}

}  // namespace mayfly::bench
