#include "query/expression/date_util.h"
#include "query/expression/operator.h"

namespace mayfly {
namespace {

constexpr std::string_view kPartNames[] = {"date", "timezone"};

/// The date and the time zone of $year and its like. Nothing when either is null.
Result<std::optional<CivilTime>> LocalTime(const EvalArgs& a) {
  ZoneInfo zone;
  std::string op(a.def.name);
  if (a.nullish(0)) return std::optional<CivilTime>();
  if (a.has(1)) {
    if (a.nullish(1)) return std::optional<CivilTime>();
    if (!a.view(1).IsString())
      return LocationError(40533,
                           op + " requires a string for the timezone argument, but was given a " +
                               TypeText(a[1]) + " (" + ValueText(a[1]) + ")");
    MAYFLY_TRY(zone, ZoneInfo::Find(a.view(1).String()));
  }
  std::optional<Instant> t = CoerceToDate(a.view(0));
  if (!t)
    return LocationError(16006, "can't convert from BSON type " + TypeText(a[0]) + " to Date");
  return std::optional<CivilTime>(CivilFromMillis(zone.ToLocal(t->millis)));
}

template <class F>
Result<Value> Part(const EvalArgs& a, F&& part) {
  MAYFLY_TRY(auto t, LocalTime(a));
  if (!t) return Value::Null();
  return Value::Int32(static_cast<int32_t>(part(*t)));
}
int Weekday(const CivilTime& t) { return DayOfWeek(DaysFromCivil(t.year, t.month, t.day)); }

Result<Value> Year(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return t.year; });
}
Result<Value> Month(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return t.month; });
}
Result<Value> Day(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return t.day; });
}
Result<Value> Hour(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return t.hour; });
}
Result<Value> Minute(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return t.minute; });
}
Result<Value> Second(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return t.second; });
}
Result<Value> Millisecond(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return t.millis; });
}
Result<Value> YearDay(const EvalArgs& a) { return Part(a, &DayOfYear); }
Result<Value> WeekDay(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return Weekday(t) + 1; });
}
Result<Value> IsoWeekDay(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return (Weekday(t) + 6) % 7 + 1; });
}
Result<Value> Week(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) { return (DayOfYear(t) - 1 + 7 - Weekday(t)) / 7; });
}
Result<Value> IsoWeekOf(const EvalArgs& a) {
  return Part(a, [](const CivilTime& t) {
    int64_t year;
    int week;
    IsoWeek(t, &year, &week);
    return week;
  });
}
Result<Value> IsoWeekYear(const EvalArgs& a) {
  MAYFLY_TRY(auto t, LocalTime(a));
  if (!t) return Value::Null();
  int64_t year;
  int week;
  IsoWeek(*t, &year, &week);
  return Value::Int64(year);
}

/// An optional `timezone` argument; `*null` when it is given and null.
Result<ZoneInfo> ZoneArgument(const EvalArgs& a, size_t i, bool* null, int code = 40517) {
  if (!a.has(i)) return ZoneInfo();
  if (a.nullish(i)) {
    *null = true;
    return ZoneInfo();
  }
  if (!a.view(i).IsString())
    return LocationError(code, "timezone must evaluate to a string, found " + TypeText(a[i]));
  return ZoneInfo::Find(a.view(i).String());
}

constexpr std::string_view kToStringNames[] = {"date", "format", "timezone", "onNull"};
Result<Value> DateToString(const EvalArgs& a) {
  bool null = a.nullish(0);
  MAYFLY_TRY(ZoneInfo zone, ZoneArgument(a, 2, &null));
  std::string_view format = zone.utc() ? "%Y-%m-%dT%H:%M:%S.%LZ" : "%Y-%m-%dT%H:%M:%S.%L";
  std::string given;
  if (a.has(1)) {
    if (a.nullish(1)) {
      null = true;
    } else if (!a.view(1).IsString()) {
      return LocationError(18533, "$dateToString requires that 'format' be a string, found: " +
                                      TypeText(a[1]) + " with value " + ValueText(a[1]));
    } else {
      given = a.view(1).String();
      format = given;
      MAYFLY_TRY(CheckDateFormat(format, false));
    }
  }
  if (null) return a.nullish(0) && a.has(3) ? a[3] : Value::Null();
  std::optional<Instant> t = CoerceToDate(a.view(0));
  if (!t)
    return LocationError(16006, "can't convert from BSON type " + TypeText(a[0]) + " to Date");
  MAYFLY_TRY(std::string text, FormatDate(*t, zone, format));
  return Value::String(text);
}

constexpr std::string_view kFromStringNames[] = {"dateString", "format", "timezone", "onError",
                                                 "onNull"};
Result<Value> DateFromString(const EvalArgs& a) {
  // An invalid format or time zone is always an error, whatever the input.
  if (a.has(1) && !a.nullish(1) && !a.view(1).IsString())
    return LocationError(40684, "$dateFromString requires that 'format' be a string, found: " +
                                    TypeText(a[1]) + " with value " + ValueText(a[1]));
  if (a.has(1) && !a.nullish(1)) {
    MAYFLY_TRY(CheckDateFormat(a.view(1).String(), true));
  }
  bool null = false;
  MAYFLY_TRY(ZoneInfo zone, ZoneArgument(a, 2, &null));
  if (a.nullish(0)) return a.has(4) ? a[4] : Value::Null();
  if (!a.view(0).IsString()) {
    if (a.has(3)) return a[3];
    return Error{ErrorCode::kConversionFailure,
                 "$dateFromString requires that 'dateString' be a string, found: " +
                     TypeText(a[0]) + " with value " + ValueText(a[0])};
  }
  if (null || (a.has(1) && a.nullish(1))) return Value::Null();
  const ZoneInfo* given = a.has(2) ? &zone : nullptr;
  Result<Instant> t = a.has(1) ? ParseDateByFormat(a.view(0).String(), a.view(1).String(), given)
                               : ParseDateText(a.view(0).String(), given);
  if (t) return Value::Date(t.value());
  if (a.has(3) && t.error().code == ErrorCode::kConversionFailure) return a[3];
  return t.error();
}

constexpr std::string_view kToPartsNames[] = {"date", "timezone", "iso8601"};
Result<Value> DateToParts(const EvalArgs& a) {
  bool null = a.nullish(0);
  MAYFLY_TRY(ZoneInfo zone, ZoneArgument(a, 1, &null));
  if (a.has(2) && !a.nullish(2) && !a.view(2).Is(BsonType::kBool))
    return LocationError(40521, "iso8601 must evaluate to a bool, found " + TypeText(a[2]));
  if (null || (a.has(2) && a.nullish(2))) return Value::Null();
  std::optional<Instant> t = CoerceToDate(a.view(0));
  if (!t)
    return LocationError(16006, "can't convert from BSON type " + TypeText(a[0]) + " to Date");
  CivilTime c = CivilFromMillis(zone.ToLocal(t->millis));
  BsonDocument doc = BuildBson([&](BsonBuilder& b) {  // bounded: a few numbers
    if (a.has(2) && a.view(2).Bool()) {
      int64_t year;
      int week;
      IsoWeek(c, &year, &week);
      b.Append("isoWeekYear", static_cast<int32_t>(year)).Append("isoWeek", week);
      b.Append("isoDayOfWeek", (Weekday(c) + 6) % 7 + 1);
    } else {
      b.Append("year", static_cast<int32_t>(c.year)).Append("month", c.month).Append("day", c.day);
    }
    b.Append("hour", c.hour)
        .Append("minute", c.minute)
        .Append("second", c.second)
        .Append("millisecond", c.millis);
  });
  return Value::Document(std::move(doc.bytes()));
}

constexpr std::string_view kFromPartsNames[] = {"year",    "month",        "day",     "isoWeekYear",
                                                "isoWeek", "isoDayOfWeek", "hour",    "minute",
                                                "second",  "millisecond",  "timezone"};
Result<Value> DateFromParts(const EvalArgs& a) {
  bool iso = a.has(3);
  if (!a.has(0) && !a.has(3))
    return LocationError(40516,
                         "$dateFromParts requires either 'year' or 'isoWeekYear' to be present");
  if (iso && (a.has(0) || a.has(1) || a.has(2)))
    return LocationError(40489,
                         "$dateFromParts does not allow mixing natural dates with ISO dates");
  if (!iso && (a.has(4) || a.has(5)))
    return LocationError(40525,
                         "$dateFromParts does not allow mixing ISO dates with natural dates");
  static constexpr int64_t kDefaults[] = {1970, 1, 1, 1970, 1, 1, 0, 0, 0, 0};
  int64_t n[10];
  for (size_t i = 0; i < 10; ++i) {
    n[i] = kDefaults[i];
    if (!a.has(i)) continue;
    if (a.nullish(i)) return Value::Null();
    std::string name = "'" + std::string(kFromPartsNames[i]) + "'";
    if (!a.view(i).IsNumber() || !a.view(i).ExactInt64(&n[i]))
      return LocationError(40515, name + " must evaluate to an integer, found " + TypeText(a[i]) +
                                      " with value " + ValueText(a[i]));
    if ((i == 0 || i == 3) && (n[i] < 1 || n[i] > 9999))
      return LocationError(i == 0 ? 40523 : 31095,
                           name + " must evaluate to an integer in the range 1 to 9999, found " +
                               std::to_string(n[i]));
    bool wide =
        i >= 8;  // seconds and milliseconds may be any 64-bit number that keeps the date in range
    if (!wide && (n[i] < -32768 || n[i] > 32767))
      return LocationError(31034,
                           name + " must evaluate to a value in the range [-32768, 32767]; value " +
                               std::to_string(n[i]) + " is not in range");
    if (wide && std::abs(static_cast<double>(n[i])) > 1e15)
      return LocationError(31034, name + " is out of range: " + std::to_string(n[i]));
  }
  bool null = false;
  MAYFLY_TRY(ZoneInfo zone, ZoneArgument(a, 10, &null));
  if (null) return Value::Null();
  int64_t local;
  if (iso) {
    local = IsoYearStart(n[3]) + ((n[4] - 1) * 7 + n[5] - 1) * 86400000;
  } else {
    // Months out of range carry into the year, days into the month.
    int64_t months = n[0] * 12 + n[1] - 1;
    int64_t year = months / 12 - (months % 12 < 0), month = months - year * 12 + 1;
    local = (DaysFromCivil(year, static_cast<int>(month), 1) + n[2] - 1) * 86400000;
  }
  local += n[6] * 3600000 + n[7] * 60000 + n[8] * 1000 + n[9];
  return Value::Date({zone.ToUtc(local)});
}

Result<Value> TimestampPart(const EvalArgs& a, bool seconds) {
  if (a.nullish(0)) return Value::Null();
  if (!a.view(0).Is(BsonType::kTimestamp))
    return LocationError(
        seconds ? 5687301 : 5687302,
        std::string(a.def.name) + " requires a timestamp argument, found: " + TypeText(a[0]));
  uint64_t t = a.view(0).Timestamp();
  return Value::Int64(static_cast<int64_t>(seconds ? t >> 32 : t & 0xffffffff));
}
Result<Value> TsSecond(const EvalArgs& a) { return TimestampPart(a, true); }
Result<Value> TsIncrement(const EvalArgs& a) { return TimestampPart(a, false); }

#define DATE_PART(NAME, FUNCTION, TEXT, EXAMPLE)                                               \
  {                                                                                            \
    .name = NAME, .eval = &FUNCTION, .names = kPartNames, .required = 1, .object_code = 40534, \
    .unknown_code = 40535, .missing_code = 40539, .positional_too = true, .text = TEXT,        \
    .example = EXAMPLE                                                                         \
  }

constexpr OperatorDef kDateOps[] = {
    {.name = "$dateFromParts",
     .eval = &DateFromParts,
     .names = kFromPartsNames,
     .object_code = 40519,
     .unknown_code = 40518,
     .text = "A date from its parts.",
     .example =
         R"({"$dateFromParts": {"year": 2030, "month": 13, "day": 1, "hour": 10}} => {"$date": "2031-01-01T10:00:00Z"})"},
    {.name = "$dateFromString",
     .eval = &DateFromString,
     .names = kFromStringNames,
     .required = 1,
     .object_code = 40540,
     .unknown_code = 40541,
     .missing_code = 40542,
     .text = "A date from text.",
     .example =
         R"({"$dateFromString": {"dateString": "31.1.2030", "format": "%d.%m.%Y", "timezone": "Europe/Berlin"}} => {"$date": "2030-01-30T23:00:00Z"})"},
    {.name = "$dateToParts",
     .eval = &DateToParts,
     .names = kToPartsNames,
     .required = 1,
     .object_code = 40524,
     .unknown_code = 40520,
     .missing_code = 40522,
     .text = "The parts of a date.",
     .example =
         R"({"$dateToParts": {"date": {"$date": "2030-01-31T10:20:30.456Z"}, "iso8601": true}} => {"isoWeekYear": 2030, "isoWeek": 5, "isoDayOfWeek": 4, "hour": 10, "minute": 20, "second": 30, "millisecond": 456})"},
    {.name = "$dateToString",
     .eval = &DateToString,
     .names = kToStringNames,
     .required = 1,
     .object_code = 18629,
     .unknown_code = 18534,
     .missing_code = 18628,
     .text = "A date as text.",
     .example =
         R"({"$dateToString": {"date": {"$date": "2030-07-31T10:20:30.456Z"}, "format": "%d/%m/%Y %H:%M %z", "timezone": "America/New_York"}} => "31/07/2030 06:20 -0400")"},
    DATE_PART("$dayOfMonth", Day, "Day of the month, from 1.",
              R"({"$dayOfMonth": {"$date": "2030-07-31T10:20:30.456Z"}} => 31)"),
    DATE_PART("$dayOfWeek", WeekDay, "Day of the week, 1 (Sunday) to 7.",
              R"({"$dayOfWeek": {"$date": "2030-07-31T10:20:30.456Z"}} => 4)"),
    DATE_PART("$dayOfYear", YearDay, "Day of the year, from 1.",
              R"({"$dayOfYear": {"$date": "2030-12-31T10:20:30.456Z"}} => 365)"),
    DATE_PART(
        "$hour", Hour, "Hour, 0 to 23.",
        R"({"$hour": {"date": {"$date": "2030-07-31T10:20:30.456Z"}, "timezone": "+05:30"}} => 15)"),
    DATE_PART("$isoDayOfWeek", IsoWeekDay, "Day of the week, 1 (Monday) to 7.",
              R"({"$isoDayOfWeek": {"$date": "2030-07-31T10:20:30.456Z"}} => 3)"),
    DATE_PART("$isoWeek", IsoWeekOf, "Week of ISO 8601, 1 to 53.",
              R"({"$isoWeek": {"$date": "2021-01-03T00:00:00Z"}} => 53)"),
    DATE_PART("$isoWeekYear", IsoWeekYear, "Year of the ISO 8601 week.",
              R"({"$isoWeekYear": {"$date": "2021-01-03T00:00:00Z"}} => {"$numberLong": "2020"})"),
    DATE_PART("$millisecond", Millisecond, "Milliseconds, 0 to 999.",
              R"({"$millisecond": {"$date": "2030-07-31T10:20:30.456Z"}} => 456)"),
    DATE_PART("$minute", Minute, "Minute, 0 to 59.",
              R"({"$minute": {"$date": "2030-07-31T10:20:30.456Z"}} => 20)"),
    DATE_PART("$month", Month, "Month, 1 to 12.",
              R"({"$month": [{"$date": "2030-07-31T10:20:30.456Z"}]} => 7)"),
    DATE_PART("$second", Second, "Second, 0 to 59.",
              R"({"$second": {"$date": "2030-07-31T10:20:30.456Z"}} => 30)"),
    {.name = "$tsIncrement",
     .min_args = 1,
     .max_args = 1,
     .eval = &TsIncrement,
     .text = "Increment of a timestamp.",
     .example =
         R"({"$tsIncrement": {"$literal": {"$timestamp": {"t": 5, "i": 7}}}} => {"$numberLong": "7"})"},
    {.name = "$tsSecond",
     .min_args = 1,
     .max_args = 1,
     .eval = &TsSecond,
     .text = "Seconds of a timestamp.",
     .example =
         R"({"$tsSecond": {"$literal": {"$timestamp": {"t": 5, "i": 7}}}} => {"$numberLong": "5"})"},
    DATE_PART("$week", Week, "Week of the year, 0 to 53, beginning on Sundays.",
              R"({"$week": {"$date": "2030-01-06T00:00:00Z"}} => 1)"),
    DATE_PART("$year", Year, "Year.",
              R"({"$year": {"$date": "2030-07-31T10:20:30.456Z"}} => 2030)"),
};
#undef DATE_PART

}  // namespace

std::span<const OperatorDef> DateOperators() { return kDateOps; }

}  // namespace mayfly
