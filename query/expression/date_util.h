#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"

namespace mayfly {

inline constexpr int64_t kHourMillis = 3'600'000, kDayMillis = 24 * kHourMillis;

/// a / b, rounded down.
inline int64_t FloorDiv(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

/// A reading of the calendar and the clock (proleptic Gregorian). Month and day count from 1.
struct CivilTime {
  int64_t year = 1970;
  int month = 1, day = 1, hour = 0, minute = 0, second = 0, millis = 0;
};

/// `n` units and a rest, in milliseconds, clamped to the ends of 64 bits: dates reach to
/// both.
int64_t MillisOf(int64_t n, int64_t unit, int64_t rest);
int64_t DaysFromCivil(int64_t year, int month, int day);  ///< since 1970-01-01
CivilTime CivilFromMillis(int64_t millis);
int64_t MillisFromCivil(const CivilTime& t);
int DaysInMonth(int64_t year, int month);
int DayOfWeek(int64_t days);        ///< 0 = Sunday
int DayOfYear(const CivilTime& t);  ///< from 1
/// Week of ISO 8601 and the year it belongs to.
void IsoWeek(const CivilTime& t, int64_t* year, int* week);
/// Milliseconds of Monday of week 1 of an ISO year.
int64_t IsoYearStart(int64_t year);

/// A time zone: UTC, a fixed offset ("+05:30", "-0400", "+03") or a name of the tz database, as
/// the system's zone files have it. Cheap to copy. A value is used by the thread that made it.
class ZoneInfo {
 public:
  ZoneInfo() = default;  ///< UTC
  /// Errors: Location40485 for a name that is none.
  static Result<ZoneInfo> Find(std::string_view name);
  /// A fixed distance from UTC; positive in the east.
  static ZoneInfo OfMinutes(int64_t minutes) {
    ZoneInfo zone;
    zone.fixed_ = minutes * 60'000;
    return zone;
  }
  /// How far local time is ahead of UTC at that moment, as the zone's rules have it then.
  int64_t OffsetMillis(int64_t utc_millis) const;
  /// Local time as if it were UTC, clamped to int64.
  int64_t ToLocal(int64_t utc_millis) const {
    return MillisOf(utc_millis, 1, OffsetMillis(utc_millis));
  }
  /// A local time that the clocks skip is read with the offset before the gap; of one that comes
  /// twice the first is meant. Clamped to int64.
  int64_t ToUtc(int64_t local_millis) const;
  bool utc() const { return !zone_ && fixed_ == 0; }

 private:
  const void* zone_ = nullptr;  ///< cctz::time_zone of this thread's cache
  int64_t fixed_ = 0;
};

/// Reads a date in ISO 8601 and the forms next to it: "2030-01-31", "2030-01-31T10:00:00.5Z",
/// "2030-01-31 10:00 +0200", "20300131", "01/31/2030", "Thu, 31 Jan 2030 10:00:00 GMT", "July 4th,
/// 2030 11:30 am", "@1900000000", with a time zone or (then in `zone`) without. Errors:
/// ConversionFailure 241.
Result<Instant> ParseDateText(std::string_view text, const ZoneInfo* zone = nullptr);
/// The same by a format of $dateFromString.
Result<Instant> ParseDateByFormat(std::string_view text, std::string_view format,
                                  const ZoneInfo* zone);
/// "2030-01-31T10:00:00.000Z"
std::string FormatIsoDate(Instant t);
/// By a format of $dateToString. Errors: 18535, 18536, 18537.
Result<std::string> FormatDate(Instant t, const ZoneInfo& zone, std::string_view format);
/// Checks a format. `parsing`: as $dateFromString takes them.
Result<void> CheckDateFormat(std::string_view format, bool parsing);

/// A date, timestamp or ObjectId as a date; nothing for other types.
std::optional<Instant> CoerceToDate(BsonValue v);

}  // namespace mayfly
