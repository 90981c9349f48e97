#include "server/execution/inline_writes.h"

namespace mayfly {
namespace {

/// Whether a part of the path is a number of 100 or more: setting it may add as many elements to an
/// array.
bool HasFarPlace(std::string_view path) {
  size_t digits = 0;
  bool number = true;
  for (char c : path) {
    if (c == '.') {
      if (number && digits > 2) return true;
      digits = 0;
      number = true;
    } else if (c >= '0' && c <= '9') {
      ++digits;
    } else {
      number = false;
    }
  }
  return number && digits > 2;
}

/// Whether the operand of $pull contains a condition or a pattern.
bool HasCondition(BsonValue v, int depth) {
  if (v.Is(BsonType::kRegex)) return true;
  if (!v.IsDocument() && !v.IsArray()) return false;
  if (depth > 8) return true;
  for (const BsonElement& e : v.Document())
    if (e.name.starts_with('$') || HasCondition(e.value, depth + 1)) return true;
  return false;
}

constexpr size_t kPathsInline = 100;
constexpr size_t kPathBytesInline = 4096;  ///< of all paths

}  // namespace

bool MayUpdateInline(const UpdateStatement& s, size_t* compares) {
  *compares = 0;
  if (s.constants || !s.array_filters.empty()) return false;
  if (!s.update.IsDocument()) return s.update.missing();
  const BsonView u = s.update.Document();
  if (u.empty() || !u.First().name.starts_with('$')) return true;  // a replacement
  size_t paths = 0, path_bytes = 0;
  for (const BsonElement& op : u) {
    if (!op.value.IsDocument()) continue;  // an error, or $expire
    const bool pull = op.name == "$pull", push = op.name == "$push";
    const bool compared = pull || op.name == "$addToSet" || op.name == "$pullAll";
    for (const BsonElement& e : op.value.Document()) {
      path_bytes += e.name.size();
      if (++paths > kPathsInline || path_bytes > kPathBytesInline || HasFarPlace(e.name))
        return false;
      if (op.name == "$rename" && e.value.IsString() && HasFarPlace(e.value.String())) return false;
      if (compared) *compares += e.value.size();
      if (pull && HasCondition(e.value, 0)) return false;
      if (push && e.value.IsDocument() && e.value.Document().Has("$sort")) return false;
    }
  }
  return true;
}

bool ExpiryIsShort(const CollectionInfo& coll) {
  if (!coll.HasTtlRules()) return true;
  constexpr int kRules = 4;
  int rules = 0;
  for (const IndexInfoPtr& i : coll.indexes) {
    if (!i->expire_after_seconds) continue;
    if (++rules > kRules || i->partial_filter.view().size() > 1024) return false;
  }
  return true;
}

}  // namespace mayfly
