#include "query/update/positional.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "protocol/bson_builder.h"
#include "query/expression/pace.h"
#include "storage/operation.h"

namespace mayfly {

namespace {

/// The path before `$`; empty: it has none.
std::string_view BeforePosition(std::string_view path) {
  if (path.ends_with(".$")) return path.substr(0, path.size() - 2);
  const size_t at = path.find(".$.");
  return at == path.npos ? std::string_view() : path.substr(0, at);
}

/// The number with which `rest` begins as a whole part of a path; -1: none.
int64_t LeadingIndex(std::string_view rest) {
  const std::string_view part = rest.substr(0, rest.find('.'));
  int64_t n = -1;
  const auto end = std::from_chars(part.data(), part.data() + part.size(), n);
  return end.ec == std::errc() && end.ptr == part.data() + part.size() && n >= 0 ? n : -1;
}

/// The value at a path whose parts name fields, and elements of arrays by index.
BsonValue ValueAt(BsonView doc, std::string_view path) {
  for (;;) {
    const size_t dot = path.find('.');
    const BsonValue v = doc[path.substr(0, dot)];
    if (dot == path.npos || !(v.IsDocument() || v.IsArray()))
      return dot == path.npos ? v : BsonValue();
    doc = v.Document();
    path.remove_prefix(dot + 1);
  }
}

/// `value` at `path`, and nothing else.
void AppendAt(BsonBuilder& out, std::string_view path, BsonView array, int64_t index) {
  const size_t dot = path.find('.');
  if (dot != path.npos) {
    BsonBuilder inner = out.OpenDocument(path.substr(0, dot));
    return AppendAt(inner, path.substr(dot + 1), array, index);
  }
  BsonArrayBuilder list = out.OpenArray(path);
  for (const BsonElement& e : array) {
    if (index-- > 0) {
      list.AppendNull();
    } else {
      list.Append(e.value);
      break;
    }
  }
}

/// Whether a condition is met by the element that its own path names by index, in the array at
/// `array_path`. A number may also be a field of the elements: then it is not.
Result<bool> MetByIndex(const MatchExpression& c, std::string_view array_path, BsonView array,
                        EvalContext* ctx) {
  if (c.path.size() <= array_path.size() + 1 || !c.path.starts_with(array_path) ||
      c.path[array_path.size()] != '.')
    return false;
  const int64_t index = LeadingIndex(std::string_view(c.path).substr(array_path.size() + 1));
  if (index < 0) return false;
  if (ctx->op != nullptr) {
    MAYFLY_TRY(ctx->op->CheckInterruptNow());
  }
  std::string bytes;
  BsonBuilder alone(bytes);  // bounded: it is a part of the document
  AppendAt(alone, array_path, array, index);
  alone.Done();
  return c.Matches(BsonView(bytes.data()), ctx);
}

/// The conditions of a filter and one document, asked for one array after another.
class Conditions {
 public:
  Conditions(const MatchExpression& filter, BsonView doc, EvalContext* ctx)
      : doc_(doc), ctx_(ctx), pace_(*ctx) {
    if (filter.kind != MatchKind::kAnd) {
      all_.push_back({&filter, {}});
    } else {
      for (const MatchPtr& c : filter.children) all_.push_back({c.get(), {}});
    }
  }

  /// Whether only an element that the filter names by its index was found in the array at
  /// `array_path`.
  Result<bool> NamedByIndexAlone(std::string_view array_path) {
    MAYFLY_TRY(pace_.Step(doc_.size()));
    const BsonValue array = ValueAt(doc_, array_path);
    if (!array.IsArray()) return false;
    bool by_index = false, found = false;
    for (Condition& c : all_) {
      MAYFLY_TRY(pace_.Step(array_path.size()));
      MAYFLY_TRY(const bool named, MetByIndex(*c.match, array_path, array.Document(), ctx_));
      by_index = by_index || named;
      if (named || found) continue;
      MAYFLY_TRY(found, FindsElement(c));
    }
    return by_index && !found;
  }

 private:
  struct Condition {
    const MatchExpression* match;
    std::optional<bool> finds_element;  ///< the same for every array: asked once
  };
  Result<bool> FindsElement(Condition& c) {
    if (!c.finds_element) {
      int position = -1;
      MAYFLY_TRY(const bool matches, c.match->MatchesWithPosition(doc_, ctx_, &position));
      c.finds_element = matches && position >= 0;
    }
    return *c.finds_element;
  }

  const BsonView doc_;
  EvalContext* const ctx_;
  Pace pace_;
  std::vector<Condition> all_;
};

}  // namespace

Result<bool> MatchForPosition(const MatchExpression& filter, const Update& update, BsonView doc,
                              EvalContext* ctx, int* position) {
  MAYFLY_TRY(const bool matches, filter.MatchesWithPosition(doc, ctx, position));
  if (!matches || *position < 0) return matches;
  Conditions conditions(filter, doc, ctx);
  std::string_view before;  // most updates have one such array, however many fields they change
  for (const std::string& path : update.touched_paths()) {
    const std::string_view array_path = BeforePosition(path);
    if (array_path.empty() || array_path == before) continue;
    before = array_path;
    MAYFLY_TRY(const bool alone, conditions.NamedByIndexAlone(array_path));
    if (!alone) continue;
    *position = -1;
    break;
  }
  return true;
}

}  // namespace mayfly
