#pragma once
#include <string>

#include "protocol/bson_view.h"

namespace mayfly {

class ServerContext;

/// The server's figures in Prometheus' text format 0.0.4. `status`: serverStatus with its sections
/// metrics and transactions; `rules`: the array of ttlStatus (each becomes a labelled series, the
/// first kMaxRules of them). Times are in seconds, sizes in bytes, as Prometheus asks for.
/// Threads: any.
std::string PrometheusText(ServerContext& server, BsonView status, BsonView rules);

inline constexpr int kMaxRules = 1000;

}  // namespace mayfly
