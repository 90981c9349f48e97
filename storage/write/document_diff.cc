#include "storage/write/document_diff.h"

#include <charconv>
#include <map>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/seeded_hash.h"

namespace mayfly {
namespace {

void DiffDocuments(BsonView before, BsonView after, BsonBuilder& out);
void DiffArrays(BsonView before, BsonView after, BsonBuilder& out);

bool Nested(BsonValue a, BsonValue b) {
  return (a.IsDocument() && b.IsDocument()) || (a.IsArray() && b.IsArray());
}

void DiffNested(std::string_view name, BsonValue a, BsonValue b, BsonBuilder& out) {
  BsonBuilder sub = out.OpenDocument(name);
  if (a.IsArray())
    DiffArrays(a.Document(), b.Document(), sub);
  else
    DiffDocuments(a.Document(), b.Document(), sub);
}

void DiffDocuments(BsonView before, BsonView after, BsonBuilder& out) {
  std::vector<std::string_view> removed;
  std::vector<BsonElement> replaced, added;
  std::vector<std::pair<BsonElement, BsonValue>> nested;
  auto a = before.begin(), b = after.begin();
  while (a != before.end() && b != after.end()) {
    if (a->name != b->name) {
      // Gone from this place: if it comes again later it is added there.
      removed.push_back(a->name);
      ++a;
      continue;
    }
    if (!a->value.BinaryEquals(b->value)) {
      if (Nested(a->value, b->value))
        nested.emplace_back(*a, b->value);
      else
        replaced.push_back(*b);
    }
    ++a;
    ++b;
  }
  for (; a != before.end(); ++a) removed.push_back(a->name);
  for (; b != after.end(); ++b) added.push_back(*b);
  bool open = false;
  {
    std::string bytes;
    BsonBuilder d(bytes);
    ClientViewSet again;  // nothing is added where nothing is requested
    if (!removed.empty())
      for (const BsonElement& e : added) again.insert(e.name);
    for (std::string_view name : removed) {
      if (again.contains(name)) continue;
      d.Append(name, false);
      open = true;
    }
    d.Done();
    if (open) out.Append("d", BsonView(bytes));
  }
  if (!replaced.empty()) {
    BsonBuilder u = out.OpenDocument("u");
    for (const BsonElement& e : replaced) u.Append(e);
  }
  if (!added.empty()) {
    BsonBuilder i = out.OpenDocument("i");
    for (const BsonElement& e : added) i.Append(e);
  }
  for (auto& [e, value] : nested) DiffNested("s" + std::string(e.name), e.value, value, out);
}

void DiffArrays(BsonView before, BsonView after, BsonBuilder& out) {
  out.Append("a", true);
  const int length = after.Count();
  if (length < before.Count()) out.Append("l", length);
  auto a = before.begin(), b = after.begin();
  for (int i = 0; b != after.end(); ++b, ++i) {
    const bool had = a != before.end();
    if (!had || !a->value.BinaryEquals(b->value)) {
      if (had && Nested(a->value, b->value))
        DiffNested("s" + std::to_string(i), a->value, b->value, out);
      else
        out.Append("u" + std::to_string(i), b->value);
    }
    if (had) ++a;
  }
}

Error NoDiff(std::string why) {
  return {ErrorCode::kFailedToParse, "an oplog entry's diff " + std::move(why)};
}

/// `out` has everything that was made so far: one diff of some bytes can ask for millions of nulls
/// in each of many arrays.
Result<void> CheckGrown(const std::string& out) {
  if (out.size() <= static_cast<size_t>(kMaxBsonUserSize)) [[likely]]
    return Ok();
  return Error{
      ErrorCode::kBSONObjectTooLarge,
      "an oplog entry's diff makes a document larger than " + std::to_string(kMaxBsonUserSize)};
}

Result<void> ApplyToDocument(BsonView before, BsonView diff, BsonBuilder& out);
Result<void> ApplyToArray(BsonView before, BsonView diff, BsonArrayBuilder& out);

/// Whether a nested diff is for values of this type.
Result<bool> Fits(BsonValue value, BsonValue diff) {
  if (!diff.IsDocument()) return NoDiff("has a part that is no document");
  return diff.Document()["a"].Is(BsonType::kBool) ? value.IsArray() : value.IsDocument();
}

/// `value`, which fits, changed by `diff`, under the name that `open_…` gives it.
template <class OpenDocument, class OpenArray>
Result<void> ApplyNested(BsonValue value, BsonView diff, OpenDocument open_document,
                         OpenArray open_array) {
  if (value.IsArray()) {
    BsonArrayBuilder sub = open_array();
    return ApplyToArray(value.Document(), diff, sub);
  }
  BsonBuilder sub = open_document();
  return ApplyToDocument(value.Document(), diff, sub);
}

Result<void> ApplyToDocument(BsonView before, BsonView diff, BsonBuilder& out) {
  BsonView removed, replaced, added;
  std::map<std::string_view, BsonValue> nested;
  for (const BsonElement& part : diff) {
    if (!part.value.IsDocument())
      return NoDiff("has the part '" + std::string(part.name) + "', which is no document");
    if (part.name == "d")
      removed = part.value.Document();
    else if (part.name == "u")
      replaced = part.value.Document();
    else if (part.name == "i")
      added = part.value.Document();
    else if (part.name.starts_with('s'))
      nested[part.name.substr(1)] = part.value;
    else
      return NoDiff("has the part '" + std::string(part.name) +
                    "', which this server does not know");
  }
  std::map<std::string_view, BsonValue> next;
  for (const BsonElement& e : replaced) next[e.name] = e.value;
  ClientViewSet elsewhere;  // not searched for each field: both may have a million
  for (const BsonElement& e : removed) elsewhere.insert(e.name);
  for (const BsonElement& e : added) elsewhere.insert(e.name);
  for (const BsonElement& e : before) {
    MAYFLY_TRY(CheckGrown(out.buffer()));
    if (elsewhere.contains(e.name)) continue;
    if (auto u = next.find(e.name); u != next.end()) {
      out.Append(e.name, u->second);
      next.erase(u);
    } else if (auto s = nested.find(e.name); s != nested.end()) {
      MAYFLY_TRY(const bool fits, Fits(e.value, s->second));
      if (!fits) {
        out.Append(e);
        continue;
      }
      MAYFLY_TRY(ApplyNested(
          e.value, s->second.Document(), [&] { return out.OpenDocument(e.name); },
          [&] { return out.OpenArray(e.name); }));
    } else {
      out.Append(e);
    }
  }
  for (const BsonElement& e : replaced)
    if (next.contains(e.name)) out.Append(e);
  for (const BsonElement& e : added) out.Append(e);
  return CheckGrown(out.buffer());
}

Result<void> ApplyToArray(BsonView before, BsonView diff, BsonArrayBuilder& out) {
  constexpr int kMaxElements = 16 * 1024 * 1024 / 3;  // of a document of the largest size
  int length = -1;
  std::map<int, BsonElement> changes;
  for (const BsonElement& part : diff) {
    if (part.name == "a") continue;
    if (part.name == "l") {
      if (!part.value.IsNumber() || part.value.NumberAsInt64() < 0 ||
          part.value.NumberAsInt64() > kMaxElements)
        return NoDiff("has a length that is no array's");
      length = static_cast<int>(part.value.NumberAsInt64());
      continue;
    }
    int index = -1;
    const char* end = part.name.data() + part.name.size();
    if (part.name.size() < 2 || (part.name[0] != 'u' && part.name[0] != 's') ||
        std::from_chars(part.name.data() + 1, end, index).ptr != end || index < 0 ||
        index >= kMaxElements)
      return NoDiff("has the part '" + std::string(part.name) +
                    "', which this server does not know");
    changes[index] = part;
  }
  int at = 0;
  auto change = changes.begin();
  auto one = [&](const BsonValue* value) -> Result<void> {
    if (change == changes.end() || change->first != at) {
      if (value != nullptr)
        out.Append(*value);
      else
        out.AppendNull();
    } else {
      const BsonElement part = (change++)->second;
      bool fits = false;
      if (part.name[0] == 's') {
        MAYFLY_TRY(fits, Fits(value != nullptr ? *value : BsonValue(), part.value));
      }
      if (part.name[0] == 'u') {
        out.Append(part.value);
      } else if (fits) {
        MAYFLY_TRY(ApplyNested(
            *value, part.value.Document(), [&] { return out.OpenDocument(); },
            [&] { return out.OpenArray(); }));
      } else if (value != nullptr) {
        out.Append(*value);
      } else {
        out.AppendNull();
      }
    }
    ++at;
    return CheckGrown(out.raw().buffer());
  };
  for (const BsonElement& e : before) {
    if (length >= 0 && at >= length) return Ok();
    MAYFLY_TRY(one(&e.value));
  }
  while (change != changes.end() && (length < 0 || at < length)) {
    MAYFLY_TRY(one(nullptr));
  }
  return Ok();
}

}  // namespace

Result<void> ApplyDocumentDiff(BsonView before, BsonView diff, std::string& out) {
  BsonBuilder b(out);
  return ApplyToDocument(before, diff, b);
}

void AppendDocumentDiff(BsonView before, BsonView after, std::string& out) {
  BsonBuilder b(out);
  DiffDocuments(before, after, b);
}

}  // namespace mayfly
