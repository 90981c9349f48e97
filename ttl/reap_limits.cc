#include "ttl/reap_limits.h"

#include <algorithm>
#include <cmath>

#include "protocol/extended_json.h"
#include "query/expression/date_util.h"

namespace mayfly {
namespace {

constexpr int kMinutesOfDay = 24 * 60;
constexpr int64_t kMinute = 60'000;

/// "02:00-05:00"; false when it is not of that form.
bool ParseWindow(std::string_view text, ReapWindow* out) {
  auto digit = [&](size_t i) { return text[i] >= '0' && text[i] <= '9'; };
  if (text.size() != 11 || text[2] != ':' || text[5] != '-' || text[8] != ':') return false;
  for (size_t i : {0, 1, 3, 4, 6, 7, 9, 10})
    if (!digit(i)) return false;
  auto two = [&](size_t i) { return (text[i] - '0') * 10 + (text[i + 1] - '0'); };
  if (two(0) > 23 || two(3) > 59 || two(9) > 59) return false;
  if (two(6) > 23 && !(two(6) == 24 && two(9) == 0)) return false;  // 24:00 is the end of the day
  out->begin_minute = two(0) * 60 + two(3);
  out->end_minute = two(6) * 60 + two(9);
  return true;
}

int MinuteOfDay(const ZoneInfo& zone, int64_t millis) {
  int64_t minute = zone.ToLocal(millis) / kMinute % kMinutesOfDay;
  return static_cast<int>(minute < 0 ? minute + kMinutesOfDay : minute);
}

bool Inside(const ReapWindow& w, int minute) {
  if (w.begin_minute < w.end_minute) return minute >= w.begin_minute && minute < w.end_minute;
  return minute >= w.begin_minute || minute < w.end_minute;
}

ZoneInfo Zone(const ReapWindow& w) {
  if (w.timezone.empty()) return {};
  Result<ZoneInfo> zone = ZoneInfo::Find(w.timezone);
  return zone ? zone.value() : ZoneInfo();  // it was checked when the index got it
}

}  // namespace

bool ReapWindow::Contains(Instant t) const {
  return Inside(*this, MinuteOfDay(Zone(*this), t.millis));
}

Instant ReapWindow::Opens(Instant t) const {
  const ZoneInfo zone = Zone(*this);
  if (Inside(*this, MinuteOfDay(zone, t.millis))) return t;
  int64_t at = t.millis - ((t.millis % kMinute) + kMinute) % kMinute;
  for (int i = 0; i < 2 * kMinutesOfDay; ++i) {
    at += kMinute;
    if (Inside(*this, MinuteOfDay(zone, at))) break;
  }
  return {at};
}

Result<ReapLimits> ParseReapLimits(BsonValue option, ErrorCode code, std::string_view index_name) {
  const std::string where = "index '" + std::string(index_name) + "': reap";
  auto type = [&](std::string_view field, BsonValue v, const char* expected) {
    return Error{ErrorCode::kTypeMismatch, where + std::string(field) + " must be " + expected +
                                               ", but it is of type " +
                                               std::string(BsonTypeName(v.type()))};
  };
  auto bad = [&](std::string_view field, std::string why) {
    return Error{code, where + std::string(field) + " " + std::move(why)};
  };
  if (!option.IsDocument())
    return type("", option, "a document {maxDocsPerSecond, window, timezone, catchUpSeconds}");
  ReapLimits limits;
  std::optional<std::string> timezone;
  auto whole = [&](std::string_view field, BsonValue v) -> Result<int64_t> {
    if (!v.IsNumber()) return type(field, v, "a number");
    const double d = v.NumberAsDouble();
    if (std::isnan(d) || d < 0 || d > 2147483647.0 || d != std::floor(d))
      return bad(field,
                 "must be a whole number from 0 to 2147483647, but it is " + ToRelaxedJson(v));
    return v.NumberAsInt64();
  };
  for (const BsonElement& e : option.Document()) {
    if (e.name == "maxDocsPerSecond") {
      MAYFLY_TRY(limits.max_docs_per_second, whole(".maxDocsPerSecond", e.value));
    } else if (e.name == "catchUpSeconds") {
      MAYFLY_TRY(limits.catch_up_seconds, whole(".catchUpSeconds", e.value));
    } else if (e.name == "window") {
      if (!e.value.IsString()) return type(".window", e.value, "a string \"HH:MM-HH:MM\"");
      ReapWindow w;
      if (!ParseWindow(e.value.String(), &w))
        return bad(".window", "must be like \"02:00-05:00\", but it is \"" +
                                  std::string(e.value.String()) + "\"");
      if (w.begin_minute == w.end_minute)
        return bad(".window",
                   "is empty: it begins and ends at the same minute; leave it out for "
                   "no window");
      limits.window = std::move(w);
    } else if (e.name == "timezone") {
      if (!e.value.IsString()) return type(".timezone", e.value, "a string");
      timezone = e.value.String();
      if (Result<ZoneInfo> zone = ZoneInfo::Find(*timezone); !zone)
        return bad(".timezone", "is not a time zone: \"" + *timezone +
                                    "\"; give a name like Europe/Berlin or an offset like +02:00");
    } else {
      return bad("", "has no field '" + std::string(e.name) +
                         "': maxDocsPerSecond, window, timezone and catchUpSeconds are known");
    }
  }
  if (timezone && !limits.window) return bad(".timezone", "needs a window");
  if (limits.catch_up_seconds > 0 && !limits.window && limits.max_docs_per_second == 0)
    return bad(".catchUpSeconds", "needs a maxDocsPerSecond or a window that it can lift");
  if (timezone) limits.window->timezone = std::move(*timezone);
  return limits;
}

ReapLimits StoredReapLimits(const TtlRule& rule) {
  if (!rule.index) return {};
  BsonValue option = rule.index->extra.view()["reap"];
  if (!option.IsDocument()) return {};
  Result<ReapLimits> limits = ParseReapLimits(option, ErrorCode::kInvalidOptions, rule.index->name);
  return limits ? limits.value() : ReapLimits();  // it was checked when it was stored
}

double RateLimiter::Burst() const { return std::max(1.0, static_cast<double>(rate_) / 10); }

void RateLimiter::SetRate(int64_t per_second, int64_t now_millis) {
  if (per_second == rate_) return;
  rate_ = per_second;
  tokens_ = std::min(tokens_, Burst());
  last_ = now_millis;
}

int64_t RateLimiter::Available(int64_t now_millis) {
  if (rate_ == 0) return INT64_MAX;
  // A clock that was set back starts again.
  const double passed = static_cast<double>(std::max<int64_t>(now_millis - last_, 0));
  last_ = now_millis;
  tokens_ += passed * static_cast<double>(rate_) / 1000;
  if (!waiting_) tokens_ = std::min(tokens_, Burst());
  waiting_ = tokens_ < 1;
  return static_cast<int64_t>(tokens_);
}

void RateLimiter::Spend(int64_t documents) {
  if (rate_ > 0) tokens_ -= static_cast<double>(documents);
}

int64_t RateLimiter::NextMillis() const {
  // Waits for half a burst, so that a low rate does not wake the thread once for each document.
  const double want = std::max(1.0, Burst() / 2) - tokens_;
  return last_ + std::max<int64_t>(
                     1, static_cast<int64_t>(std::ceil(want * 1000 / static_cast<double>(rate_))));
}

}  // namespace mayfly
