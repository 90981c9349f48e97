// The descent of an operator update: old document and tree of paths side by side, new document into
// one buffer.
#include <charconv>
#include <map>

#include "protocol/bson_compare.h"
#include "query/expression/element_text.h"
#include "query/expression/insert_prepare.h"
#include "query/update/update_node.h"
#include "storage/operation.h"

namespace mayfly::update {
namespace {

/// Largest run of nulls an update puts before a new array element.
constexpr int64_t kMaxPadding = 1'500'000;

/// Which children of a node were found.
class SeenSet {
 public:
  explicit SeenSet(size_t n) {
    if (n > 64) many_.resize(n);
  }
  bool Test(size_t i) const { return many_.empty() ? (few_ >> i & 1) != 0 : many_[i]; }
  void Set(size_t i) {
    if (many_.empty()) {
      few_ |= uint64_t{1} << i;
    } else {
      many_[i] = true;
    }
  }

 private:
  uint64_t few_ = 0;
  std::vector<bool> many_;
};

class TreeApplier {
 public:
  TreeApplier(std::span<const ElementFilter> filters, const ApplyContext& ctx, int position,
              std::string& out)
      : filters_(filters), ctx_(ctx), out_(out) {
    if (position >= 0) {
      auto end = std::to_chars(position_, position_ + sizeof position_, position).ptr;
      position_size_ = static_cast<size_t>(end - position_);
    }
  }

  Result<bool> Run(const Node& root) {
    PathFrame frame;
    return ObjectBody(root, ctx_.root, 1, frame);
  }

 private:
  /// Checks what is written so far: a document that is already too large must not grow further, and
  /// one of many elements may take long.
  Result<void> Continue() {
    if (out_.size() > static_cast<size_t>(kMaxBsonUserSize)) [[unlikely]]
      return TooLarge(ctx_.is_insert);
    if (ctx_.eval && ctx_.eval->op) return ctx_.eval->op->CheckInterrupt();
    return Ok();
  }

  /// The node as plain field names: `$` replaced by its position.
  Result<const Node*> Resolve(const Node& node, const PathFrame& path) {
    if (!node.positional) return &node;
    if (position_size_ == 0)
      return BadValue("The positional operator did not find the match needed from the query.");
    return ResolvePositional(pool_, node, {position_, position_size_}, path);
  }

  size_t BeginContainer() {
    size_t start = out_.size();
    out_.append(4, '\0');
    return start;
  }
  void EndContainer(size_t start) {
    out_.push_back('\0');
    StoreLe<int32_t>(out_.data() + start, static_cast<int32_t>(out_.size() - start));
  }

  /// Length, elements and end marker of the new version of the document `old` (an object). `depth`:
  /// containers open.
  Result<bool> ObjectBody(const Node& unresolved, BsonView old, int depth, const PathFrame& path) {
    MAYFLY_TRY(const Node* node, Resolve(unresolved, path));
    size_t start = BeginContainer();
    SeenSet seen(node->children.size());
    size_t unseen = node->children.size();
    bool changed = false;
    const char* copied = old.data() + 4;
    if (unseen > 0) {
      for (auto it = old.begin(); it != old.end(); ++it) {
        int n = node->Find(it->name);
        if (n < 0 || seen.Test(static_cast<size_t>(n))) continue;
        seen.Set(static_cast<size_t>(n));
        out_.append(copied, it.begin());
        copied = it.end();
        const Node& child = *node->children[static_cast<size_t>(n)].node;
        PathFrame frame{&path, it->name};
        std::string_view bytes(it.begin(), static_cast<size_t>(it.end() - it.begin()));
        if (depth == 1) dollar_ = it->name.starts_with('$') && !ctx_.is_insert;
        if (depth == 1 && it->name == "_id") [[unlikely]] {
          MAYFLY_TRY(UpdateId(child, *it, bytes, frame));
        } else {
          MAYFLY_TRY(bool did, Existing(child, *it, bytes, false, depth, frame));
          changed |= did;
        }
        MAYFLY_TRY(Continue());
        if (--unseen == 0) break;
      }
    }
    out_.append(copied, old.data() + old.size() - 1 - copied);
    if (unseen > 0) {
      for (size_t i = 0; i < node->children.size(); ++i) {
        if (seen.Test(i)) continue;
        PathFrame frame{&path, node->children[i].name};
        if (depth == 1) dollar_ = node->children[i].name.starts_with('$') && !ctx_.is_insert;
        MAYFLY_TRY(bool did, Create(*node->children[i].node, node->children[i].name, depth, frame));
        changed |= did;
        MAYFLY_TRY(Continue());
      }
    }
    EndContainer(start);
    return changed;
  }

  /// `_id` may be written only if its value does not change.
  Result<void> UpdateId(const Node& node, const BsonElement& e, std::string_view bytes,
                        const PathFrame& path) {
    size_t mark = out_.size();
    MAYFLY_TRY(bool changed, Existing(node, e, bytes, false, 1, path));
    if (changed) {
      bool removed = out_.size() == mark;
      auto type =
          removed ? BsonType::kMissing : static_cast<BsonType>(static_cast<uint8_t>(out_[mark]));
      size_t value = mark + 2 + e.name.size();
      if (removed || !ValuesEqual(e.value, BsonValue(type, out_.data() + value,
                                                     static_cast<uint32_t>(out_.size() - value)))) {
        std::string at = path.Dotted();
        for (const Node* n = &node; n->kind != Node::Kind::kLeaf;) {
          bool positional = n->children.empty();
          at += positional ? ".$" : "." + n->children[0].name;
          n = positional ? n->positional : n->children[0].node;
        }
        return Error{ErrorCode::kImmutableField, "Performing an update on the path '" + at +
                                                     "' would modify the immutable field '_id'"};
      }
    }
    out_.resize(mark);  // an equal number of another type is not a change
    out_.append(bytes);
    return Ok();
  }

  /// The new version of an element that exists; `bytes` is all of it.
  Result<bool> Existing(const Node& node, const BsonElement& e, std::string_view bytes,
                        bool in_array, int depth, const PathFrame& path) {
    if (node.kind == Node::Kind::kLeaf) {
      size_t mark = out_.size();
      MAYFLY_TRY(Effect effect, node.leaf->Apply({e.value, e.name, path, out_}, ctx_));
      switch (effect) {
        case Effect::kUnchanged:
          out_.resize(mark);
          out_.append(bytes);
          return false;
        case Effect::kReplaced: {
          MAYFLY_TRY(CheckWritten(depth + node.leaf->depth(ctx_), path));
          return true;
        }
        case Effect::kRemoved:
          out_.resize(mark);
          if (in_array) EmitHeader(out_, BsonType::kNull, e.name);
          return !in_array || !e.value.IsNull();
      }
    }
    if (node.kind == Node::Kind::kFiltered) {
      if (!e.value.IsArray())
        return BadValue("Cannot apply array updates to non-array element " +
                        ElementText(e.name, e.value));
      EmitHeader(out_, BsonType::kArray, e.name);
      return FilteredBody(node, e.value.Document(), depth + 1, path);
    }
    if (e.value.IsDocument()) {
      EmitHeader(out_, BsonType::kDocument, e.name);
      return ObjectBody(node, e.value.Document(), depth + 1, path);
    }
    if (e.value.IsArray()) {
      EmitHeader(out_, BsonType::kArray, e.name);
      return IndexedBody(node, e, depth + 1, path);
    }
    MAYFLY_TRY(const Node* resolved, Resolve(node, path));
    for (const Node::Child& child : resolved->children) {
      MAYFLY_TRY(Blocked(child, *child.node, e, path));
    }
    out_.append(bytes);
    return false;
  }

  /// An array whose elements are named by number.
  Result<bool> IndexedBody(const Node& unresolved, const BsonElement& array, int depth,
                           const PathFrame& path) {
    MAYFLY_TRY(const Node* node, Resolve(unresolved, path));
    // Numbers come first among the children, in order.
    size_t next = 0;
    auto wanted = [&] {
      return next < node->children.size() ? ArrayIndex(node->children[next].name) : -1;
    };
    for (const Node::Child& child : node->children) {
      if (ArrayIndex(child.name) < 0) {
        MAYFLY_TRY(Blocked(child, *child.node, array, path));
      }
    }
    size_t start = BeginContainer();
    bool changed = false;
    int64_t count = 0;
    BsonView old = array.value.Document();
    const char* copied = old.data() + 4;
    for (auto it = old.begin(); it != old.end(); ++it, ++count) {
      if (wanted() != count) continue;
      out_.append(copied, it.begin());
      copied = it.end();
      PathFrame frame{&path, it->name};
      std::string_view bytes(it.begin(), static_cast<size_t>(it.end() - it.begin()));
      MAYFLY_TRY(bool did, Existing(*node->children[next].node, *it, bytes, true, depth, frame));
      changed |= did;
      MAYFLY_TRY(Continue());
      ++next;
    }
    out_.append(copied, old.data() + old.size() - 1 - copied);
    for (int64_t index; (index = wanted()) >= 0; ++next) {
      const Node::Child& child = node->children[next];
      size_t mark = out_.size();
      PathFrame frame{&path, child.name};
      MAYFLY_TRY(bool created, Create(*child.node, child.name, depth, frame));
      if (!created) continue;
      changed = true;
      if (index > count) {
        if (index - count > kMaxPadding)
          return Error{ErrorCode::kCannotBackfillArray,
                       "can't backfill more than " + std::to_string(kMaxPadding) + " elements"};
        std::string element = out_.substr(mark);
        out_.resize(mark);
        char name[24];
        for (; count < index; ++count) {
          auto end = std::to_chars(name, name + sizeof name, count).ptr;
          EmitHeader(out_, BsonType::kNull, {name, static_cast<size_t>(end - name)});
        }
        out_ += element;
      }
      count = index + 1;
      MAYFLY_TRY(Continue());
    }
    EndContainer(start);
    return changed;
  }

  /// An array under `$[]` and `$[id]`.
  Result<bool> FilteredBody(const Node& node, BsonView old, int depth, const PathFrame& path) {
    size_t start = BeginContainer();
    bool changed = false;
    std::map<std::vector<bool>, const Node*>
        merged;  // by which children apply: elements share few combinations
    std::string scratch;
    for (auto it = old.begin(); it != old.end(); ++it) {
      MAYFLY_TRY(Continue());
      std::vector<bool> applies(node.children.size());
      const Node* only = nullptr;
      int count = 0;
      for (size_t i = 0; i < node.children.size(); ++i) {
        const Node::Child& child = node.children[i];
        bool matches = child.name.empty();
        if (!matches) {
          for (const ElementFilter& f : filters_)
            if (f.name == child.name) {
              MAYFLY_TRY(matches, f.Matches(it->value, ctx_, scratch));
              break;
            }
        }
        if (!matches) continue;
        applies[i] = true;
        only = child.node;
        ++count;
      }
      std::string_view bytes(it.begin(), static_cast<size_t>(it.end() - it.begin()));
      if (count == 0) {
        out_.append(bytes);
        continue;
      }
      PathFrame frame{&path, it->name};
      if (count > 1) {
        const Node*& cached = merged[applies];
        if (!cached) {
          const Node* sum = nullptr;
          for (size_t i = 0; i < applies.size(); ++i) {
            if (!applies[i]) continue;
            if (sum) {
              MAYFLY_TRY(sum, MergeNodes(pool_, *sum, *node.children[i].node, frame));
            } else {
              sum = node.children[i].node;
            }
          }
          cached = sum;
        }
        only = cached;
      }
      MAYFLY_TRY(bool did, Existing(*only, *it, bytes, true, depth, frame));
      changed |= did;
    }
    EndContainer(start);
    return changed;
  }

  /// An element that does not exist: written if any operator below has something to write.
  Result<bool> Create(const Node& node, std::string_view name, int depth, const PathFrame& path) {
    if (node.kind == Node::Kind::kLeaf) {
      size_t mark = out_.size();
      MAYFLY_TRY(Effect effect, node.leaf->Apply({BsonValue(), name, path, out_}, ctx_));
      if (effect != Effect::kReplaced) {
        out_.resize(mark);
        return false;
      }
      MAYFLY_TRY(CheckWritten(depth + node.leaf->depth(ctx_), path));
      return true;
    }
    if (node.kind == Node::Kind::kFiltered)
      return BadValue("The path '" + path.Dotted() +
                      "' must exist in the document in order to apply array updates.");
    MAYFLY_TRY(const Node* resolved, Resolve(node, path));
    size_t mark = out_.size();
    EmitHeader(out_, BsonType::kDocument, name);
    size_t start = BeginContainer();
    bool created = false;
    for (const Node::Child& child : resolved->children) {
      PathFrame frame{&path, child.name};
      MAYFLY_TRY(bool did, Create(*child.node, child.name, depth + 1, frame));
      created |= did;
      MAYFLY_TRY(Continue());
    }
    if (!created) {
      out_.resize(mark);
      return false;
    }
    EndContainer(start);
    return true;
  }

  /// `child` cannot exist in `e`: an error unless every operator below allows that.
  Result<void> Blocked(const Node::Child& child, const Node& node, const BsonElement& e,
                       const PathFrame& path) {
    if (node.kind != Node::Kind::kLeaf) {
      for (const Node::Child& below : node.children) {
        MAYFLY_TRY(Blocked(child, *below.node, e, path));
      }
      if (node.positional) {
        MAYFLY_TRY(Blocked(child, *node.positional, e, path));
      }
      return Ok();
    }
    switch (node.leaf->on_blocked(ctx_)) {
      case Leaf::OnBlocked::kNothing:
        return Ok();
      case Leaf::OnBlocked::kCannotCreate:
        return Error{ErrorCode::kPathNotViable, "Cannot create field '" + child.name +
                                                    "' in element {" +
                                                    ElementText(e.name, e.value) + "}"};
      case Leaf::OnBlocked::kCannotTraverse:
        break;
    }
    PathFrame frame{&path, child.name};
    return Error{ErrorCode::kPathNotViable, "Cannot use the part (" + child.name + ") of (" +
                                                frame.Dotted() + ") to traverse the element ({" +
                                                ElementText(e.name, e.value) + "})"};
  }

  /// Whether a value may be where an operator has just written one. `depth`: the deepest container
  /// in it.
  Result<void> CheckWritten(int depth, const PathFrame& path) {
    if (dollar_) [[unlikely]] {
      std::string at = path.Dotted();
      return DollarPrefixed(std::string_view(at).substr(0, at.find('.')), at);
    }
    if (depth <= kMaxBsonDepth) return Ok();
    return DocumentTooDeep();
  }

  std::span<const ElementFilter> filters_;
  const ApplyContext& ctx_;
  std::string& out_;
  NodePool pool_;
  /// Below a field of the document whose name begins with a dollar, and the document exists: it may
  /// be removed there, not written. What an upsert inserts follows the rules of inserts.
  bool dollar_ = false;
  char position_[12];
  size_t position_size_ = 0;
};

}  // namespace

Result<bool> ApplyTree(const Node& root, std::span<const ElementFilter> filters,
                       const ApplyContext& ctx, int position, std::string* out) {
  out->clear();
  out->reserve(ctx.root.size() + 64);
  return TreeApplier(filters, ctx, position, *out).Run(root);
}

}  // namespace mayfly::update
