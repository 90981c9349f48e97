#include "protocol/bson_builder.h"
#include "query/expression/readable.h"
#include "query/match/match_internal.h"

namespace mayfly {

namespace {

bool IsLogical(MatchKind kind) {
  switch (kind) {
    case MatchKind::kAlwaysTrue:
    case MatchKind::kAlwaysFalse:
    case MatchKind::kAnd:
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kNot:
    case MatchKind::kAll:
    case MatchKind::kExpr:
    case MatchKind::kWhere:
    case MatchKind::kJsonSchema:
      return true;
    default:
      return false;
  }
}

std::string_view MatchOperator(MatchKind kind) {
  switch (kind) {
    case MatchKind::kEq:
      return "$eq";
    case MatchKind::kLt:
      return "$lt";
    case MatchKind::kLte:
      return "$lte";
    case MatchKind::kGt:
      return "$gt";
    case MatchKind::kGte:
      return "$gte";
    case MatchKind::kBitsAllSet:
      return "$bitsAllSet";
    case MatchKind::kBitsAllClear:
      return "$bitsAllClear";
    case MatchKind::kBitsAnySet:
      return "$bitsAnySet";
    case MatchKind::kBitsAnyClear:
      return "$bitsAnyClear";
    default:
      return "";
  }
}

void SerializeNode(const MatchExpression& e, BsonBuilder& out);

void SerializeList(std::string_view name, const std::vector<MatchPtr>& children, BsonBuilder& out) {
  BsonArrayBuilder list = out.OpenArray(name);
  for (const MatchPtr& c : children) {
    BsonBuilder doc = list.OpenDocument();
    SerializeNode(*c, doc);
  }
}

/// The operators of one field: `$gt: 1`, without the field's name around them. Not `alone`: others
/// stand beside it, and an `$options` could be taken for that of another $regex.
void SerializePredicate(const MatchExpression& e, BsonBuilder& out, bool alone = true) {
  switch (e.kind) {
    case MatchKind::kIn: {
      BsonArrayBuilder list = out.OpenArray("$in");
      for (const Value& v : e.list) list.Append(v.view());
      for (const auto& r : e.regexes)
        list.raw().AppendRegex(list.NextName(), r->pattern(), r->options());
      break;
    }
    case MatchKind::kRegex:
      if (!alone) {
        out.Append("$regex", e.operand.view());
        break;
      }
      out.Append("$regex", e.regexes[0]->pattern());
      if (!e.regexes[0]->options().empty()) out.Append("$options", e.regexes[0]->options());
      break;
    case MatchKind::kMod: {
      BsonArrayBuilder list = out.OpenArray("$mod");
      list.Append(e.extra->divisor).Append(e.extra->remainder);
      break;
    }
    case MatchKind::kExists:
      if (e.operand.view().Bool()) {
        out.Append("$exists", true);
      } else {
        out.OpenDocument("$not").Append("$exists", true);
      }
      break;
    case MatchKind::kType: {
      BsonArrayBuilder list = out.OpenArray("$type");
      for (const Value& v : e.list) list.Append(v.view());
      break;
    }
    case MatchKind::kSize:
      out.Append("$size", e.operand.view());
      break;
    case MatchKind::kElemMatchObject: {
      BsonBuilder doc = out.OpenDocument("$elemMatch");
      SerializeNode(*e.children[0], doc);
      break;
    }
    case MatchKind::kElemMatchValue: {
      BsonBuilder doc = out.OpenDocument("$elemMatch");
      for (const MatchPtr& c : e.children) SerializePredicate(*c, doc, e.children.size() == 1);
      break;
    }
    case MatchKind::kAnd:
      for (const MatchPtr& c : e.children) SerializePredicate(*c, out, false);
      break;
    case MatchKind::kNot: {
      BsonBuilder doc = out.OpenDocument("$not");
      SerializePredicate(*e.children[0], doc);
      break;
    }
    // Within $elemMatch: what `$in: []` and its negation become.
    case MatchKind::kAlwaysTrue:
      out.OpenArray("$nin");
      break;
    case MatchKind::kAlwaysFalse:
      out.OpenArray("$in");
      break;
    case MatchKind::kBitsAllSet:
    case MatchKind::kBitsAllClear:
    case MatchKind::kBitsAnySet:
    case MatchKind::kBitsAnyClear: {
      if (e.extra->bit_positions.empty() && e.operand.view().Is(BsonType::kBinary)) {
        out.Append(MatchOperator(e.kind), e.operand.view());
        break;
      }
      BsonArrayBuilder list = out.OpenArray(MatchOperator(e.kind));
      for (uint32_t p : e.extra->bit_positions) list.Append(static_cast<int32_t>(p));
      break;
    }
    default:
      out.Append(MatchOperator(e.kind), e.operand.view());
      break;
  }
}

void SerializeNode(const MatchExpression& e, BsonBuilder& out) {
  switch (e.kind) {
    case MatchKind::kAlwaysTrue:
      out.Append("$alwaysTrue", int32_t{1});
      return;
    case MatchKind::kAlwaysFalse:
      out.Append("$alwaysFalse", int32_t{1});
      return;
    case MatchKind::kAnd:
    case MatchKind::kAll:
      SerializeList("$and", e.children, out);
      return;
    case MatchKind::kOr:
      SerializeList("$or", e.children, out);
      return;
    case MatchKind::kNor:
      SerializeList("$nor", e.children, out);
      return;
    case MatchKind::kNot: {
      const MatchExpression& c = *e.children[0];
      if (IsLogical(c.kind)) {
        SerializeList("$nor", e.children, out);
      } else {
        BsonBuilder field = out.OpenDocument(c.path);
        BsonBuilder inner = field.OpenDocument("$not");
        SerializePredicate(c, inner);
      }
      return;
    }
    case MatchKind::kExpr:
      e.extra->expr->Serialize(out, "$expr");
      return;
    case MatchKind::kJsonSchema:
      out.Append("$jsonSchema", e.extra->schema_source);
      return;
    case MatchKind::kWhere:
      return;
    default: {
      BsonBuilder field = out.OpenDocument(e.path);
      SerializePredicate(e, field);
      return;
    }
  }
}

/// One character for the way in which an index can serve a comparison with `v`.
char TypeClass(BsonValue v) {
  switch (v.type()) {
    case BsonType::kNull:
      return 'n';
    case BsonType::kDocument:
      return 'd';
    case BsonType::kArray:
      return 'a';
    case BsonType::kRegex:
      return 'r';
    case BsonType::kString:
      return 's';
    case BsonType::kMinKey:
    case BsonType::kMaxKey:
      return 'm';
    default:
      return 'o';
  }
}

/// Operators and fields of an expression, without what is constant in it.
void AppendExpressionShape(const Expression& e, std::string& out) {
  if (IsFixed(e)) {
    out.push_back('?');
    return;
  }
  const ReadableExpression* r = AsReadable(e);
  if (r == nullptr) {
    out.push_back('*');
    return;
  }
  if (const std::string path = r->DocumentPath(); !path.empty()) {
    // check_names: a key of the plan cache, no BSON
    out.append(path).push_back('\0');
    return;
  }
  out.append(r->Operator()).push_back('(');
  for (const ExpressionPtr& o : r->Operands())
    if (o) AppendExpressionShape(*o, out);
  out.push_back(')');
}

}  // namespace

void MatchExpression::Serialize(BsonBuilder& out) const {
  if (kind != MatchKind::kAlwaysTrue) SerializeNode(*this, out);
}

void MatchExpression::AppendShape(std::string& out) const {
  out.push_back(static_cast<char>('A' + static_cast<int>(kind)));
  // check_names: a key of the plan cache, no BSON
  out.append(path).push_back('\0');
  switch (kind) {
    case MatchKind::kEq:
    case MatchKind::kLt:
    case MatchKind::kLte:
    case MatchKind::kGt:
    case MatchKind::kGte:
      out.push_back(TypeClass(operand.view()));
      break;
    case MatchKind::kIn: {
      std::string classes;
      for (const Value& v : list) {
        char c = TypeClass(v.view());
        if (classes.find(c) == std::string::npos) classes.push_back(c);
      }
      if (!regexes.empty()) classes.push_back('x');
      out.append(classes).push_back('.');
      break;
    }
    case MatchKind::kRegex: {
      // Only an anchored pattern can give bounds; the options decide whether it does.
      const CompiledRegex& r = *regexes[0];
      out.push_back(r.pattern().starts_with('^') || r.pattern().starts_with("\\A") ? '^' : '*');
      out.append(r.options()).push_back('.');
      break;
    }
    case MatchKind::kExists:
      out.push_back(operand.view().Bool() ? '1' : '0');
      break;
    case MatchKind::kType:
      for (const Value& v : list) out.append(std::to_string(v.view().Int32())).push_back(',');
      break;
    case MatchKind::kExpr:
      AppendExpressionShape(*extra->expr, out);
      break;
    default:
      break;
  }
  if (!children.empty()) {
    out.push_back('(');
    for (const MatchPtr& c : children) c->AppendShape(out);
    out.push_back(')');
  }
}

}  // namespace mayfly
