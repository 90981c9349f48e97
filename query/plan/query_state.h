#pragma once
#include <atomic>

#include "query/plan/held_snapshots.h"
#include "query/plan/index_filter.h"
#include "query/plan/neighbours.h"
#include "query/plan/plan_cache.h"
#include "query/plan/scan_helpers.h"
#include "storage/storage.h"

namespace mayfly {

/// The state shared by queries on one store. Threads: any.
struct QueryState {
  PlanCache plans;
  IndexFilters filters;
  HeldSnapshots held;
  Neighbours neighbours;
  /// Null: scans have no help. What is set outlives all queries.
  std::atomic<ScanHelpers*> helpers{nullptr};
  std::atomic<int64_t> parts_of_helpers{0};  ///< read for parallel scans
  static QueryState& Of(Storage& storage) { return storage.QueryState<QueryState>(); }
};

}  // namespace mayfly
