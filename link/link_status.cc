#include <fmt/format.h>

#include "link/link.h"
#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

/// Prometheus wants these three escaped in a label.
std::string Label(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

}  // namespace

void LinkStatus::Set(BsonDocument status) {
  std::lock_guard l(mutex_);
  status_ = std::move(status);
}

BsonDocument LinkStatus::Get() const {
  const LinkProgress::Shown now = progress.Look();
  std::lock_guard l(mutex_);
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : status_.view()) {
      const std::string_view state =
          e.name == "state" && e.value.IsString() ? e.value.String() : std::string_view();
      if (!now.stalled.empty() && (state == "following" || state == "copying"))
        b.Append("state", "stalled");
      else if (e.name == "lagMillis")
        b.Append("lagMillis", now.lag_millis);
      else
        b.Append(e);
    }
    if (!now.stalled.empty()) b.Append("stalled", now.stalled);
  });
}

std::string LinkStatus::Unwell() const {
  const BsonDocument status = Get();
  const auto text = [&](std::string_view name) {
    const BsonValue v = status.view()[name];
    return v.IsString() ? std::string(v.String()) : std::string();
  };
  std::string stalled = text("stalled");
  const std::string error = text("error");
  if (text("state") == "failed") return error.empty() ? "failed" : error;
  if (!stalled.empty() && !error.empty()) stalled += ": " + error;
  return stalled;
}

std::string LinkStatus::Metrics() const {
  const BsonDocument status = Get();
  const BsonView s = status;
  const auto text = [&](std::string_view name) {
    return s[name].IsString() ? Label(s[name].String()) : std::string();
  };
  const std::string link = text("link"), state = text("state");
  std::string out = fmt::format(
      "# TYPE mayfly_link_state gauge\nmayfly_link_state{{link=\"{}\",state=\"{}\"}} 1\n"
      "# TYPE mayfly_link_lag_seconds gauge\nmayfly_link_lag_seconds{{link=\"{}\"}} {}\n",
      link, state, link, s["lagMillis"].IsNumber() ? s["lagMillis"].NumberAsDouble() / 1000 : 0.0);
  out += fmt::format("# TYPE mayfly_link_stalled gauge\nmayfly_link_stalled{{link=\"{}\"}} {}\n",
                     link, s["stalled"].missing() ? 0 : 1);
  out += "# TYPE mayfly_link_documents_total counter\n";
  if (s["counters"].IsDocument())
    for (const BsonElement& e : s["counters"].Document())
      out += fmt::format("mayfly_link_documents_total{{link=\"{}\",what=\"{}\"}} {}\n", link,
                         e.name, e.value.NumberAsInt64());
  out += "# TYPE mayfly_link_clock_skew_seconds gauge\n";
  if (s["clockSkewMillis"].IsDocument())
    for (const BsonElement& e : s["clockSkewMillis"].Document())
      out += fmt::format("mayfly_link_clock_skew_seconds{{link=\"{}\",side=\"{}\"}} {}\n", link,
                         e.name, e.value.NumberAsDouble() / 1000);
  return out;
}

}  // namespace mayfly
