#include "query/plan/index_bounds.h"

#include "protocol/bson_compare.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {

bool IndexBounds::IsEmpty() const {
  if (whole_key_range) return false;
  for (const auto& f : fields)
    if (f.empty()) return true;
  return false;
}

bool IndexBounds::AllSinglePoints() const {
  if (whole_key_range) return false;
  for (const auto& f : fields)
    if (!f.IsPoint()) return false;
  return true;
}

namespace {

/// As explain shows it; a long value is cut, between two characters.
std::string ShownInterval(const Interval& interval) {
  constexpr size_t kLongest = 8 * 1024;
  std::string text = interval.ToString();
  if (text.size() <= kLongest) return text;
  size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text += "...";
}

}  // namespace

void IndexBounds::Explain(const IndexInfo& index, bool backward, BsonBuilder& out) const {
  if (whole_key_range) {
    if (!min.view().empty()) out.Append("startKey", min);
    if (!max.view().empty()) out.Append("endKey", max);
    return;
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    auto array = out.OpenArray(index.fields[i].path);
    bool reverse = index.fields[i].descending != backward;
    const std::vector<Interval>& intervals = fields[i].intervals;
    for (size_t n = 0; n < intervals.size(); ++n) {
      if (array.size() > kMaxExplained) {
        array.Append("... and " + std::to_string(intervals.size() - n) + " more");
        break;
      }
      const Interval& at = intervals[reverse ? intervals.size() - 1 - n : n];
      if (!reverse) {
        array.Append(ShownInterval(at));
        continue;
      }
      array.Append(ShownInterval({at.high, at.low, at.high_inclusive, at.low_inclusive}));
    }
  }
}

std::string PrefixSuccessor(std::string_view prefix) {
  std::string s(prefix);
  while (!s.empty() && static_cast<unsigned char>(s.back()) == 0xff) s.pop_back();
  if (!s.empty()) s.back() = static_cast<char>(static_cast<unsigned char>(s.back()) + 1);
  return s;
}

std::string EncodeWholeKey(const IndexInfo& index, BsonView values) {
  std::string out;
  size_t i = 0;
  for (const auto& e : values) {
    if (i >= index.fields.size()) break;
    AppendStoredValue(e.value, index.fields[i].descending, 0, out);
    ++i;
  }
  return out;
}

void EncodedBounds::Range::Widen(size_t longest) {
  if (low.size() > longest) {
    low.resize(longest);
    low_inclusive = true;
  }
  if (high.size() > longest) {
    high.resize(longest);
    high = PrefixSuccessor(high);
    high_inclusive = false;
  }
}

/// Whether each of the fields has one value: then there is a range of bytes to scan, and nothing to
/// check in it.
bool EncodedBounds::EncodeOneValue(const IndexBounds& bounds, const IndexInfo& index, size_t used) {
  for (size_t i = 0; i < used; ++i) {
    const std::vector<Interval>& list = bounds.fields[i].intervals;
    if (list.size() != 1 || !list[0].low.view().BinaryEquals(list[0].high.view())) return false;
  }
  for (size_t i = 0; i < used; ++i)
    AppendStoredValue(bounds.fields[i].intervals[0].low.view(), index.fields[i].descending, 0,
                      lower_);
  upper_ = PrefixSuccessor(lower_);
  return contiguous_ = true;
}

EncodedBounds::EncodedBounds(const IndexBounds& bounds, const IndexInfo& index, bool backward)
    : backward_(backward) {
  if (bounds.whole_key_range) {
    if (!bounds.min.view().empty()) lower_ = EncodeWholeKey(index, bounds.min);
    if (!bounds.max.view().empty()) upper_ = EncodeWholeKey(index, bounds.max);
    contiguous_ = true;
    empty_ = !upper_.empty() && lower_ >= upper_;
    return;
  }
  empty_ = bounds.IsEmpty();
  if (empty_) return;
  size_t used = bounds.fields.size();
  while (used > 0 && bounds.fields[used - 1].IsFull()) --used;
  if (EncodeOneValue(bounds, index, used)) return;
  fields_.resize(used);
  for (size_t i = 0; i < used; ++i) {
    Field& f = fields_[i];
    f.descending = index.fields[i].descending;
    f.full = bounds.fields[i].IsFull();
    f.ranges.reserve(bounds.fields[i].intervals.size());
    for (const auto& interval : bounds.fields[i].intervals) {
      Range r{{}, {}, interval.low_inclusive, interval.high_inclusive};
      if (i == 0 && interval.low.view().BinaryEquals(interval.high.view())) {
        AppendStoredValue(interval.low.view(), f.descending, 0, r.low);
        r.high = r.low;
      } else {
        EncodeKeyValue(interval.low.view(), f.descending, r.low);
        EncodeKeyValue(interval.high.view(), f.descending, r.high);
        if (f.descending) {
          std::swap(r.low, r.high);
          std::swap(r.low_inclusive, r.high_inclusive);
        }
        r.Widen(i == 0 ? kMaxKeySize : kLeastCut);
      }
      f.ranges.push_back(std::move(r));
    }
    if (f.descending) std::reverse(f.ranges.begin(), f.ranges.end());
  }
  // The outer byte range: as many leading points as there are, then the ends of the first field
  // that is not a point.
  std::string prefix;
  size_t i = 0;
  while (i < used && fields_[i].ranges.size() == 1 &&
         fields_[i].ranges[0].low == fields_[i].ranges[0].high)
    prefix += fields_[i++].ranges[0].low;
  if (i == used) {
    lower_ = prefix;
    upper_ = PrefixSuccessor(prefix);
    contiguous_ = true;
    return;
  }
  const Range& first = fields_[i].ranges.front();
  const Range& last = fields_[i].ranges.back();
  lower_ = prefix + first.low;
  if (!first.low_inclusive) {
    lower_ = PrefixSuccessor(lower_);
    empty_ = lower_.empty();
  }
  upper_ = prefix + last.high;
  if (last.high_inclusive) upper_ = PrefixSuccessor(upper_);
  contiguous_ = i + 1 == used && fields_[i].ranges.size() == 1;
}

EncodedBounds::Verdict EncodedBounds::SeekForward(std::string_view encoded, size_t at, size_t field,
                                                  const Range* target, std::string* seek) const {
  if (target == nullptr) {  // behind the last range of this field: next value of the fields before
    if (field == 0) return Verdict::kEnd;
    *seek = PrefixSuccessor(encoded.substr(0, at));
    return seek->empty() ? Verdict::kEnd : Verdict::kSeek;
  }
  seek->assign(encoded.substr(0, at)).append(target->low);
  if (!target->low_inclusive) {
    *seek = PrefixSuccessor(*seek);
    return seek->empty() ? Verdict::kEnd : Verdict::kSeek;
  }
  for (size_t i = field + 1; i < fields_.size(); ++i) {
    const Range& first = fields_[i].ranges.front();
    seek->append(first.low);
    if (!first.low_inclusive) {
      *seek = PrefixSuccessor(*seek);
      break;
    }
  }
  return Verdict::kSeek;
}

EncodedBounds::Verdict EncodedBounds::SeekBackward(std::string_view encoded, size_t at,
                                                   const Range* target, std::string* seek) const {
  if (target == nullptr) {
    if (at == 0) return Verdict::kEnd;
    seek->assign(encoded.substr(0, at));  // everything with this prefix is longer, so behind it
    return Verdict::kSeek;
  }
  seek->assign(encoded.substr(0, at)).append(target->high);
  if (target->high_inclusive) *seek = PrefixSuccessor(*seek);
  return Verdict::kSeek;
}

EncodedBounds::Verdict EncodedBounds::Check(std::string_view encoded, std::string* seek) const {
  if (contiguous_) return Verdict::kInside;
  size_t at = 0;
  for (size_t i = 0; i < fields_.size(); ++i) {
    const Field& f = fields_[i];
    const size_t n = StoredValueLength(encoded, at, f.descending);
    if (n == 0) return Verdict::kEnd;  // corrupt: validate reports it
    if (f.full) {
      at += n;
      continue;
    }
    std::string_view v = encoded.substr(at, n);
    if (!backward_) {
      auto it = std::partition_point(f.ranges.begin(), f.ranges.end(), [&](const Range& r) {
        int c = v.compare(r.high);
        return c > 0 || (c == 0 && !r.high_inclusive);
      });
      if (it == f.ranges.end()) return SeekForward(encoded, at, i, nullptr, seek);
      int c = v.compare(it->low);
      if (c < 0 || (c == 0 && !it->low_inclusive)) return SeekForward(encoded, at, i, &*it, seek);
    } else {
      auto it = std::partition_point(f.ranges.begin(), f.ranges.end(), [&](const Range& r) {
        int c = v.compare(r.low);
        return c > 0 || (c == 0 && r.low_inclusive);
      });
      if (it == f.ranges.begin()) return SeekBackward(encoded, at, nullptr, seek);
      --it;
      int c = v.compare(it->high);
      if (c > 0 || (c == 0 && !it->high_inclusive)) return SeekBackward(encoded, at, &*it, seek);
    }
    at += n;
  }
  return Verdict::kInside;
}

}  // namespace mayfly
