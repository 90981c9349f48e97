#include <cmath>

#include "query/expression/date_unit.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

using Unit = DateUnit;
constexpr std::string_view kUnits[] = {"year", "quarter", "month",  "week",       "day",
                                       "hour", "minute",  "second", "millisecond"};
constexpr int64_t kUnitMillis[] = {0,     0,    0, 7 * kDayMillis, kDayMillis, kHourMillis,
                                   60000, 1000, 1};

Result<Unit> ParseUnit(const EvalArgs& a, size_t i, int type_code) {
  if (!a.view(i).IsString())
    return LocationError(
        type_code,
        std::string(a.def.name) + " requires 'unit' to be a string, but got " + TypeText(a[i]));
  const std::string_view name = a.view(i).String();
  if (std::optional<Unit> unit = ParseDateUnit(name)) return *unit;
  return Error{ErrorCode::kFailedToParse, "unknown time unit value: " + std::string(name)};
}

Result<ZoneInfo> ParseZone(const EvalArgs& a, size_t i) {
  if (!a.has(i)) return ZoneInfo();
  if (!a.view(i).IsString())
    return LocationError(40517, "timezone must evaluate to a string, found " + TypeText(a[i]));
  BsonValue v = a.view(i);
  return ZoneInfo::Find(v.String());
}

/// 0 = Sunday.
Result<int> ParseWeekStart(const EvalArgs& a, size_t i, int code) {
  if (!a.has(i)) return 0;
  static constexpr std::string_view kNames[] = {"sunday",   "monday", "tuesday", "wednesday",
                                                "thursday", "friday", "saturday"};
  if (!a.view(i).IsString())
    return LocationError(code, std::string(a.def.name) +
                                   " requires 'startOfWeek' to be a string, but got " +
                                   TypeText(a[i]));
  BsonValue v = a.view(i);
  std::string name(v.String());
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (int d = 0; d < 7; ++d)
    if (name == kNames[d] || name == kNames[d].substr(0, 3)) return d;
  return Error{ErrorCode::kFailedToParse,
               std::string(a.def.name) +
                   " parameter 'startOfWeek' value cannot be recognized as a day of a week: " +
                   std::string(v.String())};
}

bool AnyNull(const EvalArgs& a) {
  for (size_t i = 0; i < a.size(); ++i)
    if ((a.has(i) || (a.def.required >> i & 1)) && a.nullish(i)) return true;
  return false;
}

// --- $dateAdd, $dateSubtract ---

constexpr std::string_view kAddNames[] = {"startDate", "unit", "amount", "timezone"};

Result<Value> AddUnits(const EvalArgs& a, int sign) {
  if (AnyNull(a)) return Value::Null();
  std::string op(a.def.name);
  std::optional<Instant> start = CoerceToDate(a.view(0));
  if (!start) return LocationError(5166403, op + " requires startDate to be convertible to a date");
  MAYFLY_TRY(Unit unit, ParseUnit(a, 1, 5166404));
  int64_t amount;
  if (!a.view(2).IsNumber() || !a.view(2).ExactInt64(&amount))
    return LocationError(5166405, op + " expects integer amount of time units");
  MAYFLY_TRY(ZoneInfo zone, ParseZone(a, 3));
  Error overflow = LocationError(5166406, op + " overflowed");
  if (amount == INT64_MIN) return overflow;
  amount *= sign;
  std::optional<Instant> result = AddDateUnits(*start, unit, amount, zone);
  if (!result) return overflow;
  return Value::Date(*result);
}
Result<Value> DateAdd(const EvalArgs& a) { return AddUnits(a, 1); }
Result<Value> DateSubtract(const EvalArgs& a) { return AddUnits(a, -1); }

// --- $dateDiff ---

constexpr std::string_view kDiffNames[] = {"startDate", "endDate", "unit", "timezone",
                                           "startOfWeek"};

Result<Value> DateDiff(const EvalArgs& a) {
  if (AnyNull(a)) return Value::Null();
  std::optional<Instant> start = CoerceToDate(a.view(0)), end = CoerceToDate(a.view(1));
  if (!start)
    return LocationError(5166307,
                         "$dateDiff requires 'startDate' to be a date, but got " + TypeText(a[0]));
  if (!end)
    return LocationError(5166307,
                         "$dateDiff requires 'endDate' to be a date, but got " + TypeText(a[1]));
  MAYFLY_TRY(Unit unit, ParseUnit(a, 2, 5439013));
  MAYFLY_TRY(ZoneInfo zone, ParseZone(a, 3));
  int first_day = 0;
  if (unit == Unit::kWeek) {
    MAYFLY_TRY(first_day, ParseWeekStart(a, 4, 5338801));
  }
  // The number of the unit's boundaries between the two.
  auto index = [&](int64_t utc) -> int64_t {
    int64_t offset = zone.OffsetMillis(utc), local = MillisOf(utc, 1, offset);
    CivilTime t = CivilFromMillis(local);
    switch (unit) {
      case Unit::kYear:
        return t.year;
      case Unit::kQuarter:
        return t.year * 4 + (t.month - 1) / 3;
      case Unit::kMonth:
        return t.year * 12 + t.month;
      case Unit::kWeek:
        return FloorDiv(FloorDiv(local, kDayMillis) + 4 - first_day, 7);
      case Unit::kDay:
        return FloorDiv(local, kDayMillis);
      // Only the part of the zone's offset below an hour matters: a change of the clock does not
      // add or remove hours.
      default:
        return FloorDiv(MillisOf(utc, 1, offset % kHourMillis),
                        kUnitMillis[static_cast<int>(unit)]);
    }
  };
  int64_t difference;
  if (__builtin_sub_overflow(index(end->millis), index(start->millis), &difference))
    return LocationError(5166308, "dateDiff overflowed");
  return Value::Int64(difference);
}

// --- $dateTrunc ---

constexpr std::string_view kTruncNames[] = {"date", "unit", "binSize", "timezone", "startOfWeek"};

Result<Value> DateTrunc(const EvalArgs& a) {
  if (AnyNull(a)) return Value::Null();
  std::optional<Instant> date = CoerceToDate(a.view(0));
  if (!date)
    return LocationError(5439012,
                         "$dateTrunc requires 'date' to be a date, but got " + TypeText(a[0]));
  MAYFLY_TRY(Unit unit, ParseUnit(a, 1, 5439013));
  int64_t bin = 1;
  if (a.has(2)) {
    if (!a.view(2).IsNumber() || !a.view(2).ExactInt64(&bin))
      return LocationError(5439017,
                           "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '" +
                               ValueText(a[2]) + "' of type " + TypeText(a[2]));
    if (bin <= 0)
      return LocationError(5439018,
                           "$dateTrunc requires 'binSize' to be greater than 0, but got value " +
                               std::to_string(bin));
    if (bin > 100'000'000'000)
      return LocationError(5439018, "$dateTrunc: 'binSize' is too large: " + std::to_string(bin));
  }
  MAYFLY_TRY(ZoneInfo zone, ParseZone(a, 3));
  int first_day = 0;
  if (unit == Unit::kWeek) {
    MAYFLY_TRY(first_day, ParseWeekStart(a, 4, 5439015));
  }
  // Bins are counted from the start of the year 2000 (weeks: from the first week that begins in
  // it).
  const int64_t epoch = DaysFromCivil(2000, 1, 1);
  int64_t offset = zone.OffsetMillis(date->millis), local = MillisOf(date->millis, 1, offset);
  CivilTime t = CivilFromMillis(local);
  switch (unit) {
    case Unit::kYear:
    case Unit::kQuarter:
    case Unit::kMonth: {
      int64_t size = bin * (unit == Unit::kYear ? 12 : unit == Unit::kQuarter ? 3 : 1);
      int64_t month = FloorDiv((t.year - 2000) * 12 + t.month - 1, size) * size;
      CivilTime r;
      r.year = 2000 + FloorDiv(month, 12);
      r.month = static_cast<int>(month - FloorDiv(month, 12) * 12) + 1;
      return Value::Date({zone.ToUtc(MillisFromCivil(r))});
    }
    case Unit::kWeek:
    case Unit::kDay: {
      int64_t origin = epoch, size = bin;
      if (unit == Unit::kWeek) {
        origin += (first_day - DayOfWeek(epoch) + 7) % 7;
        size *= 7;
      }
      int64_t day = FloorDiv(FloorDiv(local, kDayMillis) - origin, size) * size + origin;
      return Value::Date({zone.ToUtc(MillisOf(day, kDayMillis, 0))});
    }
    default: {
      int64_t size;
      if (__builtin_mul_overflow(bin, kUnitMillis[static_cast<int>(unit)], &size))
        return LocationError(5439018, "$dateTrunc: 'binSize' is too large: " + std::to_string(bin));
      const int64_t origin = epoch * kDayMillis;
      // Counted from the epoch's own place within a bin, so that nothing on the way is beyond 64
      // bits.
      const int64_t shift = origin % size;
      int64_t bins = FloorDiv(local, size);
      if ((local % size + size) % size < shift) --bins;
      return Value::Date({MillisOf(bins, size, shift - offset)});
    }
  }
}

constexpr OperatorDef kDateMathOps[] = {
    {.name = "$dateAdd",
     .eval = &DateAdd,
     .names = kAddNames,
     .required = 7,
     .object_code = 5166400,
     .unknown_code = 5166401,
     .missing_code = 5166402,
     .text = "A date a number of units later.",
     .example =
         R"({"$dateAdd": {"startDate": {"$date": "2031-01-31T12:00:00Z"}, "unit": "month", "amount": 1}} => {"$date": "2031-02-28T12:00:00Z"})"},
    {.name = "$dateDiff",
     .eval = &DateDiff,
     .names = kDiffNames,
     .required = 7,
     .object_code = 5166301,
     .unknown_code = 5166302,
     .missing_code = 5166303,
     .text = "How many times a new unit begins between two dates.",
     .example =
         R"({"$dateDiff": {"startDate": {"$date": "2030-12-31T23:00:00Z"}, "endDate": {"$date": "2031-01-01T01:00:00Z"}, "unit": "day"}} => {"$numberLong": "1"})"},
    {.name = "$dateSubtract",
     .eval = &DateSubtract,
     .names = kAddNames,
     .required = 7,
     .object_code = 5166400,
     .unknown_code = 5166401,
     .missing_code = 5166402,
     .text = "A date a number of units earlier.",
     .example =
         R"({"$dateSubtract": {"startDate": {"$date": "2031-03-31T12:00:00Z"}, "unit": "day", "amount": 2, "timezone": "Europe/Berlin"}} => {"$date": "2031-03-29T13:00:00Z"})"},
    {.name = "$dateTrunc",
     .eval = &DateTrunc,
     .names = kTruncNames,
     .required = 3,
     .object_code = 5439007,
     .unknown_code = 5439008,
     .missing_code = 5439009,
     .text = "The start of the unit, or of a number of units, that a date is in.",
     .example =
         R"({"$dateTrunc": {"date": {"$date": "2031-03-20T11:37:00Z"}, "unit": "minute", "binSize": 15}} => {"$date": "2031-03-20T11:30:00Z"})"},
};

}  // namespace

std::optional<DateUnit> ParseDateUnit(std::string_view name) {
  for (size_t u = 0; u < std::size(kUnits); ++u)
    if (kUnits[u] == name) return static_cast<DateUnit>(u);
  return std::nullopt;
}

std::string_view DateUnitName(DateUnit unit) { return kUnits[static_cast<int>(unit)]; }

int64_t DateUnitMillis(DateUnit unit) { return kUnitMillis[static_cast<int>(unit)]; }

std::optional<Instant> AddDateUnits(Instant start, DateUnit unit, int64_t amount,
                                    const ZoneInfo& zone) {
  int64_t result;
  if (unit >= Unit::kHour) {
    if (__builtin_mul_overflow(amount, DateUnitMillis(unit), &result) ||
        __builtin_add_overflow(result, start.millis, &result))
      return std::nullopt;
    return Instant{result};
  }
  // Years to days are counted on the calendar of the time zone.
  int64_t local = zone.ToLocal(start.millis);
  if (unit >= Unit::kWeek) {
    if (__builtin_mul_overflow(amount, DateUnitMillis(unit), &result) ||
        __builtin_add_overflow(result, local, &result))
      return std::nullopt;
  } else {
    int64_t months = amount;
    int per = unit == Unit::kYear ? 12 : unit == Unit::kQuarter ? 3 : 1;
    if (__builtin_mul_overflow(amount, per, &months) ||
        std::abs(months) > 12 * int64_t{400'000'000})
      return std::nullopt;
    CivilTime t = CivilFromMillis(local);
    if (std::abs(t.year) > 200'000'000) return std::nullopt;
    int64_t month = t.year * 12 + t.month - 1 + months;
    t.year = FloorDiv(month, 12);
    t.month = static_cast<int>(month - t.year * 12) + 1;
    if (std::abs(t.year) > 290'000'000) return std::nullopt;
    t.day = std::min(t.day, DaysInMonth(t.year, t.month));
    result = MillisFromCivil(t);
  }
  return Instant{zone.ToUtc(result)};
}

std::span<const OperatorDef> DateMathOperators() { return kDateMathOps; }

}  // namespace mayfly
