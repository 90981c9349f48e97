#pragma once
#include <string>
#include <vector>

#include "storage/write/write_unit.h"

namespace mayfly {

/// What an open transaction holds, for display.
struct TransactionHoldings {
  size_t locks = 0;      ///< of documents and unique keys
  size_t documents = 0;  ///< changes of documents
};
/// Adds the collections that it has locked since to `names`, up to `most`. By the unit's
/// user.
TransactionHoldings HoldingsOf(WriteUnit& unit, size_t most, std::vector<std::string>* names);

/// A statement of a transaction was tried on an io thread (KeepShort): from now on its unit may
/// take its time again.
void EndShort(WriteUnit& unit);
/// Gives back the locks that were taken since HoldingsOf said `locks`. REQUIRES: nothing that was
/// staged since is left.
void ReleaseLocksSince(WriteUnit& unit, size_t locks);

}  // namespace mayfly
