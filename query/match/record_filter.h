#pragma once
#include <memory>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"
#include "storage/clock.h"

namespace mayfly {

/// Compiles a partial index filter (`for_index`) or a validator, as StorageOptions::compile_filter
/// wants it: `[clock](BsonView f, bool i) { return CompileRecordFilter(f, i, clock); }`. `clock`
/// gives validators their $$NOW; must outlive the result. A document for which the filter fails
/// ($expr, exhausted regex limits) does not match. A filter stops, and does not match, when the
/// operation is to stop for which it is asked: FilteringFor::Asked(), for a validator also that of
/// the ParseWork around it. Ask that operation before a document is refused, or has no keys.
/// Errors: those of ParseMatch; CannotCreateIndex 67.
Result<std::shared_ptr<const RecordFilter>> CompileRecordFilter(BsonView filter, bool for_index,
                                                                const Clock* clock = nullptr);

/// Compiled filters live as long as their collection or index. Whoever defines another one asks
/// afterwards whether they take more than a quarter of what large_memory allows, all together;
/// those that are stored already are loaded in any case. Errors: ExceededMemoryLimit 146.
Result<void> CheckRecordFilters();

}  // namespace mayfly
