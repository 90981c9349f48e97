#pragma once
#include <string>
#include <string_view>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"

namespace mayfly {

/// So many rules are sent to the expiry page with each event; a server can have tens of thousands.
inline constexpr size_t kRulesShown = 200;

/// Appends `rules`, those of ttlStatus' whose "db.collection.rule" has `filter` in it (any case;
/// empty: all), and `ruleTotals` {rules, matching, shown, states: {active: n, …}, pending,
/// lagMillis} over all of them. When more than kRulesShown match, those that need looking at come
/// first: not active or with an error, then by backlog, lag and next deadline. They stay in the
/// order of ttlStatus.
void AppendRuleSelection(BsonView rules, std::string_view filter, BsonBuilder& out);

/// The value of `name` in a query string ("a=b&c=d%20e"), decoded; empty when it is not there.
std::string QueryValue(std::string_view query, std::string_view name);

}  // namespace mayfly
