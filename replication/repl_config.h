#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"

namespace mayfly {

/// One member as the configuration document has it.
struct MemberConfig {
  int32_t id = 0;
  std::string host;  ///< host:port
  double priority = 1;
  int32_t votes = 1;
  bool hidden = false;
  int64_t secondary_delay_secs = 0;
  std::map<std::string, std::string> tags;

  bool voter() const { return votes > 0; }
  bool electable() const { return voter() && priority > 0; }
};

/// A replica set's configuration: what replSetInitiate and replSetReconfig take and
/// replSetGetConfig answers (manual: "Replica Set Configuration"). Immutable once in use.
struct ReplConfig {
  std::string name;  ///< `_id`
  int64_t version = 1;
  int64_t term = 0;  ///< of the primary that made it
  std::vector<MemberConfig> members;
  std::string set_id;  ///< 12 bytes: settings.replicaSetId
  /// Either value: the log comes from the primary, so nothing is chained.
  bool chaining_allowed = true;
  /// Act as in MongoDB; the interval and the election timeout are shorter by default
  /// (ConsensusTimings), so that a lost primary is replaced within two seconds.
  int64_t heartbeat_interval_ms = 250, heartbeat_timeout_secs = 10, election_timeout_ms = 1000;
  bool majority_journal = true;
  /// settings.getLastErrorModes: name -> tag -> how many different values of it.
  std::map<std::string, std::map<std::string, int64_t>> modes;
  BsonDocument default_write_concern;  ///< settings.getLastErrorDefaults; only {w: 1, wtimeout: 0}

  /// By "host:port", exactly as written. Null when no member has it; points into `members`.
  const MemberConfig* FindHost(std::string_view host) const;
  /// By the configuration alone: a new voter counts here before it has caught up.
  int VotingMembers() const;
  /// How many make a majority of the voting members.
  int Majority() const { return VotingMembers() / 2 + 1; }
  BsonDocument ToBson() const;
};

/// Reads and checks a configuration by itself. Hosts without a port get 27017.
/// Errors: InvalidReplicaSetConfig 93 with what to change.
Result<ReplConfig> ParseReplConfig(BsonView doc);
/// Whether `next` may follow `now`. `force`: without the rule of one change of voters at a time,
/// and the version only goes up. Errors: NewReplicaSetConfigurationIncompatible 103.
Result<void> CheckReconfig(const ReplConfig& now, const ReplConfig& next, bool force);

/// "host:port", "[::1]:27017" or "host": the host and port apart. False when it is neither.
bool SplitHostAndPort(std::string_view text, std::string* host, int* port);

}  // namespace mayfly
