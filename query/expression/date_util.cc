#include "query/expression/date_util.h"

#include <cctz/civil_time.h>
#include <cctz/time_zone.h>

#include <array>
#include <cctype>
#include <memory>
#include <unordered_map>

#include "query/expression/operator.h"
#include "query/expression/zone_names.h"

namespace mayfly {
namespace {

constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};

int64_t FloorMod(int64_t a, int64_t b) { return (a % b + b) % b; }

/// The Monday of a year's first week, in days.
int64_t IsoYearStartDay(int64_t year) {
  const int64_t fourth = DaysFromCivil(year, 1, 4);  // always in week 1
  return fourth - (DayOfWeek(fourth) + 6) % 7;
}

}  // namespace

int64_t MillisOf(int64_t n, int64_t unit, int64_t rest) {
  const __int128 millis = static_cast<__int128>(n) * unit + rest;
  if (millis > INT64_MAX) return INT64_MAX;
  if (millis < INT64_MIN) return INT64_MIN;
  return static_cast<int64_t>(millis);
}

// Days and civil dates: the well-known shift of the year's start to March, which puts the leap day
// last.
int64_t DaysFromCivil(int64_t year, int month, int day) {
  year -= month <= 2;
  int64_t era = FloorDiv(year, 400), year_of_era = year - era * 400;
  int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

CivilTime CivilFromMillis(int64_t millis) {
  CivilTime t;
  int64_t days = FloorDiv(millis, kDayMillis), rest = FloorMod(millis, kDayMillis);
  int64_t z = days + 719468, era = FloorDiv(z, 146097), day_of_era = z - era * 146097;
  int64_t year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  int64_t shifted = (5 * day_of_year + 2) / 153;
  t.day = static_cast<int>(day_of_year - (153 * shifted + 2) / 5 + 1);
  t.month = static_cast<int>(shifted < 10 ? shifted + 3 : shifted - 9);
  t.year = year_of_era + era * 400 + (t.month <= 2);
  t.millis = static_cast<int>(rest % 1000);
  t.second = static_cast<int>(rest / 1000 % 60);
  t.minute = static_cast<int>(rest / 60000 % 60);
  t.hour = static_cast<int>(rest / 3600000);
  return t;
}

int64_t MillisFromCivil(const CivilTime& t) {
  return MillisOf(
      DaysFromCivil(t.year, t.month, t.day), kDayMillis,
      t.hour * int64_t{3600000} + t.minute * int64_t{60000} + t.second * int64_t{1000} + t.millis);
}

int DaysInMonth(int64_t year, int month) {
  static constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (month == 2 && ((year % 4 == 0 && year % 100 != 0) || year % 400 == 0)) return 29;
  return kDays[month - 1];
}

int DayOfWeek(int64_t days) { return static_cast<int>(((days + 4) % 7 + 7) % 7); }

int DayOfYear(const CivilTime& t) {
  return static_cast<int>(DaysFromCivil(t.year, t.month, t.day) - DaysFromCivil(t.year, 1, 1)) + 1;
}

int64_t IsoYearStart(int64_t year) { return MillisOf(IsoYearStartDay(year), kDayMillis, 0); }

void IsoWeek(const CivilTime& t, int64_t* year, int* week) {
  const int64_t day = DaysFromCivil(t.year, t.month, t.day);
  *year = t.year;
  if (day < IsoYearStartDay(t.year))
    --*year;
  else if (day >= IsoYearStartDay(t.year + 1))
    ++*year;
  *week = static_cast<int>((day - IsoYearStartDay(*year)) / 7) + 1;
}

Result<ZoneInfo> ZoneInfo::Find(std::string_view name) {
  ZoneInfo zone;
  auto unknown = [&] {
    return LocationError(40485, "unrecognized time zone identifier: \"" + std::string(name) + "\"");
  };
  if (name.empty()) return unknown();
  if (name == "UTC" || name == "GMT" || name == "Z") return zone;
  if (name[0] == '+' || name[0] == '-') {
    std::string digits;
    for (size_t i = 1; i < name.size(); ++i) {
      if (name[i] == ':' && i == 3 && name.size() == 6) continue;
      if (!std::isdigit(static_cast<unsigned char>(name[i]))) return unknown();
      digits += name[i];
    }
    if (digits.size() != 2 && digits.size() != 4) return unknown();
    int64_t minutes = std::stoi(digits.substr(0, 2)) * 60 +
                      (digits.size() == 4 ? std::stoi(digits.substr(2)) : 0);
    zone.fixed_ = minutes * 60000 * (name[0] == '-' ? -1 : 1);
    return zone;
  }
  // The library remembers every name that it is asked for: only those of zones get there.
  if (!IsZoneName(name)) return unknown();
  // hashed: by names of zones that exist
  thread_local std::unordered_map<std::string, cctz::time_zone> cache;
  auto it = cache.find(std::string(name));
  if (it == cache.end()) {
    cctz::time_zone made;
    if (!cctz::load_time_zone(std::string(name), &made)) return unknown();
    it = cache.emplace(std::string(name), made).first;
  }
  zone.zone_ = &it->second;
  return zone;
}

int64_t ZoneInfo::OffsetMillis(int64_t utc) const {
  if (!zone_) return fixed_;
  const cctz::time_point<cctz::seconds> at{cctz::seconds(FloorDiv(utc, 1000))};
  return int64_t{static_cast<const cctz::time_zone*>(zone_)->lookup(at).offset} * 1000;
}

int64_t ZoneInfo::ToUtc(int64_t local) const {
  if (!zone_) return MillisOf(local, 1, -fixed_);
  // A skipped hour is read with the offset before the gap (so it lands behind it), a repeated one
  // as its first pass.
  const int64_t seconds = FloorDiv(local, 1000);
  const auto found =
      static_cast<const cctz::time_zone*>(zone_)->lookup(cctz::civil_second(1970, 1, 1) + seconds);
  return MillisOf(found.pre.time_since_epoch().count(), 1000, FloorMod(local, 1000));
}

std::optional<Instant> CoerceToDate(BsonValue v) {
  switch (v.type()) {
    case BsonType::kDate:
      return v.Date();
    case BsonType::kTimestamp:
      return Instant{static_cast<int64_t>(v.Timestamp() >> 32) * 1000};
    case BsonType::kObjectId: {
      uint32_t seconds = 0;
      for (int i = 0; i < 4; ++i) seconds = seconds << 8 | static_cast<uint8_t>(v.ObjectId()[i]);
      return Instant{int64_t{seconds} * 1000};
    }
    default:
      return std::nullopt;
  }
}

// --- reading ---

namespace {

Error ParseFailure(std::string_view text, std::string_view why) {
  return Error{ErrorCode::kConversionFailure,
               "Error parsing date string '" + std::string(text) + "'; " + std::string(why)};
}

/// A cursor over the text of a date.
struct Reader {
  std::string_view s;
  size_t i = 0;
  bool done() const { return i >= s.size(); }
  char peek(size_t ahead = 0) const { return i + ahead < s.size() ? s[i + ahead] : '\0'; }
  bool Take(char c) { return peek() == c && !done() ? (++i, true) : false; }
  void Spaces() {
    while (peek() == ' ') ++i;
  }
  size_t DigitsAhead() const {
    size_t n = 0;
    while (std::isdigit(static_cast<unsigned char>(peek(n)))) ++n;
    return n;
  }
  /// Between `least` and `most` digits; false if there are fewer.
  bool Number(size_t least, size_t most, int64_t* out) {
    size_t n = std::min(DigitsAhead(), most);
    if (n < least) return false;
    *out = 0;
    while (n-- > 0) *out = *out * 10 + (s[i++] - '0');
    return true;
  }
  bool Number(size_t least, size_t most, int* out) {
    int64_t v;
    if (!Number(least, most, &v)) return false;
    *out = static_cast<int>(v);
    return true;
  }
  /// A name of a month, whole or its first three letters.
  bool Month(int* out) {
    for (int m = 0; m < 12; ++m)
      for (std::string_view name : {kMonths[m], kMonths[m].substr(0, 3)}) {
        if (s.size() - i < name.size()) continue;
        bool same = true;
        for (size_t k = 0; k < name.size(); ++k)
          same = same && std::tolower(static_cast<unsigned char>(s[i + k])) ==
                             std::tolower(static_cast<unsigned char>(name[k]));
        if (!same) continue;
        i += name.size();
        *out = m + 1;
        return true;
      }
    return false;
  }
  /// The word that is next, if it is one of `words` (in any case): its place among them.
  template <size_t N>
  std::optional<size_t> Word(const std::string_view (&words)[N]) {
    size_t n = 0;
    while (std::isalpha(static_cast<unsigned char>(peek(n)))) ++n;
    for (size_t w = 0; w < N; ++w) {
      if (words[w].size() != n) continue;
      bool same = true;
      for (size_t k = 0; k < n; ++k)
        same = same && std::tolower(static_cast<unsigned char>(s[i + k])) == words[w][k];
      if (!same) continue;
      i += n;
      return w;
    }
    return std::nullopt;
  }
  /// "Thu, ", "thursday": says nothing that the date does not.
  void Weekday() {
    static constexpr std::string_view kDays[] = {
        "sun",    "mon",    "tue",     "wed",       "thu",      "fri",    "sat",
        "sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"};
    if (!Word(kDays)) return;
    Take(',');
    Spaces();
  }
  /// "am" or "pm" behind an hour of 1 to 12; false for another hour.
  bool HalfOfDay(int* hour, bool* found) {
    static constexpr std::string_view kHalves[] = {"am", "pm"};
    const size_t before = i;
    Spaces();
    auto half = Word(kHalves);
    *found = half.has_value();
    if (!half) {
      i = before;
      return true;
    }
    if (*hour < 1 || *hour > 12) return false;
    *hour = *hour % 12 + (*half == 1 ? 12 : 0);
    return true;
  }
  /// What is left as a time zone: "Z", an offset, a name, the usual abbreviation of one, or
  /// "GMT+0200".
  Result<ZoneInfo> Zone() {
    static constexpr std::string_view kShort[] = {"est",  "edt", "cst",  "cdt", "mst",
                                                  "mdt",  "pst", "pdt",  "bst", "cet",
                                                  "cest", "eet", "eest", "jst"};
    static constexpr std::string_view kOffsets[] = {"-05", "-04", "-06", "-05", "-07",
                                                    "-06", "-08", "-07", "+01", "+01",
                                                    "+02", "+02", "+03", "+09"};
    static constexpr std::string_view kUtc[] = {"gmt", "utc"};
    const size_t start = i;
    if (auto zone = Word(kShort); zone && (done() || peek() == ' '))
      return ZoneInfo::Find(kOffsets[*zone]);
    i = start;
    const bool offset = Word(kUtc) && (peek() == '+' || peek() == '-');
    if (!offset) i = start;
    const size_t name_start = i;
    while (!done() && peek() != ' ') ++i;
    std::string_view name = s.substr(name_start, i - name_start);
    if (name == "z") name = "Z";
    return ZoneInfo::Find(name);
  }
};

bool ReadClock(Reader& in, CivilTime& t) {
  bool half;
  if (!in.Number(1, 2, &t.hour)) return false;
  // Hours, minutes and seconds may also have dots between them.
  if (in.peek() != ':' && in.peek() != '.') return in.HalfOfDay(&t.hour, &half) && half;
  ++in.i;
  if (!in.Number(2, 2, &t.minute)) return false;
  if (in.Take(':') || in.Take('.')) {
    if (!in.Number(2, 2, &t.second)) return false;
    if (in.Take('.') || in.Take(',')) {
      size_t n = in.DigitsAhead();
      if (n == 0) return false;
      int scale = 100;
      for (; n > 0; --n, ++in.i, scale /= 10) t.millis += (in.peek() - '0') * scale;
    }
  }
  return in.HalfOfDay(&t.hour, &half);
}

bool InRange(const CivilTime& t) {
  return t.month >= 1 && t.month <= 12 && t.day >= 1 && t.day <= DaysInMonth(t.year, t.month) &&
         t.hour <= 23 && t.minute <= 59 && t.second <= 59;
}

}  // namespace

Result<Instant> ParseDateText(std::string_view text, const ZoneInfo* zone) {
  Reader in{text};
  in.Spaces();
  CivilTime t;
  if (in.Take('@')) {  // seconds since 1970
    const bool negative = in.Take('-');
    int64_t seconds;
    if (!in.Number(1, 12, &seconds) || !in.done())
      return ParseFailure(text, "Unexpected character");
    return Instant{(negative ? -seconds : seconds) * 1000};
  }
  in.Weekday();
  size_t digits = in.DigitsAhead();
  if (digits == 0) {
    // "July 4, 2017", "Jul 4 2017"
    if (!in.Month(&t.month)) return ParseFailure(text, "Unexpected character");
    in.Spaces();
    if (!in.Number(1, 2, &t.day))
      return ParseFailure(text, "an incomplete date/time string has been found");
    for (std::string_view suffix : {"st", "nd", "rd", "th"})
      if (in.s.substr(in.i).starts_with(suffix)) {
        in.i += 2;
        break;
      }
    in.Take(',');
    in.Spaces();
    if (!in.Number(4, 4, &t.year))
      return ParseFailure(text, "an incomplete date/time string has been found");
  } else if (digits == 8) {
    in.Number(4, 4, &t.year);
    in.Number(2, 2, &t.month);
    in.Number(2, 2, &t.day);
  } else if (digits == 4) {
    in.Number(4, 4, &t.year);
    char separator = in.peek();
    if (separator != '-' && separator != '/')
      return ParseFailure(text, "an incomplete date/time string has been found");
    ++in.i;
    if (!in.Number(1, 2, &t.month)) return ParseFailure(text, "Unexpected character");
    if (in.Take(separator) && !in.Number(1, 2, &t.day))
      return ParseFailure(text, "Unexpected character");
  } else {
    // "12/31/2030", "31-12-2030", "31 December 2030"
    int first, second;
    if (!in.Number(1, 2, &first)) return ParseFailure(text, "Unexpected character");
    if (in.Take('/')) {
      if (!in.Number(1, 2, &second) || !in.Take('/') || !in.Number(4, 4, &t.year))
        return ParseFailure(text, "Unexpected character");
      t.month = first;
      t.day = second;
    } else if (in.Take('-') || in.Take('.')) {
      if (in.Month(&second) ? false : !in.Number(1, 2, &second))
        return ParseFailure(text, "Unexpected character");
      if (!in.Take('-') && !in.Take('.')) return ParseFailure(text, "Unexpected character");
      if (!in.Number(4, 4, &t.year)) return ParseFailure(text, "Unexpected character");
      t.day = first;
      t.month = second;
    } else {
      in.Spaces();
      if (!in.Month(&t.month)) return ParseFailure(text, "Unexpected character");
      in.Spaces();
      if (!in.Number(4, 4, &t.year)) return ParseFailure(text, "Unexpected character");
      t.day = first;
    }
  }
  if (in.Take('T') || in.Take('t') || in.peek() == ' ') {
    in.Spaces();
    if (std::isdigit(static_cast<unsigned char>(in.peek())) && !ReadClock(in, t))
      return ParseFailure(text, "Unexpected character");
  }
  in.Spaces();
  ZoneInfo own;
  bool zoned = false;
  if (!in.done()) {
    Result<ZoneInfo> found = in.Zone();
    if (!found) return ParseFailure(text, "Unexpected character");
    own = found.value();
    zoned = true;
    in.Spaces();
  }
  if (!in.done()) return ParseFailure(text, "Unexpected character");
  if (!InRange(t)) return ParseFailure(text, "The parsed date was invalid");
  if (zoned && zone)
    return Error{ErrorCode::kConversionFailure,
                 "you cannot pass in a date/time string with time zone information ('" +
                     std::string(text) + "') together with a timezone argument"};
  int64_t local = MillisFromCivil(t);
  return Instant{(zone ? *zone : own).ToUtc(local)};
}

Result<void> CheckDateFormat(std::string_view format, bool parsing) {
  std::string_view known = parsing ? "dGHjLmMSuVYzZbB%" : "dGHjLmMSuUVwYzZbB%";
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    if (++i == format.size()) return LocationError(18535, "Unmatched '%' at end of format string");
    if (known.find(format[i]) == known.npos)
      return LocationError(
          18536, "Invalid format character '%" + std::string(1, format[i]) + "' in format string");
  }
  return Ok();
}

namespace {

/// The values that a format has found in a text so far.
struct FormattedDate {
  CivilTime t;
  std::optional<int64_t> iso_year, day_of_year;
  int64_t iso_week = 1, iso_day = 1;
  ZoneInfo own;
  bool zoned = false, iso = false, has_year = false, has_month = false, has_day = false;

  bool Read(char specifier, Reader& in);
  bool ReadFraction(Reader& in);
  bool ReadMinutes(Reader& in);
  bool ReadZone(Reader& in);
  bool complete() const { return iso || (has_year && (day_of_year || (has_month && has_day))); }
  /// Milliseconds of the day and time that were found, without a zone; nullopt: there is no such
  /// day or time.
  std::optional<int64_t> Local();
};

/// A fraction of a second: "5" is half of one.
bool FormattedDate::ReadFraction(Reader& in) {
  const size_t digits = std::min<size_t>(in.DigitsAhead(), 3);
  if (!in.Number(1, 3, &t.millis)) return false;
  for (size_t d = digits; d < 3; ++d) t.millis *= 10;
  return true;
}

/// The distance from UTC in minutes: what %z calls +0445 is +285.
bool FormattedDate::ReadMinutes(Reader& in) {
  const bool west = in.peek() == '-';
  if (!in.Take('-')) in.Take('+');
  int64_t n = 0;
  if (!in.Number(1, 5, &n)) return false;
  own = ZoneInfo::OfMinutes(west ? -n : n);
  return true;
}

bool FormattedDate::ReadZone(Reader& in) {
  Result<ZoneInfo> found = [&]() -> Result<ZoneInfo> {
    if (in.peek() != '+' && in.peek() != '-') return in.Zone();
    // An offset ends with its digits, whatever follows.
    const size_t start = in.i++;
    while (std::isdigit(static_cast<unsigned char>(in.peek())) || in.peek() == ':') ++in.i;
    return ZoneInfo::Find(in.s.substr(start, in.i - start));
  }();
  if (!found) return false;
  own = found.value();
  return true;
}

bool FormattedDate::Read(char specifier, Reader& in) {
  int64_t n = 0;
  bool ok = true;
  switch (specifier) {
    case 'd':
      has_day = true;
      return in.Number(1, 2, &t.day);
    case 'm':
      has_month = true;
      return in.Number(1, 2, &t.month);
    case 'Y':
      has_year = true;
      return in.Number(4, 4, &t.year);
    case 'H':
      return in.Number(1, 2, &t.hour);
    case 'M':
      return in.Number(1, 2, &t.minute);
    case 'S':
      return in.Number(1, 2, &t.second);
    case 'L':
      return ReadFraction(in);
    case 'j':
      ok = in.Number(1, 3, &n);
      day_of_year = n;
      return ok;
    case 'G':
      ok = in.Number(4, 4, &n);
      iso_year = n;
      iso = true;
      return ok;
    case 'V':
      iso = true;
      return in.Number(1, 2, &iso_week);
    case 'u':
      iso = true;
      return in.Number(1, 1, &iso_day);
    case 'b':
    case 'B':
      has_month = true;
      return in.Month(&t.month);
    case '%':
      return in.Take('%');
    case 'z':
      zoned = true;
      return ReadZone(in);
    case 'Z':
      zoned = true;
      return ReadMinutes(in);
    default:
      return true;  // refused before
  }
}

std::optional<int64_t> FormattedDate::Local() {
  if (iso) {
    if (!iso_year || iso_week < 1 || iso_week > 53 || iso_day < 1 || iso_day > 7 || t.hour > 23 ||
        t.minute > 59 || t.second > 59)
      return std::nullopt;
    const int64_t clock =
        t.hour * int64_t{3600000} + t.minute * int64_t{60000} + t.second * int64_t{1000} + t.millis;
    return IsoYearStart(*iso_year) + ((iso_week - 1) * 7 + iso_day - 1) * kDayMillis + clock;
  }
  if (day_of_year) {
    CivilTime first =
        CivilFromMillis((DaysFromCivil(t.year, 1, 1) + *day_of_year - 1) * kDayMillis);
    t.month = first.month;
    t.day = first.day;
    if (first.year != t.year) return std::nullopt;
  }
  if (!InRange(t)) return std::nullopt;
  return MillisFromCivil(t);
}

}  // namespace

Result<Instant> ParseDateByFormat(std::string_view text, std::string_view format,
                                  const ZoneInfo* zone) {
  MAYFLY_TRY(CheckDateFormat(format, true));
  Reader in{text};
  FormattedDate date;
  for (size_t i = 0; i < format.size(); ++i) {
    const bool ok = format[i] == '%' ? date.Read(format[++i], in) : in.Take(format[i]);
    if (!ok)
      return ParseFailure(text, "the string does not fit the format '" + std::string(format) + "'");
  }
  if (!in.done()) return ParseFailure(text, "Trailing data");
  if (!date.complete())
    return Error{ErrorCode::kConversionFailure,
                 "an incomplete date/time string has been found, with elements missing: \"" +
                     std::string(text) + "\""};
  const std::optional<int64_t> local = date.Local();
  if (!local) return ParseFailure(text, "The parsed date was invalid");
  if (date.zoned && zone)
    return Error{ErrorCode::kConversionFailure,
                 "you cannot pass in a date/time string with time zone information ('" +
                     std::string(text) + "') together with a timezone argument"};
  return Instant{(zone ? *zone : date.own).ToUtc(*local)};
}

// --- writing ---

namespace {
void AppendPadded(std::string& out, int64_t n, int width) {
  std::string text = std::to_string(n);
  if (static_cast<int>(text.size()) < width)
    out.append(static_cast<size_t>(width) - text.size(), '0');
  out += text;
}
}  // namespace

std::string FormatIsoDate(Instant t) {
  CivilTime c = CivilFromMillis(t.millis);
  std::string out;
  AppendPadded(out, c.year, 4);
  out += '-';
  AppendPadded(out, c.month, 2);
  out += '-';
  AppendPadded(out, c.day, 2);
  out += 'T';
  AppendPadded(out, c.hour, 2);
  out += ':';
  AppendPadded(out, c.minute, 2);
  out += ':';
  AppendPadded(out, c.second, 2);
  out += '.';
  AppendPadded(out, c.millis, 3);
  out += 'Z';
  return out;
}

Result<std::string> FormatDate(Instant t, const ZoneInfo& zone, std::string_view format) {
  MAYFLY_TRY(CheckDateFormat(format, false));
  CivilTime c = CivilFromMillis(zone.ToLocal(t.millis));
  int64_t days = DaysFromCivil(c.year, c.month, c.day);
  int64_t iso_year;
  int iso_week;
  IsoWeek(c, &iso_year, &iso_week);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    switch (format[++i]) {
      case '%':
        out += '%';
        break;
      case 'Y':
        if (c.year < 0 || c.year > 9999)
          return LocationError(18537,
                               "$dateToString is only defined on year 0-9999, tried to use year " +
                                   std::to_string(c.year));
        AppendPadded(out, c.year, 4);
        break;
      case 'm':
        AppendPadded(out, c.month, 2);
        break;
      case 'd':
        AppendPadded(out, c.day, 2);
        break;
      case 'H':
        AppendPadded(out, c.hour, 2);
        break;
      case 'M':
        AppendPadded(out, c.minute, 2);
        break;
      case 'S':
        AppendPadded(out, c.second, 2);
        break;
      case 'L':
        AppendPadded(out, c.millis, 3);
        break;
      case 'j':
        AppendPadded(out, DayOfYear(c), 3);
        break;
      case 'w':
        AppendPadded(out, DayOfWeek(days) + 1, 1);
        break;
      case 'u':
        AppendPadded(out, (DayOfWeek(days) + 6) % 7 + 1, 1);
        break;
      case 'U':
        AppendPadded(out, (DayOfYear(c) - 1 + 7 - DayOfWeek(days)) / 7, 2);
        break;
      case 'G':
        AppendPadded(out, iso_year, 4);
        break;
      case 'V':
        AppendPadded(out, iso_week, 2);
        break;
      case 'b':
        out += kMonths[c.month - 1].substr(0, 3);
        break;
      case 'B':
        out += kMonths[c.month - 1];
        break;
      case 'z':
      case 'Z': {
        int64_t minutes = zone.OffsetMillis(t.millis) / 60000;
        if (format[i] == 'Z') {
          out += std::to_string(minutes);
        } else {
          out += minutes < 0 ? '-' : '+';
          AppendPadded(out, std::abs(minutes) / 60, 2);
          AppendPadded(out, std::abs(minutes) % 60, 2);
        }
        break;
      }
    }
  }
  return out;
}

}  // namespace mayfly
