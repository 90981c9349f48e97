#pragma once
#include <string_view>
#include <vector>

#include "server/dispatch/command.h"
#include "ttl/forecast.h"
#include "ttl/rule_date.h"
#include "ttl/ttl_controls.h"

namespace mayfly {

/// A rule as ttlStatus lists it, also one that does not work (yet).
struct ListedTtlRule {
  TtlRule rule;
  const char* special = nullptr;  ///< "building" or "invalid"; null: see TtlControls
  const char* reason = nullptr;   ///< of an invalid one
};

/// All rules, or those of a database (`db` not empty) or of a collection, sorted by namespace.
/// `used_only`: not the documents' own deadlines where no document has one.
std::vector<ListedTtlRule> ListRulesFor(ExpiryServices& server, std::string_view db,
                                        std::string_view collection, bool used_only = true);
/// The rules of one collection that work, as forecasts want them.
std::vector<TtlRule> WorkingRulesOf(const CollectionInfoPtr& coll);
/// "active", "paused", "held", "building" or "invalid".
std::string_view StateOf(ExpiryServices& server, const ListedTtlRule& rule, Instant now);

/// The facts of one rule without its name (docs/expiry-control.md): state, nextDeadline, lagMillis,
/// pending, deleted, ratePerSecond, lastPass. May look into the rule's index.
Result<void> AppendRuleFacts(ExpiryServices& server, Operation& op, const ListedTtlRule& rule,
                             BsonBuilder& out);
/// A client's reply must fit in a document; what is left is for its other fields.
inline constexpr size_t kMaxTtlReplyBytes = 15 << 20;

/// `restored`, while a restore holds expiry; else nothing.
void AppendRestoreHold(ExpiryServices& server, BsonBuilder& out);

/// Which of the rules ttlStatus lists: they are in order of namespace, so that one page follows the
/// other.
struct TtlStatusPart {
  int64_t skip = 0, limit = 0;  ///< limit 0: all
  size_t most_bytes = kMaxTtlReplyBytes;
};
/// ttlStatus' reply: rules, holds and pauses of all, of a database or of a collection; `total`
/// rules where not all are asked for. Errors: BSONObjectTooLarge 10334.
Result<void> AppendTtlStatus(ExpiryServices& server, Operation& op, std::string_view db,
                             std::string_view collection, const TtlStatusPart& part,
                             BsonBuilder& reply);

/// ttlForecast's and $ttlForecast's fields. With more rules than kForecastRulesNamed an interval
/// names those that have the most in it.
inline constexpr size_t kForecastRulesNamed = 100;
void AppendForecast(const Forecast& f, BsonBuilder& out);
/// For all collections of a database, or (`db` empty) of the server: rules are named "ns.rule".
Result<Forecast> ForecastAll(ExpiryServices& server, Operation& op, std::string_view db,
                             const ForecastOptions& options);
/// Reads horizonSeconds and buckets. Errors: TypeMismatch 14, BadValue 2.
class ArgReader;
ForecastOptions ReadForecastOptions(ArgReader& in);
/// For one collection. Errors: NamespaceNotFound 26, CommandNotSupportedOnView 166.
Result<Forecast> ForecastCollection(ExpiryServices& server, Operation& op, std::string_view db,
                                    std::string_view collection, const ForecastOptions& options);

/// The rule by its name, or the only one when `name` is empty. Errors: IndexNotFound 27 (no such
/// index), InvalidOptions 72 (it is no TTL index; there is none, or there are several).
Result<TtlRule> FindTtlRule(ExpiryServices& server, const CollectionInfoPtr& coll,
                            std::string_view name);

/// A command's first field that is a collection's name, or 1 for all. On `all`: the commands are
/// about the database they were sent to, from `admin` about the whole server.
struct TtlTarget {
  bool all = false;
  std::string_view db;          ///< empty: every database
  std::string_view collection;  ///< empty: all
};
/// Errors: InvalidNamespace 73; TypeMismatch 14 for another type, BadValue 2 for another number.
/// Whether the collection exists is not asked.
Result<TtlTarget> ReadTtlTarget(const CommandRequest& req);

/// serverStatus.metrics.ttl behind MongoDB's four.
void AppendTtlMetrics(ExpiryServices& server, Operation& op, BsonBuilder& ttl);

}  // namespace mayfly
