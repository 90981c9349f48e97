#include "query/update/update.h"

#include <map>

#include "protocol/bson_builder.h"
#include "protocol/bson_check.h"
#include "protocol/bson_compare.h"
#include "protocol/field_once.h"
#include "protocol/object_id.h"
#include "query/expression/element_text.h"
#include "query/expression/insert_prepare.h"
#include "query/expression/pace.h"
#include "query/expression/parse_work.h"
#include "query/update/update_node.h"
#include "query/update/update_pipeline.h"

namespace mayfly {

Error update::TooLarge(bool upsert) { return UpdateTooLarge(upsert); }

namespace {

using update::Node;

std::string DottedName(std::string_view s) { return "'" + std::string(s) + "'"; }

/// Checks an update's result; every kind of update passes it.
Result<void> CheckSize(const std::string& bytes, bool upsert) {
  bson_check::Document(bytes, "an update");
  if (bytes.size() <= static_cast<size_t>(kMaxBsonUserSize)) return Ok();
  return update::TooLarge(upsert);
}

Error IdAltered(BsonValue id) {
  return {
      ErrorCode::kImmutableField,
      "After applying the update, the (immutable) field '_id' was found to have been altered to " +
          update::ElementText("_id", id)};
}

// --------------------------------------------------------------------------------
// operators

class OperatorUpdate final : public Update {
 public:
  explicit OperatorUpdate(BsonView u)
      : Update(UpdateKind::kOperators), storage_(u), root_(pool_.New()) {
    root_->kind = Node::Kind::kObject;
  }

  Result<void> Init(std::span<const BsonView> array_filters, VariableScope& scope) {
    MAYFLY_TRY(filters_, update::ParseArrayFilters(array_filters, scope));
    filter_used_.resize(filters_.size());
    for (const BsonElement& modifier : storage_.view()) {
      if (modifier.name == "$expire") {
        if (expiry_.given()) return DuplicateField("update", modifier.name);
        // Whether it reaches too far from now is looked at when it is applied.
        MAYFLY_TRY(expiry_, ParseExpireOperator(modifier.value, Instant{0}));
        continue;
      }
      const update::OperatorRow* row = update::FindOperator(modifier.name);
      bool rename = modifier.name == "$rename";
      if (!row && !rename)
        return FailedToParse(
            "Unknown modifier: " + std::string(modifier.name) +
            ". Expected a valid update modifier or pipeline-style update specified as an array");
      if (!modifier.value.IsDocument())
        return FailedToParse("Modifiers operate on fields but we found type " +
                             std::string(BsonTypeName(modifier.value.type())) +
                             " instead. For example: {$mod: {<field>: ...}} not {" +
                             update::ElementText(modifier.name, modifier.value) + "}");
      for (const BsonElement& operand : modifier.value.Document()) {
        // Names are kept in order, so that each may move those behind it.
        MAYFLY_TRY(ParseWork::Step(1 + root_->children.size() / 128));
        if (rename) {
          MAYFLY_TRY(AddRename(operand));
          continue;
        }
        ParseWork::Made(sizeof(Node) + 160 + operand.name.size());
        update::LeafParser parser{scope};
        MAYFLY_TRY(auto parts, update::ParsePath(operand.name));
        MAYFLY_TRY(update::LeafPtr leaf, row->parse(operand, parser));
        MAYFLY_TRY(Add(operand.name, parts, std::move(leaf)));
      }
    }
    for (size_t i = 0; i < filters_.size(); ++i)
      if (!filter_used_[i])
        return FailedToParse("The array filter for identifier " + DottedName(filters_[i].name) +
                             " was not used in the update " +
                             update::ValueText(storage_.view().AsValue()));
    return Ok();
  }

  Result<bool> ApplyTo(BsonView old, int positional_index, bool is_insert, EvalContext& ctx,
                       std::string* out) const override {
    update::ApplyContext apply{.root = old, .is_insert = is_insert, .now = ctx.now, .eval = &ctx};
    std::vector<BsonValue> sources;
    if (!renames_.empty()) {
      MAYFLY_TRY(sources, RenameSources(old, ctx));
      apply.rename_sources = sources.data();
    }
    MAYFLY_TRY(bool modified, update::ApplyTree(*root_, filters_, apply, positional_index, out));
    if (modified) {
      MAYFLY_TRY(CheckSize(*out, is_insert));
    }
    return modified;
  }

 private:
  struct Rename {
    std::string_view from, to;
  };

  Result<void> Add(std::string_view path, const std::vector<update::PathPart>& parts,
                   update::LeafPtr leaf) {
    for (const update::PathPart& part : parts) {
      if (part.kind == update::PathPart::Kind::kPositional) needs_position_ = true;
      if (part.kind != update::PathPart::Kind::kFiltered || part.name.empty()) continue;
      bool found = false;
      MAYFLY_TRY(ParseWork::Step(1 + filters_.size() / 8));
      for (size_t i = 0; i < filters_.size(); ++i)
        if (filters_[i].name == part.name) found = filter_used_[i] = true;
      if (!found)
        return BadValue("No array filter found for identifier " + DottedName(part.name) +
                        " in path " + DottedName(path));
    }
    MAYFLY_TRY(update::AddPath(pool_, root_, path, parts, leaf.get()));
    leaves_.push_back(std::move(leaf));
    touched_paths_.emplace_back(path);
    return Ok();
  }

  Result<void> AddRename(const BsonElement& operand) {
    if (!operand.value.IsString())
      return BadValue("The 'to' field for $rename must be a string: " +
                      update::ElementText(operand.name, operand.value));
    std::string_view from = operand.name, to = operand.value.String();
    if (to.find('\0') != std::string_view::npos)
      return BadValue("The 'to' field for $rename cannot contain an embedded null byte");
    MAYFLY_TRY(auto from_parts, update::ParsePath(from));
    MAYFLY_TRY(auto to_parts, update::ParsePath(to));
    std::string text = update::ElementText(operand.name, operand.value);
    if (from == to) return BadValue("The source and target field for $rename must differ: " + text);
    auto below = [](std::string_view a, std::string_view b) {
      return a.starts_with(b) && a[b.size()] == '.';
    };
    if ((from.size() > to.size() && below(from, to)) ||
        (to.size() > from.size() && below(to, from)))
      return BadValue("The source and target field for $rename must not be on the same path: " +
                      text);
    auto dynamic = [](const std::vector<update::PathPart>& parts) {
      for (const auto& part : parts)
        if (part.kind != update::PathPart::Kind::kField) return true;
      return false;
    };
    if (dynamic(from_parts))
      return BadValue("The source field for $rename may not be dynamic: " + std::string(from));
    if (dynamic(to_parts))
      return BadValue("The destination field for $rename may not be dynamic: " + std::string(to));
    int number = static_cast<int>(renames_.size());
    MAYFLY_TRY(Add(from, from_parts, update::MakeRenameSource(number)));
    MAYFLY_TRY(Add(to, to_parts, update::MakeRenameDestination(number)));
    renames_.push_back({from, to});
    return Ok();
  }

  /// The value at a path of plain fields; `*array` becomes the name of the first array on the way,
  /// if any. Errors: PathNotViable 28 when something is there that has no fields.
  static Result<BsonValue> Follow(BsonView doc, std::string_view path, std::string_view* array) {
    BsonValue at = doc.AsValue();
    std::string_view name;
    for (std::string_view rest = path; !rest.empty();) {
      size_t dot = rest.find('.');
      std::string_view next = rest.substr(0, dot);
      rest.remove_prefix(dot == std::string_view::npos ? rest.size() : dot + 1);
      if (at.IsArray() && array->empty()) *array = name;
      if (!at.IsDocument() && !(at.IsArray() && update::ArrayIndex(next) >= 0))
        return Error{ErrorCode::kPathNotViable,
                     "cannot use the part (" + std::string(name) + " of " + std::string(path) +
                         ") to traverse the element ({" + update::ElementText(name, at) + "})"};
      at = at.Document().Find(next);
      if (at.missing()) return at;
      name = next;
    }
    return at;
  }

  static Error InArray(BsonView doc, std::string_view role, std::string_view path,
                       std::string_view array) {
    BsonValue id = doc["_id"];
    return BadValue("The " + std::string(role) + " field cannot be an array element, " +
                    DottedName(path) + " in doc with " +
                    (id ? update::ElementText("_id", id) : "no id") +
                    " has an array field called " + DottedName(array));
  }

  Result<std::vector<BsonValue>> RenameSources(BsonView old, EvalContext& ctx) const {
    std::vector<BsonValue> sources;
    Pace pace(ctx);
    for (const Rename& r : renames_) {
      MAYFLY_TRY(pace.Step(size_t{2} * old.size()));  // each is looked for in all of it
      std::string_view array;
      MAYFLY_TRY(BsonValue v, Follow(old, r.from, &array));
      if (v && !array.empty()) return InArray(old, "source", r.from, array);
      if (v) {
        // A destination that cannot be created is for the descent to refuse.
        auto destination = Follow(old, r.to, &array);
        if (destination && !array.empty()) return InArray(old, "destination", r.to, array);
      }
      sources.push_back(v);  // bounded: by the update
    }
    return sources;
  }

  BsonDocument storage_;
  update::NodePool pool_;
  Node* root_;
  std::vector<update::LeafPtr> leaves_;
  std::vector<update::ElementFilter> filters_;
  std::vector<bool> filter_used_;
  std::vector<Rename> renames_;
};

// --------------------------------------------------------------------------------
// replacement

/// `_id` of `old` (or `id` when there is none), then `body`, a run of elements without `_id`.
void ReplaceDocument(BsonView old, BsonValue id, std::string_view body, std::string* out) {
  BsonValue old_id = old["_id"];
  out->clear();
  out->reserve(body.size() + old_id.size() + id.size() + 16);
  BsonBuilder b(*out);
  b.Append("_id", old_id ? old_id : id);
  out->append(body);
  b.Done();
}

/// A level takes 7 bytes at least: most documents need no look at all of their fields.
bool NestsTooDeep(BsonView doc) {
  return doc.size() > 7 * kMaxBsonDepth && NestingDepth(doc.AsValue()) > kMaxBsonDepth;
}

class ReplacementUpdate final : public Update {
 public:
  ReplacementUpdate() : Update(UpdateKind::kReplacement) {}

  Result<void> Init(BsonView u, bool keep_empty_timestamps) {
    bool has_id = false;
    for (const BsonElement& e : u) {
      if (e.name == "_id") {
        if (has_id) return BadValue("can't have multiple _id fields");
        has_id = true;
        id_ = Value::Copy(e.value);
        continue;
      }
      if (e.name == "$expire")
        return Error{ErrorCode::kDollarPrefixedFieldName,
                     "$expire goes with update operators, not with a replacement document: give "
                     "the statement expireAfterSeconds or expireAt, or use $set"};
      if (dollar_.empty() && e.name.starts_with('$')) dollar_ = e.name;
      update::Emit(body_, e.name, e.value);
      if (e.value.Is(BsonType::kTimestamp) && e.value.Timestamp() == 0 && !keep_empty_timestamps)
        empty_timestamps_.push_back(body_.size() - sizeof(uint64_t));
    }
    return Ok();
  }

  Result<bool> ApplyTo(BsonView old, int, bool is_insert, EvalContext& ctx,
                       std::string* out) const override {
    if (!dollar_.empty() && !is_insert) return update::DollarPrefixed(dollar_, dollar_);
    BsonValue old_id = old["_id"];
    if (old_id && id_.view() && !ValuesEqual(old_id, id_.view())) return IdAltered(id_.view());
    ReplaceDocument(old, id_.view(), body_, out);
    size_t body_at = out->size() - 1 - body_.size();
    for (size_t at : empty_timestamps_)
      StoreLe<uint64_t>(out->data() + body_at + at, NextTimestamp(ctx.now));
    MAYFLY_TRY(CheckSize(*out, is_insert));
    return *out != old.bytes();
  }

 protected:
  Result<std::string> UpsertBase(const MatchExpression* filter) const override;

 private:
  Value id_;
  std::string body_;
  std::string dollar_;  ///< the first field whose name begins with a dollar: for inserts only
  std::vector<size_t> empty_timestamps_;  ///< offsets in body_
};

// --------------------------------------------------------------------------------
// pipeline

class PipelineUpdate final : public Update {
 public:
  explicit PipelineUpdate(BsonView u) : Update(UpdateKind::kPipeline), storage_(u) {}
  Result<void> Init(VariableScope& scope) {
    MAYFLY_TRY(transform_, ParseUpdatePipeline(storage_.view(), scope));
    return Ok();
  }

  Result<bool> ApplyTo(BsonView old, int, bool is_insert, EvalContext& ctx,
                       std::string* out) const override {
    MAYFLY_TRY(std::string result, transform_->Apply(old, ctx));
    const BsonView made(result.data());
    const BsonValue old_id = old["_id"];
    if (old_id) {
      MAYFLY_TRY(const BsonView ready, PrepareReplacement(made, old_id, out, is_insert));
      if (ready.data() == made.data()) *out = std::move(result);
    } else if (NestingDepth(made.AsValue()) > kMaxBsonDepth) {  // an upsert's is prepared later
      return DocumentTooDeep();
    } else {
      *out = std::move(result);
    }
    MAYFLY_TRY(CheckSize(*out, is_insert));
    return *out != old.bytes();
  }

 private:
  BsonDocument storage_;
  std::unique_ptr<DocumentTransform> transform_;
};

// --------------------------------------------------------------------------------
// upsert

using Equalities = std::map<std::string_view, BsonValue>;

/// The filter's values for a new document: equalities that are not under $or, $nor or $not.
Result<void> CollectEqualities(const MatchExpression& m, bool id_only, Equalities* out) {
  if (m.kind == MatchKind::kAnd) {
    for (const auto& child : m.children) {
      MAYFLY_TRY(CollectEqualities(*child, id_only, out));
    }
    return Ok();
  }
  if (m.kind != MatchKind::kEq) return Ok();
  if (id_only && m.path != "_id") {
    if (m.path.starts_with("_id."))
      return Error{ErrorCode::kNotExactValueField,
                   "field at '_id' must be exactly specified, field at sub-path " +
                       DottedName(m.path) + "found"};
    return Ok();
  }
  if (!out->emplace(m.path, m.operand.view()).second)
    return Error{ErrorCode::kNotSingleValueField, "cannot infer query fields to set, path " +
                                                      DottedName(m.path) + " is matched twice"};
  return Ok();
}

Result<std::string> DocumentOfEqualities(const MatchExpression* filter, bool id_only) {
  Equalities equalities;
  if (filter) {
    MAYFLY_TRY(CollectEqualities(*filter, id_only, &equalities));
  }
  update::NodePool pool;
  Node* root = pool.New();
  root->kind = Node::Kind::kObject;
  std::vector<update::LeafPtr> leaves;
  for (const auto& [path, value] : equalities) {
    std::vector<update::PathPart> parts;
    for (size_t begin = 0; begin <= path.size();) {
      size_t end = std::min(path.find('.', begin), path.size());
      parts.push_back({update::PathPart::Kind::kField, path.substr(begin, end - begin)});
      begin = end + 1;
      if (begin <= path.size() && equalities.contains(path.substr(0, end)))
        return Error{ErrorCode::kNotSingleValueField,
                     "cannot infer query fields to set, both paths " +
                         DottedName(path.substr(0, end)) + " and " + DottedName(path) +
                         " are matched"};
    }
    leaves.push_back(update::MakeSet(value));
    MAYFLY_TRY(update::AddPath(pool, root, path, parts, leaves.back().get()));
  }
  std::string out;
  MAYFLY_TRY(update::ApplyTree(*root, {}, {}, -1, &out));
  return out;
}

Result<std::string> ReplacementUpdate::UpsertBase(const MatchExpression* filter) const {
  return DocumentOfEqualities(filter, true);
}

}  // namespace

Result<std::string> Update::UpsertBase(const MatchExpression* filter) const {
  return DocumentOfEqualities(filter, false);
}

namespace {

Result<std::unique_ptr<Update>> ParseOneOfThree(BsonValue u,
                                                std::span<const BsonView> array_filters,
                                                VariableScope& scope,
                                                const UpdateOptions& options) {
  if (u.IsArray()) {
    if (!array_filters.empty())
      return FailedToParse("arrayFilters may not be specified for pipeline-style updates");
    auto update = std::make_unique<PipelineUpdate>(u.Document());
    MAYFLY_TRY(update->Init(scope));
    return update;
  }
  if (!u.IsDocument()) return FailedToParse("Update argument must be either an object or an array");
  if (u.Document().First().name.starts_with('$')) {
    auto update = std::make_unique<OperatorUpdate>(u.Document());
    MAYFLY_TRY(update->Init(array_filters, scope));
    return update;
  }
  if (!array_filters.empty())
    return FailedToParse("arrayFilters may not be specified for replacement-style updates");
  if (options.multi)
    return FailedToParse("multi update is not supported for replacement-style update");
  if (NestsTooDeep(u.Document())) return DocumentTooDeep();
  auto update = std::make_unique<ReplacementUpdate>();
  MAYFLY_TRY(update->Init(u.Document(), options.keep_empty_timestamps));
  return update;
}

}  // namespace

Result<std::unique_ptr<Update>> Update::Parse(BsonValue u, std::span<const BsonView> array_filters,
                                              VariableScope& scope, const UpdateOptions& options) {
  ParseWork work(nullptr);
  ParseWork::Made(u.size());  // each kind has a copy
  MAYFLY_TRY(std::unique_ptr<Update> update, ParseOneOfThree(u, array_filters, scope, options));
  MAYFLY_TRY(work.Keep(&update->held_));
  return update;
}

Result<Update::Outcome> Update::Apply(BsonView old, int positional_index, bool is_insert,
                                      EvalContext& ctx) const {
  Outcome outcome;
  MAYFLY_TRY(outcome.modified, ApplyTo(old, positional_index, is_insert, ctx, &outcome.bytes));
  if (!outcome.modified) outcome.bytes.clear();
  return outcome;
}

Result<void> CheckUpsertFilter(BsonView filter) {
  for (const BsonElement& e : filter) {
    if (e.name == "$expr")
      return Error{ErrorCode::kQueryFeatureNotAllowed,
                   "$expr is not allowed in the query predicate for an upsert"};
    if (e.name != "$and" && e.name != "$or" && e.name != "$nor") continue;
    for (const BsonElement& branch : e.value.Document()) {
      MAYFLY_TRY(CheckUpsertFilter(branch.value.Document()));
    }
  }
  return Ok();
}

Result<std::string> Update::MakeUpsert(const MatchExpression* filter, Instant now,
                                       EvalContext& ctx) const {
  MAYFLY_TRY(std::string base, UpsertBase(filter));
  std::string made;
  MAYFLY_TRY(bool modified, ApplyTo(BsonView(base.data()), -1, true, ctx, &made));
  if (!modified) made = std::move(base);
  BsonView doc(made.data());
  BsonElement first = doc.First();
  BsonValue id;
  for (const BsonElement& e : doc) {
    if (e.name != "_id") continue;
    if (id) return BadValue("can't have multiple _id fields");
    id = e.value;
  }
  if (doc.Has("$expire"))  // as PrepareInsert
    return Error{ErrorCode::kDollarPrefixedFieldName,
                 "a document to insert cannot have the field '$expire': give the statement "
                 "expireAfterSeconds or expireAt, or the collection the option expiry.field"};
  if (id) {
    MAYFLY_TRY(CheckIdValue(id));
  }
  if (NestsTooDeep(doc)) return DocumentTooDeep();
  if (id && first.name == "_id") return made;
  std::string out;
  out.reserve(made.size() + 17);
  BsonBuilder b(out);
  if (id) {
    b.Append("_id", id);
  } else {
    b.AppendObjectId("_id", NewObjectId(now));
  }
  for (const BsonElement& e : doc)
    if (e.name != "_id") b.Append(e);
  b.Done();
  MAYFLY_TRY(CheckSize(out, true));
  return out;
}

namespace {

bool IsPosition(std::string_view s) { return update::ArrayIndex(s) >= 0; }

/// Do the paths meet, positions aside: is one a prefix of the other?
bool PathsMeet(std::string_view touched, std::string_view indexed) {
  if (touched.empty() || indexed.empty()) return true;
  auto split = [](std::string_view s) {
    size_t dot = s.find('.');
    return std::pair(s.substr(0, dot),
                     dot == std::string_view::npos ? std::string_view() : s.substr(dot + 1));
  };
  auto [t, touched_rest] = split(touched);
  if (t == "$" || t.starts_with("$[")) return PathsMeet(touched_rest, indexed);
  auto [i, indexed_rest] = split(indexed);
  if (i.starts_with("$*")) return true;
  if (t == i && PathsMeet(touched_rest, indexed_rest)) return true;
  return (IsPosition(t) && PathsMeet(touched_rest, indexed)) ||
         (IsPosition(i) && PathsMeet(touched, indexed_rest));
}

}  // namespace

bool Update::MayAffect(std::string_view indexed_path) const {
  if (kind_ != UpdateKind::kOperators) return true;
  for (const std::string& path : touched_paths_)
    if (PathsMeet(path, indexed_path)) return true;
  return false;
}

}  // namespace mayfly
