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
/// ($expr, exhausted regex limits) does not match. A filter stops, and does not match, when its
/// operation must stop: FilteringFor::Asked(), for a validator also that of the enclosing
/// ParseWork. Check that operation before a document is refused, or counts as having no keys.
/// Errors: those of ParseMatch; CannotCreateIndex 67.
Result<std::shared_ptr<const RecordFilter>> CompileRecordFilter(BsonView filter, bool for_index,
                                                                const Clock* clock = nullptr);

/// Compiled filters live as long as their collection or index. Code that defines a new one calls
/// this afterwards, to check that all together take at most a quarter of large_memory's limit;
/// stored ones are always loaded. Errors: ExceededMemoryLimit 146.
Result<void> CheckRecordFilters();

}  // namespace mayfly
