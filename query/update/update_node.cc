#include "query/update/update_node.h"

#include <algorithm>
#include <set>

#include "query/expression/parse_work.h"

#include "query/expression/parse_work.h"

namespace mayfly::update {

std::string PathFrame::Dotted() const {
  if (!parent) return std::string(name);
  std::string out = parent->Dotted();
  if (!out.empty()) out += '.';
  return out.append(name);
}

namespace {

std::string Quoted(std::string_view s) { return "'" + std::string(s) + "'"; }

Error Conflict(std::string_view path, std::string_view at) {
  return {ErrorCode::kConflictingUpdateOperators,
          "Updating the path " + Quoted(path) + " would create a conflict at " + Quoted(at)};
}

}  // namespace

Result<std::vector<PathPart>> ParsePath(std::string_view path) {
  using Kind = PathPart::Kind;
  if (path.empty()) return Error{ErrorCode::kEmptyFieldName, "An empty update path is not valid."};
  std::vector<PathPart> parts;
  int positional = 0;
  for (size_t begin = 0; begin <= path.size();) {
    size_t end = std::min(path.find('.', begin), path.size());
    std::string_view name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty())
      return Error{ErrorCode::kEmptyFieldName,
                   "The update path " + Quoted(path) +
                       " contains an empty field name, which is not allowed."};
    PathPart part{Kind::kField, name};
    if (name == "$") {
      part.kind = Kind::kPositional;
      ++positional;
      if (parts.empty())
        return Error{ErrorCode::kBadValue,
                     "Cannot have positional (i.e. '$') element in the first position in path " +
                         Quoted(path)};
    } else if (name.starts_with("$[") && name.ends_with("]")) {
      part = {Kind::kFiltered, name.substr(2, name.size() - 3)};
      if (parts.empty())
        return Error{ErrorCode::kBadValue,
                     "Cannot have array filter identifier (i.e. '$[<id>]') element in the first "
                     "position in path " +
                         Quoted(path)};
    } else if (name == "$expire") {
      // Stored as a field, it would do nothing, and nobody would notice.
      return Error{ErrorCode::kDollarPrefixedFieldName,
                   "The dollar ($) prefixed field '$expire' in " + Quoted(path) +
                       " is not valid for storage: $expire is an operator beside the others"};
    }
    parts.push_back(part);
  }
  if (positional > 1)
    return Error{ErrorCode::kBadValue,
                 "Too many positional (i.e. '$') elements found in path " + Quoted(path)};
  if (parts.size() > 2 * kMaxBsonDepth)
    return Error{ErrorCode::kOverflow,
                 "The update path has more than " + std::to_string(2 * kMaxBsonDepth) + " parts"};
  return parts;
}

Error DollarPrefixed(std::string_view name, std::string_view path) {
  return {ErrorCode::kDollarPrefixedFieldName,
          "The dollar ($) prefixed field " + Quoted(name) + " in " + Quoted(path) +
              " is not allowed in the context of an update's replacement document. Consider using "
              "an aggregation pipeline with $replaceWith."};
}

int64_t ArrayIndex(std::string_view name) {
  if (name.empty() || name.size() > 18 || (name[0] == '0' && name.size() > 1)) return -1;
  int64_t n = 0;
  for (char c : name) {
    if (c < '0' || c > '9') return -1;
    n = n * 10 + (c - '0');
  }
  return n;
}

bool CreatedBefore(std::string_view a, std::string_view b) {
  int64_t x = ArrayIndex(a), y = ArrayIndex(b);
  if (x >= 0 && y >= 0) return x < y;
  if (x >= 0 || y >= 0) return x >= 0;
  return a < b;
}

int Node::FindSorted(std::string_view name) const {
  auto it =
      std::lower_bound(children.begin(), children.end(), name,
                       [](const Child& c, std::string_view n) { return CreatedBefore(c.name, n); });
  return it != children.end() && it->name == name ? static_cast<int>(it - children.begin()) : -1;
}

namespace {

void InsertChild(Node* parent, std::string_view name, const Node* child) {
  auto it = std::lower_bound(
      parent->children.begin(), parent->children.end(), name,
      [](const Node::Child& c, std::string_view n) { return CreatedBefore(c.name, n); });
  parent->children.insert(it, {std::string(name), child});
}

}  // namespace

Result<void> AddPath(NodePool& pool, Node* root, std::string_view path,
                     const std::vector<PathPart>& parts, const Leaf* leaf) {
  Node* at = root;
  for (size_t i = 0; i < parts.size(); ++i) {
    const PathPart& part = parts[i];
    // Offsets into `path`: a part of a filtered kind views only its identifier.
    auto prefix = [&](size_t count) {
      size_t end = 0;
      for (size_t n = 0; n < count; ++n) end = std::min(path.find('.', end + (n > 0)), path.size());
      return path.substr(0, end);
    };
    Node::Kind kind =
        part.kind == PathPart::Kind::kFiltered ? Node::Kind::kFiltered : Node::Kind::kObject;
    if (at->kind == Node::Kind::kNew) at->kind = kind;
    if (at->kind != kind) return Conflict(path, prefix(i));
    bool positional = part.kind == PathPart::Kind::kPositional;
    const Node* child = nullptr;
    if (positional) {
      child = at->positional;
    } else if (int n = at->Find(part.name); n >= 0) {
      child = at->children[n].node;
    }
    bool last = i + 1 == parts.size();
    if (child && (last || child->kind == Node::Kind::kLeaf)) return Conflict(path, prefix(i + 1));
    if (!child) {
      Node* made = pool.New();
      if (last) {
        made->kind = Node::Kind::kLeaf;
        made->leaf = leaf;
      }
      if (positional) {
        at->positional = made;
      } else {
        InsertChild(at, part.name, made);
      }
      child = made;
    }
    at = const_cast<Node*>(child);  // the tree is still being built, and it is ours
  }
  return Ok();
}

Result<const Node*> MergeNodes(NodePool& pool, const Node& a, const Node& b,
                               const PathFrame& path) {
  if (a.kind != b.kind || a.kind == Node::Kind::kLeaf) {
    std::string at = path.Dotted();
    return Conflict(at, at);
  }
  Node* merged = pool.New();
  merged->kind = a.kind;
  merged->children = a.children;
  for (const Node::Child& child : b.children) {
    int n = merged->Find(child.name);
    if (n < 0) {
      InsertChild(merged, child.name, child.node);
      continue;
    }
    PathFrame frame{&path, child.name};
    MAYFLY_TRY(merged->children[n].node,
               MergeNodes(pool, *merged->children[n].node, *child.node, frame));
  }
  merged->positional = a.positional ? a.positional : b.positional;
  if (a.positional && b.positional) {
    PathFrame frame{&path, "$"};
    MAYFLY_TRY(merged->positional, MergeNodes(pool, *a.positional, *b.positional, frame));
  }
  return merged;
}

Result<const Node*> ResolvePositional(NodePool& pool, const Node& node, std::string_view position,
                                      const PathFrame& path) {
  Node* resolved = pool.New();
  resolved->kind = node.kind;
  resolved->children = node.children;
  int n = resolved->Find(position);
  if (n < 0) {
    InsertChild(resolved, position, node.positional);
    return resolved;
  }
  PathFrame frame{&path, position};
  MAYFLY_TRY(resolved->children[n].node,
             MergeNodes(pool, *resolved->children[n].node, *node.positional, frame));
  return resolved;
}

Result<bool> ElementFilter::Matches(BsonValue v, const ApplyContext& ctx,
                                    std::string& scratch) const {
  scratch.clear();
  BsonBuilder b(scratch);
  b.Append(name, v);
  b.Done();
  return match->Matches(BsonView(scratch.data()), ctx.eval);
}

namespace {

/// The one top-level name a filter is about, through $and, $or and $nor; empty: it has none.
Result<void> FindFilterName(BsonView filter, std::string* name) {
  for (const BsonElement& e : filter) {
    if (e.name.starts_with('$')) {
      if (e.name == "$and" || e.name == "$or" || e.name == "$nor") {
        if (!e.value.IsArray()) continue;  // the filter's own parser says what is wrong
        for (const BsonElement& branch : e.value.Document()) {
          if (branch.value.IsDocument()) {
            MAYFLY_TRY(FindFilterName(branch.value.Document(), name));
          }
        }
      } else if (e.name == "$expr" || e.name == "$where" || e.name == "$text" ||
                 e.name == "$jsonSchema") {
        return Error{ErrorCode::kBadValue, std::string(e.name) + " is not allowed in this context"};
      }
      continue;
    }
    std::string_view top = e.name.substr(0, e.name.find('.'));
    if (name->empty()) {
      *name = top;
    } else if (*name != top) {
      return Error{ErrorCode::kFailedToParse,
                   "Error parsing array filter :: caused by :: Expected a single top-level field "
                   "name, found '" +
                       *name + "' and '" + std::string(top) + "'"};
    }
  }
  return Ok();
}

bool IsIdentifier(std::string_view name) {
  auto alnum = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !name.empty() && name[0] >= 'a' && name[0] <= 'z' &&
         std::all_of(name.begin(), name.end(), alnum);
}

}  // namespace

Result<std::vector<ElementFilter>> ParseArrayFilters(std::span<const BsonView> filters,
                                                     VariableScope& scope) {
  // Each is looked for by its name, for each part of a path and for each element of an array.
  constexpr size_t kMost = 1000;
  if (filters.size() > kMost)
    return Error{ErrorCode::kFailedToParse, "arrayFilters has " + std::to_string(filters.size()) +
                                                " filters; it takes " + std::to_string(kMost) +
                                                " at most"};
  std::vector<ElementFilter> out;
  std::set<std::string> names;
  for (BsonView filter : filters) {
    MAYFLY_TRY(ParseWork::Step());
    ElementFilter f;
    MAYFLY_TRY(FindFilterName(filter, &f.name));
    if (f.name.empty())
      return Error{ErrorCode::kFailedToParse,
                   "Cannot use an expression without a top-level field name in arrayFilters"};
    if (!IsIdentifier(f.name))
      return Error{ErrorCode::kBadValue,
                   "Error parsing array filter :: caused by :: The top-level field name must be an "
                   "alphanumeric "
                   "string beginning with a lowercase letter, found '" +
                       f.name + "'"};
    if (!names.insert(f.name).second)
      return Error{ErrorCode::kFailedToParse,
                   "Found multiple array filters with the same top-level field name " + f.name};
    auto match = ParseMatch(filter, {.scope = &scope});
    if (!match) {
      Error e = match.error();
      e.message = "Error parsing array filter :: caused by :: " + e.message;
      return e;
    }
    f.match = std::move(match.value());
    out.push_back(std::move(f));
  }
  return out;
}

const OperatorRow* FindOperator(std::string_view name) {
  static constexpr OperatorRow kRows[] = {
      // sorted by name
      {"$addToSet", &ParseAddToSet},
      {"$bit", &ParseBit},
      {"$currentDate", &ParseCurrentDate},
      {"$inc", &ParseInc},
      {"$max", &ParseMax},
      {"$min", &ParseMin},
      {"$mul", &ParseMul},
      {"$pop", &ParsePop},
      {"$pull", &ParsePull},
      {"$pullAll", &ParsePullAll},
      {"$push", &ParsePush},
      {"$set", &ParseSet},
      {"$setOnInsert", &ParseSetOnInsert},
      {"$unset", &ParseUnset},
  };
  for (const OperatorRow& row : kRows)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace mayfly::update
