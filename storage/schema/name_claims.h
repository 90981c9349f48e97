#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/seeded_hash.h"

namespace mayfly {

class Operation;

/// Names of collections that pending changes are about to use: a change first claims a name, then
/// checks that it is free, and publishes its collection before the claim ends. A claim takes the
/// same time however many there are. Threads: any.
class NameClaims {
 public:
  /// Ends when it is destroyed. Must not outlive the table.
  class Claim {
   public:
    ~Claim();
    Claim(const Claim&) = delete;

   private:
    friend class NameClaims;
    Claim(NameClaims& table, std::string_view db, std::string_view name)
        : table_(table), db_(db), name_(name) {}
    NameClaims& table_;
    const std::string db_, name_;
  };
  using ClaimPtr = std::unique_ptr<Claim>;

  /// Null when somebody has the name, or one in a database whose name differs by case alone.
  ClaimPtr TryTake(std::string_view db, std::string_view name);
  /// Waits for it. Blocking. Errors: those of an interrupt, InterruptedAtShutdown 11600 when
  /// `closing` becomes true.
  Result<ClaimPtr> Take(Operation& op, const std::atomic<bool>& closing, std::string_view db,
                        std::string_view name);

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  /// The one database with claims among those whose names differ only in case.
  struct Database {
    std::string name;
    ClientStringSet collections;
  };
  ClientStringMap<Database> claims_;  ///< by the database's name in lower case
};

/// Whether two names are the same but for the case of ASCII letters.
bool EqualIgnoringCase(std::string_view a, std::string_view b);

}  // namespace mayfly
