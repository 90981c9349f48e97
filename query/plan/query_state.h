#pragma once
#include "query/plan/index_filter.h"
#include "query/plan/plan_cache.h"
#include "storage/storage.h"

namespace mayfly {

/// What queries on one store have in common. Threads: any.
struct QueryState {
  PlanCache plans;
  IndexFilters filters;
  static QueryState& Of(Storage& storage) { return storage.QueryState<QueryState>(); }
};

}  // namespace mayfly
