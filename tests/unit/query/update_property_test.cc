// Random updates against a plain model of a document: slow, obvious, and written without the code
// under test.
#include <rapidcheck.h>

#include <map>
#include <variant>

#include "tests/unit/query/update_test_util.h"

namespace mayfly {
namespace {

struct Field;

/// A document as a tree: an int, an object with ordered names, or an array.
struct Node {
  enum Kind { kInt, kObject, kArray } kind = kInt;
  int32_t number = 0;
  std::vector<Field> fields;               ///< kObject
  std::vector<std::optional<Node>> items;  ///< kArray; nullopt is null

  Node* Find(const std::string& name);
};
struct Field {
  Field(std::string n, Node v) : name(std::move(n)), value(std::move(v)) {}
  std::string name;
  Node value;
};
Node* Node::Find(const std::string& name) {
  for (Field& f : fields)
    if (f.name == name) return &f.value;
  return nullptr;
}

void Write(const Node& node, BsonBuilder& b, std::string_view name);
void WriteFields(const Node& node, BsonBuilder& b) {
  for (const auto& [name, value] : node.fields) Write(value, b, name);
}
void Write(const Node& node, BsonBuilder& b, std::string_view name) {
  switch (node.kind) {
    case Node::kInt:
      b.Append(name, node.number);
      break;
    case Node::kObject: {
      BsonBuilder sub = b.OpenDocument(name);
      WriteFields(node, sub);
      break;
    }
    case Node::kArray: {
      BsonArrayBuilder sub = b.OpenArray(name);
      for (const auto& item : node.items) {
        if (!item) {
          sub.AppendNull();
        } else {
          Write(*item, sub.raw(), sub.NextName());
        }
      }
      break;
    }
  }
}

struct Op {
  std::string modifier;  ///< $set, $unset, $inc, $push
  std::vector<std::string> path;
  int32_t number = 0;
  std::string Dotted() const {
    std::string out;
    for (const auto& p : path) out += (out.empty() ? "" : ".") + p;
    return out;
  }
};

bool IsIndex(const std::string& s) { return s[0] >= '0' && s[0] <= '9'; }

/// Applies `op` at `node` from part `i` of its path. False: the path cannot be followed (an error
/// for all but $unset).
bool Act(const Op& op, Node* node, size_t i) {
  bool last = i + 1 == op.path.size();
  const std::string& name = op.path[i];
  // Creates what stands for the rest of the path.
  auto made = [&](size_t from) {
    Node leaf;
    if (op.modifier == "$push") {
      leaf.kind = Node::kArray;
      leaf.items.push_back(Node{.number = op.number});
    } else {
      leaf.number = op.number;
    }
    for (size_t k = op.path.size() - 1; k > from; --k) {
      Node parent{.kind = Node::kObject};
      parent.fields.emplace_back(op.path[k], std::move(leaf));
      leaf = std::move(parent);
    }
    return leaf;
  };
  auto change = [&](Node* at) {
    if (op.modifier == "$set") {
      *at = Node{.number = op.number};
    } else if (op.modifier == "$inc") {
      if (at->kind != Node::kInt) return false;
      at->number += op.number;
    } else {
      if (at->kind != Node::kArray) return false;
      at->items.push_back(Node{.number = op.number});
    }
    return true;
  };
  if (node->kind == Node::kObject) {
    Node* child = node->Find(name);
    if (!child) {
      if (op.modifier != "$unset") node->fields.emplace_back(name, made(i));
      return true;
    }
    if (!last) return Act(op, child, i + 1);
    if (op.modifier != "$unset") return change(child);
    std::erase_if(node->fields, [&](const auto& f) { return f.name == name; });
    return true;
  }
  bool unset = op.modifier == "$unset";
  if (node->kind == Node::kInt || !IsIndex(name)) return unset;
  size_t index = std::stoul(name);
  if (index >= node->items.size()) {
    if (unset) return true;
    node->items.resize(index);
    node->items.push_back(made(i));
    return true;
  }
  std::optional<Node>& item = node->items[index];
  if (!item) {
    // A null is a value: $set replaces it, nothing else goes through it.
    if (unset) return true;
    if (!last || op.modifier != "$set") return false;
    item = Node{.number = op.number};
    return true;
  }
  if (!last) return Act(op, &*item, i + 1);
  if (!unset) return change(&*item);
  item.reset();
  return true;
}

/// lo..hi-1, evenly from the first test on (inRange alone begins with small numbers).
int Pick(int lo, int hi) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(lo, hi)); }

Node RandomNode(int depth) {
  Node node;
  int kind = Pick(0, depth > 0 ? 4 : 1);
  if (kind <= 1) {
    node.number = Pick(-3, 4);
  } else if (kind == 2) {
    node.kind = Node::kObject;
    for (const char* name : {"a", "b", "0", "c"})
      if (Pick(0, 2)) node.fields.emplace_back(name, RandomNode(depth - 1));
  } else {
    node.kind = Node::kArray;
    int n = Pick(0, 4);
    for (int i = 0; i < n; ++i)
      node.items.push_back(Pick(0, 5) ? std::optional(RandomNode(depth - 1)) : std::nullopt);
  }
  return node;
}

}  // namespace

TEST_CASE("Random $set, $unset, $inc and $push do what a model does", "[update]") {
  CHECK(rc::check("update equals model", [] {
    Node model{.kind = Node::kObject};
    model.fields.emplace_back("_id", Node{.number = 1});
    for (const char* name : {"a", "b", "c"})
      if (Pick(0, 3)) model.fields.emplace_back(name, RandomNode(3));
    BsonDocument old = BuildBson([&](BsonBuilder& b) { WriteFields(model, b); });

    // Paths begin with different letters, so that no two conflict; created in letter order, as the
    // model does them.
    std::vector<Op> ops;
    for (const char* first : {"a", "b", "c", "d"}) {
      if (!Pick(0, 2)) continue;
      Op op;
      op.modifier = *rc::gen::element<std::string>("$set", "$unset", "$inc", "$push");
      op.path.push_back(first);
      int n = Pick(0, 4);
      for (int i = 0; i < n; ++i)
        op.path.push_back(*rc::gen::element<std::string>("a", "b", "0", "1", "3"));
      op.number = Pick(-2, 3);
      ops.push_back(std::move(op));
    }
    BsonDocument u = BuildBson([&](BsonBuilder& b) {
      for (const char* modifier : {"$push", "$inc", "$unset", "$set"}) {
        BsonBuilder sub = b.OpenDocument(modifier);
        for (auto op = ops.rbegin(); op != ops.rend(); ++op)
          if (op->modifier == modifier) sub.Append(op->Dotted(), op->number);
      }
    });

    bool viable = true;
    for (const Op& op : ops) viable = viable && Act(op, &model, 0);
    BsonDocument expected = BuildBson([&](BsonBuilder& b) { WriteFields(model, b); });

    VariableScope scope;
    EvalContext ctx = TestContext(scope);
    auto update = Update::Parse(u.view().AsValue(), {}, scope);
    RC_ASSERT(update.has_value());
    auto outcome = update.value()->Apply(old, -1, false, ctx);
    RC_ASSERT(outcome.has_value() == viable);
    if (!viable) return;
    const Update::Outcome& got = outcome.value();
    RC_ASSERT(got.modified == (expected.bytes() != old.bytes()));
    if (got.modified)
      RC_ASSERT(ToCanonicalJson(BsonView(got.bytes.data())) == ToCanonicalJson(expected));
  }));
}

}  // namespace mayfly
