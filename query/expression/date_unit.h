#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "query/expression/date_util.h"

namespace mayfly {

/// Units of time as $dateAdd and its kin name them, from the longest to the shortest.
enum class DateUnit : uint8_t {
  kYear,
  kQuarter,
  kMonth,
  kWeek,
  kDay,
  kHour,
  kMinute,
  kSecond,
  kMillisecond
};

/// "year" … "millisecond"; nothing for other words.
std::optional<DateUnit> ParseDateUnit(std::string_view name);
std::string_view DateUnitName(DateUnit unit);
/// Milliseconds of one; 0 for year, quarter and month, which differ in length.
int64_t DateUnitMillis(DateUnit unit);
/// `start` and `amount` units, on the calendar of `zone`; the day is cut to the length of the
/// month. Nothing when that is beyond what a date can hold.
std::optional<Instant> AddDateUnits(Instant start, DateUnit unit, int64_t amount,
                                    const ZoneInfo& zone = ZoneInfo());

}  // namespace mayfly
