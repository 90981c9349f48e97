#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "protocol/bson_builder.h"
#include "protocol/error.h"

namespace mayfly {

class ServerContext;

/// One-time requests of the configuration: the set of --initialMembers, and the user of
/// --initialRootUser. A standalone makes the user before it serves anybody. A set gets its own when
/// there is a primary, while nobody can log in yet: the first of the members initiates it once all
/// of them answer, and the primary makes the user. Both only where there is none: a restart finds
/// what was made.
class FirstStart {
 public:
  explicit FirstStart(ServerContext& server);
  ~FirstStart();

  /// Makes the user unless there is a user or a role. Blocks. Errors: those of createUser.
  Result<void> MakeUser();
  /// For a set: tries until everything exists, on a separate thread. Once.
  void Begin();
  /// That thread is to end; it may take until the set has been told to stop, too.
  void AskToStop();
  /// Ends it. Any number of times.
  void Stop();

 private:
  /// Whether nothing is left to be done.
  bool Try();
  /// Whether this member is the first of --initialMembers.
  bool IsFirst() const;
  Result<void> Initiate();
  Result<BsonDocument> Run(BsonDocument command);
  /// The log's line about what did not work, once for each reason.
  void Tell(std::string_view what, const Error& error);

  ServerContext& server_;
  std::string told_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mayfly
