#pragma once
#include <string_view>
#include <vector>

#include "storage/catalog/catalog_types.h"
#include "storage/write/transaction_unit.h"

namespace mayfly {

class Operation;
class Storage;

/// Collections that a transaction creates, and their indexes. Its unit and its catalog know them at
/// once, everybody else once it is committed. An aborted one leaves only their ids, which are never
/// used again. REQUIRES for all: the unit is that of a transaction (BeginTransactionUnit).
/// Blocking: an id may have to be put into the log first.

/// As Catalog::Create. Errors besides: WriteConflict 112 when the collection was created after the
/// transaction's snapshot, or another open transaction makes it; TransactionTooLarge 257 when it
/// makes too many, or too much (CheckTransactionSize).
Result<CollectionInfoPtr> CreateInTransaction(Storage& storage, WriteUnit& unit, Operation& op,
                                              CollectionInfo definition);
/// As Catalog::CreateIndexes, of a collection that the transaction has made. Errors besides:
/// OperationNotSupportedInTransaction 263 for any other, and when it has documents; nothing is
/// wrong where all of the indexes are there. TransactionTooLarge 257.
Result<CollectionInfoPtr> CreateIndexesInTransaction(Storage& storage, WriteUnit& unit,
                                                     Operation& op, const CollectionInfo& coll,
                                                     std::vector<IndexInfo> specs);
/// Before the commit: the rows and log entries of all that was made. Nobody else can take the names
/// until the unit is applied, or given up. Errors: WriteConflict 112 when somebody has them; those
/// of an interrupt.
Result<void> StageCreated(Storage& storage, WriteUnit& unit, Operation& op);
/// After the commit: tells who watches the schema (SchemaWatch). `made`: as the unit had it
/// (TransactionCatalog::Own).
void TellCreated(Storage& storage, Operation& op, const std::vector<CollectionInfoPtr>& made);

}  // namespace mayfly
