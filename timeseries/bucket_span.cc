#include "timeseries/bucket_span.h"

#include <algorithm>

namespace mayfly {
namespace {

struct Granularity {
  std::string_view name;
  BucketSpan span;
};
constexpr Granularity kGranularities[] = {
    {"seconds", {3600, 60}}, {"minutes", {86'400, 3600}}, {"hours", {2'592'000, 86'400}}};

Error Invalid(std::string message) { return {ErrorCode::kInvalidOptions, std::move(message)}; }

/// A name of a client in a message.
std::string Shown(std::string_view name) { return std::string(name.substr(0, 128)); }

/// The level of a granularity; -1 if it is none.
int LevelOf(std::string_view name) {
  for (int i = 0; i < 3; ++i)
    if (kGranularities[i].name == name) return i;
  return -1;
}

/// Both numbers, which must be there and equal.
Result<BucketSpan> SpanOfSeconds(const SpanOptions& options) {
  for (const auto& [name, value] : {std::pair{"bucketMaxSpanSeconds", options.max_span_seconds},
                                    std::pair{"bucketRoundingSeconds", options.rounding_seconds}}) {
    if (value && (*value < 1 || *value > kMaxBucketSpanSeconds))
      return Error{ErrorCode::kBadValue, std::string("timeseries.") + name + " is " +
                                             std::to_string(*value) +
                                             ": it must be from 1 to 31536000"};
  }
  if (!options.max_span_seconds || !options.rounding_seconds ||
      *options.max_span_seconds != *options.rounding_seconds)
    return Invalid(
        "timeseries.bucketMaxSpanSeconds and timeseries.bucketRoundingSeconds must be given "
        "together and be equal");
  const auto seconds = static_cast<int32_t>(*options.max_span_seconds);
  return BucketSpan{seconds, seconds};
}

Result<SeriesSpan> CustomSpan(const SpanOptions& options) {
  MAYFLY_TRY(const BucketSpan span, SpanOfSeconds(options));
  if (options.granularity)
    return Invalid(
        "timeseries.granularity cannot be given beside bucketMaxSpanSeconds and "
        "bucketRoundingSeconds: leave one of them out");
  return SeriesSpan{span, ""};
}

/// That `next`, which `asked` comes to, is not smaller than `now` in either number; the message
/// names the one that is.
Result<void> CheckGrows(const BucketSpan& now, const BucketSpan& next, const std::string& asked) {
  const auto smaller = [&](std::string_view option, int32_t is, int32_t would_be) {
    return Invalid(asked + ": " + std::string(option) + " cannot become smaller than " +
                   std::to_string(is) + ", and would be " + std::to_string(would_be));
  };
  if (next.max_span_seconds < now.max_span_seconds)
    return smaller("bucketMaxSpanSeconds", now.max_span_seconds, next.max_span_seconds);
  if (next.rounding_seconds < now.rounding_seconds)
    return smaller("bucketRoundingSeconds", now.rounding_seconds, next.rounding_seconds);
  return Ok();
}

}  // namespace

Result<BucketSpan> SpanOfGranularity(std::string_view granularity) {
  const int level = LevelOf(granularity);
  if (level >= 0) return kGranularities[level].span;
  return Error{ErrorCode::kBadValue, "timeseries.granularity is '" + Shown(granularity) +
                                         "': it must be 'seconds', 'minutes' or 'hours'"};
}

Result<SeriesSpan> SpanForCreate(const SpanOptions& options) {
  if (options.max_span_seconds || options.rounding_seconds) return CustomSpan(options);
  SeriesSpan out;
  if (options.granularity) out.granularity = *options.granularity;
  MAYFLY_TRY(out.span, SpanOfGranularity(out.granularity));
  return out;
}

Result<SeriesSpan> SpanForChange(const SeriesSpan& now, const SpanOptions& options) {
  if (options.max_span_seconds || options.rounding_seconds) {
    MAYFLY_TRY(SeriesSpan next, CustomSpan(options));
    MAYFLY_TRY(CheckGrows(now.span, next.span, "collMod of timeseries"));
    return next;
  }
  if (!options.granularity) return now;
  MAYFLY_TRY(const BucketSpan span, SpanOfGranularity(*options.granularity));
  if (now.granularity.empty()) {
    MAYFLY_TRY(CheckGrows(now.span, span, "timeseries.granularity '" + *options.granularity + "'"));
    return SeriesSpan{span, *options.granularity};
  }
  const int from = LevelOf(now.granularity), to = LevelOf(*options.granularity);
  if (to < from || to > from + 1)
    return Invalid("timeseries.granularity is '" + now.granularity + "' and cannot become '" +
                   *options.granularity + "': it can only go up, one level at a time");
  return SeriesSpan{span, *options.granularity};
}

Result<void> CheckSeriesFields(std::string_view time, const std::string* meta) {
  const auto check = [](std::string_view option, std::string_view name) -> Result<void> {
    if (name.empty() || name[0] == '$' || name.find('.') != std::string_view::npos ||
        name.find('\0') != std::string_view::npos)
      return Invalid("timeseries." + std::string(option) + " is '" + Shown(name) +
                     "': it must be the name of a top-level field, without a dot and not "
                     "beginning with a dollar sign");
    return Ok();
  };
  MAYFLY_TRY(check("timeField", time));
  if (time == "_id") return Invalid("timeseries.timeField cannot be _id");
  if (meta == nullptr) return Ok();
  MAYFLY_TRY(check("metaField", *meta));
  if (*meta == "_id") return Invalid("timeseries.metaField cannot be _id");
  if (*meta == time) return Invalid("timeseries.metaField must be another field than timeField");
  return Ok();
}

Instant BucketFloor(Instant t, BucketSpan span) {
  const int64_t step = int64_t{span.rounding_seconds} * 1000;
  const int64_t over = t.millis % step;
  if (over == 0) return t;
  // The remainder has the sign of the time: before 1970 rounding down goes one step further.
  int64_t floor = t.millis - over;
  if (over < 0 && __builtin_sub_overflow(floor, step, &floor)) return t;
  return {floor};
}

std::string BucketIdPrefix(Instant floor) {
  int64_t seconds = floor.millis / 1000;
  if (floor.millis % 1000 < 0) --seconds;
  std::string prefix(4, '\0');
  for (size_t i = 0; i < 4; ++i)
    prefix[i] = static_cast<char>(static_cast<uint64_t>(seconds) >> (24 - 8 * i));
  return prefix;
}

bool FitsBucket(Instant t, Instant floor, BucketSpan span) {
  if (t < floor) return false;
  const auto since = static_cast<uint64_t>(t.millis) - static_cast<uint64_t>(floor.millis);
  return since < static_cast<uint64_t>(span.max_span_seconds) * 1000;
}

}  // namespace mayfly
