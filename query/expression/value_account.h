#pragma once
#include <cstdint>
#include <memory>

#include "query/expression/pace.h"

namespace mayfly {

/// The account of the operation of that number, for the calling thread.
std::shared_ptr<ValueAccount> AccountOfOperation(uint64_t operation);

/// While it lives, large values of the calling thread's expressions are charged to this account of
/// the operation: several threads work for it.
class AccountScope {
 public:
  AccountScope(uint64_t operation, std::shared_ptr<ValueAccount> account);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
};

}  // namespace mayfly
