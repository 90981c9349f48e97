#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/unit/storage/catalog_fixture.h"
#include "ttl/ttl_monitor.h"

namespace mayfly::testing {

inline constexpr int64_t kStart = 1'900'000'000'000;

struct Reaping : CatalogStore {
  TtlParameters parameters;
  TtlMetrics metrics;
  BatchedDeleteMetrics batched;
  std::vector<std::string> logged;
  std::mutex log_mutex;
  TtlEnvironment environment;     ///< what a test wants besides the log
  Clock* monitor_clock = &clock;  ///< what the monitor is given
  std::unique_ptr<TtlMonitor> monitor;

  Reaping() {
    clock.Freeze(true);  // first: no millisecond passes in between
    clock.Set({kStart});
  }
  ~Reaping() {
    monitor.reset();
    storage.reset();
  }
  void Start() {
    TtlEnvironment env = environment;
    env.log = [this](char severity, std::string_view message, BsonView) {
      std::lock_guard l(log_mutex);
      logged.push_back(std::string(1, severity) + " " + std::string(message));
    };
    monitor = std::make_unique<TtlMonitor>(*storage, *monitor_clock, parameters, metrics, batched,
                                           std::move(env));
    monitor->Start();
  }
  void Stop() { monitor.reset(); }
  int64_t Logged(std::string_view line) {
    std::lock_guard l(log_mutex);
    return std::count(logged.begin(), logged.end(), line);
  }
  CollectionInfoPtr WithIndex(std::string_view spec, std::string_view name = "c") {
    CollectionInfoPtr c = Make(name);
    REQUIRE(catalog().CreateIndexes(*op, *c, {Spec(spec)}));
    return Coll(name);
  }
  BsonDocument Doc(int64_t id, int64_t at) {
    return BuildBson([&](BsonBuilder& b) { b.Append("_id", id).Append("at", Instant{at}); });
  }
  int64_t Count(std::string_view name = "c") { return Storage::DocumentCount(*Coll(name)); }
};

}  // namespace mayfly::testing
