#include "query/plan/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "protocol/bson_compare.h"
#include "protocol/decimal128.h"
#include "protocol/hex.h"
#include "protocol/object_id.h"
#include "query/expression/pace.h"
#include "query/expression/parse_work.h"

namespace mayfly {
namespace {

Value MinKey() { return Value::Borrow(BsonValue(BsonType::kMinKey, "", 0)); }
Value MaxKey() { return Value::Borrow(BsonValue(BsonType::kMaxKey, "", 0)); }

/// <0 when the lower end of `a` lies before that of `b`.
int CompareLow(const Interval& a, const Interval& b) {
  int c = CompareValues(a.low.view(), b.low.view());
  if (c != 0) return c;
  return static_cast<int>(b.low_inclusive) - static_cast<int>(a.low_inclusive);
}
bool LowFirst(const Interval& a, const Interval& b) { return CompareLow(a, b) < 0; }
int CompareHigh(const Interval& a, const Interval& b) {
  int c = CompareValues(a.high.view(), b.high.view());
  if (c != 0) return c;
  return static_cast<int>(a.high_inclusive) - static_cast<int>(b.high_inclusive);
}

std::string DoubleAsShell(double d) {
  if (std::isnan(d)) return "nan.0";
  if (std::isinf(d)) return d > 0 ? "inf.0" : "-inf.0";
  char buffer[40];
  if (d == std::trunc(d) && std::fabs(d) < 1e15) {
    std::snprintf(buffer, sizeof buffer, "%.1f", d);
  } else {
    std::snprintf(buffer, sizeof buffer, "%.16g", d);
  }
  return buffer;
}

std::string DocumentText(BsonView doc, bool array) {
  if (doc.empty()) return array ? "[]" : "{}";
  std::string out = array ? "[ " : "{ ";
  bool first = true;
  for (const auto& e : doc) {
    if (!first) out += ", ";
    first = false;
    if (!array) {
      out += e.name;
      out += ": ";
    }
    out += BoundText(e.value);
  }
  out += array ? " ]" : " }";
  return out;
}

}  // namespace

std::string BoundText(BsonValue v) {
  switch (v.type()) {
    case BsonType::kMinKey:
      return "MinKey";
    case BsonType::kMaxKey:
      return "MaxKey";
    case BsonType::kMissing:
    case BsonType::kUndefined:
      return "undefined";
    case BsonType::kNull:
      return "null";
    case BsonType::kInt32:
      return std::to_string(v.Int32());
    case BsonType::kInt64:
      return std::to_string(v.Int64());
    case BsonType::kDouble:
      return DoubleAsShell(v.Double());
    case BsonType::kDecimal128:
      return decimal128::ToString(v.Decimal());
    case BsonType::kBool:
      return v.Bool() ? "true" : "false";
    case BsonType::kDate:
      return "new Date(" + std::to_string(v.Date().millis) + ")";
    case BsonType::kTimestamp:
      return "Timestamp(" + std::to_string(v.Timestamp() >> 32) + ", " +
             std::to_string(v.Timestamp() & 0xffffffffu) + ")";
    case BsonType::kObjectId:
      return "ObjectId('" + ObjectIdToHex(v.ObjectId()) + "')";
    case BsonType::kString:
    case BsonType::kSymbol:
    case BsonType::kCode: {
      std::string out = "\"";
      for (char c : v.String()) {
        if (c == '"' || c == '\\') out.push_back('\\');
        out.push_back(c);
      }
      return out + "\"";
    }
    case BsonType::kRegex:
      return "/" + std::string(v.RegexPattern()) + "/" + std::string(v.RegexOptions());
    case BsonType::kBinary:
      return "BinData(" + std::to_string(v.BinarySubtype()) + ", " + HexDigits(v.BinaryData()) +
             ")";
    case BsonType::kDocument:
      return DocumentText(v.Document(), false);
    case BsonType::kArray:
      return DocumentText(v.Document(), true);
    case BsonType::kCodeWithScope:
      return "CodeWScope( " + std::string(v.CodeWithScopeCode()) + ")";
    case BsonType::kDbPointer:
      return "DBRef('" + std::string(v.DbPointerNamespace()) + "', " + HexDigits(v.DbPointerId()) +
             ")";
  }
  return "?";
}

Value MinOfType(BsonType type) {
  switch (type) {
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128:
      return Value::Double(std::numeric_limits<double>::quiet_NaN());
    case BsonType::kString:
    case BsonType::kSymbol:
      return Value::String("");
    case BsonType::kDocument:
      return Value::Document(BsonView().ToString());
    case BsonType::kArray:
      return Value::Array(BsonView().ToString());
    case BsonType::kBinary:
      return Value::Owned(BsonType::kBinary, std::string(5, '\0'));
    case BsonType::kObjectId:
      return Value::ObjectId(std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0", 12));
    case BsonType::kBool:
      return Value::Bool(false);
    case BsonType::kDate:
      return Value::Date({std::numeric_limits<int64_t>::min()});
    case BsonType::kTimestamp:
      return Value::Timestamp(0);
    case BsonType::kRegex:
      return Value::Owned(BsonType::kRegex, std::string(2, '\0'));
    case BsonType::kDbPointer:
      return Value::Owned(BsonType::kDbPointer,
                          std::string("\1\0\0\0\0", 5) + std::string(12, '\0'));
    case BsonType::kCode:
      return Value::Owned(BsonType::kCode, std::string("\1\0\0\0\0", 5));
    case BsonType::kCodeWithScope:
      return Value::Owned(BsonType::kCodeWithScope,
                          std::string("\x0e\0\0\0\1\0\0\0\0", 9) + BsonView().ToString());
    case BsonType::kNull:
      return Value::Null();
    case BsonType::kMissing:
    case BsonType::kUndefined:
      return Value::Borrow(BsonValue(BsonType::kUndefined, "", 0));
    case BsonType::kMinKey:
      return MinKey();
    case BsonType::kMaxKey:
      return MaxKey();
  }
  return MinKey();
}

Value MaxOfType(BsonType type, bool* inclusive) {
  *inclusive = true;
  switch (type) {
    case BsonType::kDouble:
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDecimal128:
      return Value::Double(std::numeric_limits<double>::infinity());
    case BsonType::kObjectId:
      return Value::ObjectId(std::string(12, '\xff'));
    case BsonType::kBool:
      return Value::Bool(true);
    case BsonType::kDate:
      return Value::Date({std::numeric_limits<int64_t>::max()});
    case BsonType::kTimestamp:
      return Value::Timestamp(std::numeric_limits<uint64_t>::max());
    case BsonType::kNull:
    case BsonType::kMissing:
    case BsonType::kUndefined:
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return MinOfType(type);
    default:
      break;
  }
  *inclusive = false;
  switch (type) {
    case BsonType::kString:
    case BsonType::kSymbol:
      return MinOfType(BsonType::kDocument);
    case BsonType::kDocument:
      return MinOfType(BsonType::kArray);
    case BsonType::kArray:
      return MinOfType(BsonType::kBinary);
    case BsonType::kBinary:
      return MinOfType(BsonType::kObjectId);
    case BsonType::kRegex:
      return MinOfType(BsonType::kDbPointer);
    case BsonType::kDbPointer:
      return MinOfType(BsonType::kCode);
    case BsonType::kCode:
      return MinOfType(BsonType::kCodeWithScope);
    default:
      return MaxKey();
  }
}

bool Interval::IsPoint() const {
  return low_inclusive && high_inclusive && CompareValues(low.view(), high.view()) == 0;
}
bool Interval::IsEmpty() const {
  int c = CompareValues(low.view(), high.view());
  return c > 0 || (c == 0 && !(low_inclusive && high_inclusive));
}
bool Interval::IsFull() const {
  return low.type() == BsonType::kMinKey && high.type() == BsonType::kMaxKey && low_inclusive &&
         high_inclusive;
}
std::string Interval::ToString() const {
  return (low_inclusive ? "[" : "(") + BoundText(low.view()) + ", " + BoundText(high.view()) +
         (high_inclusive ? "]" : ")");
}

IntervalList IntervalList::Full() {
  IntervalList l;
  l.intervals.push_back({MinKey(), MaxKey(), true, true});
  return l;
}
IntervalList IntervalList::Point(Value v) {
  IntervalList l;
  l.intervals.push_back({v, v, true, true});
  return l;
}
IntervalList IntervalList::Range(Value low, bool low_inclusive, Value high, bool high_inclusive) {
  IntervalList l;
  Interval i{std::move(low), std::move(high), low_inclusive, high_inclusive};
  if (!i.IsEmpty()) l.intervals.push_back(std::move(i));
  return l;
}
IntervalList IntervalList::TypeClass(BsonType type) {
  bool inclusive;
  Value high = MaxOfType(type, &inclusive);
  return Range(MinOfType(type), true, std::move(high), inclusive);
}

bool IntervalList::AllPoints() const {
  for (const auto& i : intervals)
    if (!i.IsPoint()) return false;
  return !intervals.empty();
}

bool IntervalList::Contains(BsonValue v) const {
  for (const auto& i : intervals) {
    int low = CompareValues(v, i.low.view());
    int high = CompareValues(v, i.high.view());
    if ((low > 0 || (low == 0 && i.low_inclusive)) && (high < 0 || (high == 0 && i.high_inclusive)))
      return true;
  }
  return false;
}

bool IntervalList::ContainsAll(const IntervalList& o) const {
  for (const auto& i : o.intervals) {
    bool inside = false;
    for (const auto& mine : intervals)
      if (CompareLow(mine, i) <= 0 && CompareHigh(mine, i) >= 0) inside = true;
    if (!inside) return false;
  }
  return true;
}

Result<IntervalList> IntervalList::Union(std::vector<Interval> parts) {
  EvalContext eval;
  eval.op = ParseWork::Asked();
  auto bytes = [](const Interval& i) -> size_t {
    return i.low.view().size() + i.high.view().size();
  };
  MAYFLY_TRY(SortItems(eval, parts, LowFirst, bytes));
  Pace pace(eval);
  IntervalList united;
  for (Interval& i : parts) {
    MAYFLY_TRY(pace.Step(4 * bytes(i)));
    united.Join(std::move(i));
  }
  return united;
}

void IntervalList::Join(Interval i) {
  if (i.IsEmpty()) return;
  if (!intervals.empty()) {
    Interval& last = intervals.back();
    const int c = CompareValues(last.high.view(), i.low.view());
    // Joined when they overlap or touch with the shared end in at least one of them.
    if (c > 0 || (c == 0 && (last.high_inclusive || i.low_inclusive))) {
      if (CompareHigh(last, i) < 0) {
        last.high = std::move(i.high);
        last.high_inclusive = i.high_inclusive;
      }
      return;
    }
  }
  intervals.push_back(std::move(i));  // bounded: by the parts
}

void IntervalList::Unite(const IntervalList& o) {
  std::vector<Interval> parts = std::move(intervals);
  parts.insert(parts.end(), o.intervals.begin(), o.intervals.end());
  std::sort(parts.begin(), parts.end(), LowFirst);
  intervals.clear();
  for (Interval& i : parts) Join(std::move(i));
}

void IntervalList::Intersect(const IntervalList& o) {
  std::vector<Interval> out;
  size_t a = 0, b = 0;
  while (a < intervals.size() && b < o.intervals.size()) {
    const Interval &x = intervals[a], &y = o.intervals[b];
    Interval r;
    const Interval& low = CompareLow(x, y) < 0 ? y : x;
    const Interval& high = CompareHigh(x, y) < 0 ? x : y;
    r.low = low.low;
    r.low_inclusive = low.low_inclusive;
    r.high = high.high;
    r.high_inclusive = high.high_inclusive;
    if (!r.IsEmpty()) out.push_back(std::move(r));
    if (CompareHigh(x, y) < 0)
      ++a;
    else
      ++b;
  }
  intervals = std::move(out);
}

void IntervalList::Complement() {
  std::vector<Interval> out;
  Value low = MinKey();
  bool inclusive = true;
  for (auto& i : intervals) {
    Interval gap{low, i.low, inclusive, !i.low_inclusive};
    if (!gap.IsEmpty()) out.push_back(std::move(gap));
    low = i.high;
    inclusive = !i.high_inclusive;
  }
  Interval gap{low, MaxKey(), inclusive, true};
  if (!gap.IsEmpty()) out.push_back(std::move(gap));
  intervals = std::move(out);
}

}  // namespace mayfly
