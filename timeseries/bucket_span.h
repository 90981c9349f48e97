#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

/// How much time a bucket may cover, and to which multiple its lower bound is rounded down.
struct BucketSpan {
  int32_t max_span_seconds = 3600;
  int32_t rounding_seconds = 60;
  bool operator==(const BucketSpan&) const = default;
};

/// The most bucketMaxSpanSeconds and bucketRoundingSeconds (manual: "Set Granularity for Time
/// Series Data"): a year.
inline constexpr int32_t kMaxBucketSpanSeconds = 31'536'000;

/// What a client may say of it, as `create` and `collMod` take it.
struct SpanOptions {
  std::optional<std::string> granularity;
  std::optional<int64_t> max_span_seconds, rounding_seconds;
};

/// What is stored of it: the span, and the granularity it comes from; empty if it was given in
/// seconds.
struct SeriesSpan {
  BucketSpan span;
  std::string granularity = "seconds";
};

/// For granularity "seconds": an hour, from a full minute; "minutes": a day, from a full hour;
/// "hours": 30 days, from a full day. Errors: BadValue 2 for any other.
Result<BucketSpan> SpanOfGranularity(std::string_view granularity);

/// The span that `create` asks for. Without any option: granularity "seconds". Errors: BadValue 2
/// (granularity, or numbers outside 1 … 31536000), InvalidOptions 72 (one of the two without the
/// other, different ones, or with a granularity beside them).
Result<SeriesSpan> SpanForCreate(const SpanOptions& options);

/// The span after `collMod`. Errors as above; InvalidOptions 72 if the span would become smaller,
/// or the granularity would go down, or skip "minutes" (only one level at a time is allowed).
Result<SeriesSpan> SpanForChange(const SeriesSpan& now, const SpanOptions& options);

/// InvalidOptions 72: names that cannot be timeField and metaField (empty, with a dot, a dollar at
/// the beginning or a NUL; metaField "_id" or the timeField). `meta` null: there is none.
Result<void> CheckSeriesFields(std::string_view time, const std::string* meta);

/// The lower bound of the bucket in which a point of time `t` is the first: rounded down, before
/// 1970 as well. A time so early that there is no such number is its own bound. Threads: any.
Instant BucketFloor(Instant t, BucketSpan span);
/// Whether a point of time `t` fits into the bucket from `floor` on: [floor, floor + span).
bool FitsBucket(Instant t, Instant floor, BucketSpan span);
/// What the `_id` of a bucket from `floor` on begins with: its seconds, rounded down, as four
/// bytes, the highest first. Seconds before 1970 and after 2106 wrap around. Threads: any.
std::string BucketIdPrefix(Instant floor);
/// 1970, and 2038-01-19T03:14:07.000Z.
inline constexpr Instant kFirstExpiringDate{0}, kLastExpiringDate{int64_t{INT32_MAX} * 1000};
/// Whether one point of this time suspends all expiry of its collection (manual: "Set up Automatic
/// Removal for Time Series Collections"): before the first of these dates, or after the last.
constexpr bool SuspendsExpiry(Instant t) { return t < kFirstExpiringDate || t > kLastExpiringDate; }

}  // namespace mayfly
