#include "storage/document_diff.h"

#include <vector>

#include "protocol/bson_builder.h"

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
    for (std::string_view name : removed) {
      bool again = false;
      for (const BsonElement& e : added) again = again || e.name == name;
      if (again) continue;
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

}  // namespace

void AppendDocumentDiff(BsonView before, BsonView after, std::string& out) {
  BsonBuilder b(out);
  DiffDocuments(before, after, b);
}

}  // namespace mayfly
