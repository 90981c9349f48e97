#include <algorithm>
#include <optional>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "query/expression/operator.h"
#include "query/expression/parse_work.h"
#include "query/projection/projection_node.h"

namespace mayfly {

namespace {

constexpr size_t kMaxPathParts = 200;

Error Located(int32_t code, std::string message) {
  return {LocationCode(code), std::move(message)};
}

bool IsOperator(BsonValue v) {
  return v.IsDocument() && v.Document().First().name.starts_with('$');
}

/// Where in `path` a part that is just `$` begins, npos without one. Not where a part only begins
/// with a dollar, as the fields of a DBRef do.
size_t FindPositional(std::string_view path) {
  for (size_t dot = path.find(".$"); dot != std::string_view::npos; dot = path.find(".$", dot + 1))
    if (dot + 2 == path.size() || path[dot + 2] == '.') return dot;
  return std::string_view::npos;
}

/// The parts of a dotted path of a specification. The fields of a DBRef may begin with a dollar.
Result<std::vector<std::string_view>> SplitSpecPath(std::string_view path) {
  if (path.empty()) return Located(40352, "FieldPath cannot be constructed with empty string");
  if (path.back() == '.') return Located(40353, "FieldPath must not end with a '.'.");
  if (path.find('\0') != path.npos)
    return Located(16411, "FieldPath field names may not contain '\\0'.");
  std::vector<std::string_view> parts;
  while (true) {
    size_t dot = path.find('.');
    std::string_view part = path.substr(0, dot);
    if (part.empty()) return Located(15998, "FieldPath field names may not be empty strings.");
    if (part[0] == '$' && part != "$id" && part != "$ref" && part != "$db")
      return Located(
          16410,
          "FieldPath field names may not start with '$'. Consider using $getField or $setField.");
    parts.push_back(part);
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  if (parts.size() > kMaxPathParts) return Error{ErrorCode::kOverflow, "FieldPath is too long"};
  return parts;
}

}  // namespace

class ProjectionParser {
 public:
  enum class Dialect : uint8_t { kFind, kProject, kAddFields };

  ProjectionParser(Dialect dialect, const MatchExpression* filter, VariableScope& scope)
      : dialect_(dialect), filter_(filter), scope_(scope), result_(new ProjectionExecutor) {
    result_->root_ = std::make_unique<ProjectionNode>();
  }

  Result<ProjectionPtr> Parse(BsonView spec) {
    for (const BsonElement& e : spec) {
      MAYFLY_TRY(Element(std::string(e.name), e.value, 0));
    }
    return Finish();
  }

  Result<void> Exclude(std::string_view path) { return Flag(path, false); }

  Result<ProjectionPtr> Finish();

 private:
  Result<void> Element(const std::string& path, BsonValue v, int depth);
  Result<void> Operator(const std::string& path, BsonValue v);
  Result<void> Flag(std::string_view path, bool include);
  Result<void> Positional(std::string_view path, BsonValue v);
  Result<void> Compute(std::string_view path, BsonValue v, bool is_meta);
  Result<void> FindSlice(const std::string& path, BsonValue operand, BsonValue whole);
  Result<void> FindElemMatch(const std::string& path, BsonValue operand);
  Result<ProjectionField*> Add(std::string_view path, ProjectionAction action);
  void AddNeeds(const ProjectionNode& node, const std::string& prefix);

  ParseWork work_{nullptr};
  Dialect dialect_;
  const MatchExpression* filter_;
  VariableScope& scope_;
  std::unique_ptr<ProjectionExecutor> result_;
  std::optional<ProjectionKind> kind_;
  std::optional<bool> id_;  // what was said of _id itself
  bool id_computed_ = false, has_elem_match_ = false, plain_ = true;
};

Result<ProjectionField*> ProjectionParser::Add(std::string_view path, ProjectionAction action) {
  MAYFLY_TRY(auto parts, SplitSpecPath(path));
  ProjectionNode* node = result_->root_.get();
  MAYFLY_TRY(ParseWork::Step(1 + node->by_name.size() / 1024));
  // `taken`: the field that parts[i] meets.
  auto collision = [&](size_t i, const ProjectionField* taken) {
    size_t begin = static_cast<size_t>(parts[i].data() - path.data());
    std::string at(path), rest(path.substr(begin));
    if (dialect_ == Dialect::kAddFields) {
      std::string other(path.substr(0, begin + parts[i].size()));
      while (taken->action == ProjectionAction::kDescend) {
        taken = &taken->below->fields[0];
        other += "." + taken->name;
      }
      return Located(40176, "specification contains two conflicting paths. Cannot specify both '" +
                                at + "' and '" + other + "'");
    }
    if (i + 1 == parts.size()) return Located(31250, "Path collision at " + at);
    return Located(31249, "Path collision at " + at + " remaining portion " +
                              std::string(path.substr(begin + parts[i].size() + 1)));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    ProjectionField* f = node->FindField(parts[i]);
    bool last = i + 1 == parts.size();
    if (f != nullptr && (last || f->action != ProjectionAction::kDescend)) return collision(i, f);
    if (f == nullptr) {
      auto at = std::lower_bound(
          node->by_name.begin(), node->by_name.end(), parts[i],
          [&](int k, std::string_view n) { return node->fields[static_cast<size_t>(k)].name < n; });
      // Kept sorted while parsing too, so that a long specification is not searched line by line
      // for every field.
      node->by_name.insert(at, static_cast<int>(node->fields.size()));
      node->fields.emplace_back();
      f = &node->fields.back();
      ParseWork::Made(sizeof(ProjectionField) + parts[i].size() + 32);
      f->name = parts[i];
      f->action = last ? action : ProjectionAction::kDescend;
      if (!last) f->below = std::make_unique<ProjectionNode>();
    }
    if (last) return f;
    node = f->below.get();
  }
  return Error{ErrorCode::kInternalError,
               "a path without parts"};  // SplitSpecPath answers one at least
}

Result<void> ProjectionParser::Element(const std::string& path, BsonValue v, int depth) {
  if (depth > kMaxBsonDepth) return Error{ErrorCode::kOverflow, "projection is nested too deep"};
  if (dialect_ != Dialect::kAddFields) {
    if (FindPositional(path) != std::string_view::npos) return Positional(path, v);
  }
  if (v.IsDocument()) {
    if (v.Document().empty()) {
      if (dialect_ == Dialect::kAddFields)
        return Located(40180,
                       "an empty object is not a valid value. Found empty object at path " + path);
      return Located(
          51270,
          "An empty sub-projection is not a valid value. Found empty object at path " + path);
    }
    if (IsOperator(v)) return Operator(path, v);
    for (const BsonElement& e : v.Document()) {
      MAYFLY_TRY(Element(path + "." + std::string(e.name), e.value, depth + 1));
    }
    return Ok();
  }
  if (dialect_ != Dialect::kAddFields && (v.IsNumber() || v.Is(BsonType::kBool)))
    return Flag(path, v.Truthy());
  return Compute(path, v, false);
}

Result<void> ProjectionParser::Flag(std::string_view path, bool include) {
  if (path == "_id") {
    if (id_) return Located(31250, "Path collision at _id");
    id_ = include;
    return Add(path, include ? ProjectionAction::kInclude : ProjectionAction::kExclude).has_error()
               ? Result<void>(Located(31250, "Path collision at _id"))
               : Result<void>(Ok());
  }
  ProjectionKind kind = include ? ProjectionKind::kInclusion : ProjectionKind::kExclusion;
  if (kind_ && *kind_ != kind) {
    if (include)
      return Located(
          31253, "Cannot do inclusion on field " + std::string(path) + " in exclusion projection");
    return Located(
        31254, "Cannot do exclusion on field " + std::string(path) + " in inclusion projection");
  }
  kind_ = kind;
  MAYFLY_TRY(Add(path, include ? ProjectionAction::kInclude : ProjectionAction::kExclude));
  return Ok();
}

Result<void> ProjectionParser::Positional(std::string_view path, BsonValue v) {
  if (dialect_ == Dialect::kProject)
    return Located(31324, "Cannot use positional projection in aggregation projection");
  size_t dollar = FindPositional(path);
  if (dollar + 2 != path.size())
    return Located(
        31394,
        "As of 4.4, it's illegal to specify positional operator in the middle of a path. "
        "Positional "
        "projection may only be used at the end, for example: a.b.$. If the query previously used "
        "a form "
        "like a.b.$.d, remove the parts following the '$' and the results will be equivalent.");
  if (!v.IsNumber() && !v.Is(BsonType::kBool) && !v.IsDocument())
    return Located(31308, "positional projection cannot be used with a literal");
  if (!v.IsNumber() && !v.Is(BsonType::kBool))
    return Located(31271, "positional projection cannot be used with an expression or sub object");
  if (!v.Truthy()) return Located(31395, "positional projection cannot be used with exclusion");
  if (kind_ == ProjectionKind::kExclusion)
    return Located(31395, "positional projection cannot be used with exclusion");
  if (has_elem_match_) return Located(31256, "Cannot specify positional operator and $elemMatch.");
  if (!result_->positional_path_.empty())
    return Located(31276, "Cannot specify more than one positional projection per query.");
  if (filter_ == nullptr)
    return Located(51050, "Projections with a positional operator require a matcher");
  path.remove_suffix(2);
  MAYFLY_TRY(Add(path, ProjectionAction::kInclude));
  kind_ = ProjectionKind::kInclusion;
  plain_ = false;
  result_->positional_path_ = path;
  result_->filter_ = filter_;
  return Ok();
}

Result<void> ProjectionParser::Operator(const std::string& path, BsonValue v) {
  BsonElement e = v.Document().First();
  if (dialect_ == Dialect::kFind && v.Document().Count() == 1) {
    if (e.name == "$slice") return FindSlice(path, e.value, v);
    if (e.name == "$elemMatch") return FindElemMatch(path, e.value);
  }
  return Compute(path, v, e.name == "$meta");
}

Result<void> ProjectionParser::Compute(std::string_view path, BsonValue v, bool is_meta) {
  if (dialect_ != Dialect::kAddFields) {
    // $meta adds to an inclusion and to an exclusion, and does not decide which of them it is.
    if (!(is_meta && dialect_ == Dialect::kFind)) {
      if (kind_ == ProjectionKind::kExclusion)
        return Located(31252, "Cannot use expression other than $meta in exclusion projection");
      kind_ = ProjectionKind::kInclusion;
    }
  }
  plain_ = false;
  Result<ExpressionPtr> expr = ParseExpression(v, scope_);
  if (!expr.has_value()) {
    if (expr.error().code == ErrorCode::kInvalidPipelineOperator && IsOperator(v) &&
        dialect_ != Dialect::kAddFields &&
        expr.error().message ==
            "Unrecognized expression '" + std::string(v.Document().First().name) + "'")
      return Located(31325, "Unknown expression " + std::string(v.Document().First().name));
    return std::move(expr).error();
  }
  if (path == "_id") id_computed_ = true;
  MAYFLY_TRY(ProjectionField * f, Add(path, ProjectionAction::kCompute));
  f->expr = std::move(expr).value();
  return Ok();
}

Result<void> ProjectionParser::FindSlice(const std::string& path, BsonValue operand,
                                         BsonValue whole) {
  auto int32 = [](BsonValue n) {
    return static_cast<int32_t>(std::clamp<int64_t>(n.NumberAsInt64(), INT32_MIN + 1, INT32_MAX));
  };
  ProjectionField slice;
  std::string reason;
  if (operand.IsNumber()) {
    slice.limit = int32(operand);
  } else if (operand.IsArray()) {
    std::vector<BsonValue> args = Elements(operand);
    if (args.size() != 2) {
      reason = "Location31272: $slice array argument should be of form [skip, limit]";
    } else if (!args[0].IsNumber()) {
      reason = "Location31273: $slice skip value must be a number";
    } else if (!args[1].IsNumber()) {
      reason = "Location31257: $slice limit value must be a number";
    } else if (args[1].NumberAsInt64() <= 0) {
      // Read as the aggregation operator, then: there the first argument is the array.
      return Located(28724, "First argument to $slice must be an array, but is of type: " +
                                std::string(BsonTypeName(args[0].type())));
    } else {
      slice.has_skip = true;
      slice.skip = int32(args[0]);
      slice.limit = int32(args[1]);
    }
  } else {
    reason = "Location31273: $slice only supports numbers and [skip, limit] arrays";
  }
  if (!reason.empty()) {
    // It may yet be the aggregation operator of that name: [array, n] or [array, position, n].
    Result<ExpressionPtr> expr = ParseExpression(whole, scope_);
    if (expr.has_value()) return Compute(path, whole, false);
    return Located(
        28667,
        "Invalid $slice syntax. The given syntax " + ToRelaxedJson(whole) +
            " did not match the find() syntax because :: " + reason +
            " :: The given syntax did not match the expression $slice syntax. :: caused by :: " +
            expr.error().message);
  }
  plain_ = false;
  MAYFLY_TRY(ProjectionField * f, Add(path, ProjectionAction::kSlice));
  f->has_skip = slice.has_skip;
  f->skip = slice.skip;
  f->limit = slice.limit;
  return Ok();
}

Result<void> ProjectionParser::FindElemMatch(const std::string& path, BsonValue operand) {
  if (!operand.IsDocument())
    return Located(31274, "elemMatch: Invalid argument, object required, but got " +
                              std::string(BsonTypeName(operand.type())));
  if (path.find('.') != std::string::npos)
    return Located(31255, "Cannot use $elemMatch projection on a nested field.");
  if (!result_->positional_path_.empty())
    return Located(31256, "Cannot specify positional operator and $elemMatch.");
  has_elem_match_ = true;
  plain_ = false;
  BsonDocument filter = BuildBson([&](BsonBuilder& b) {
    BsonBuilder sub = b.OpenDocument(path);
    sub.Append("$elemMatch", operand);
  });
  MatchParseOptions options;
  options.scope = &scope_;
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter, options));
  MAYFLY_TRY(ProjectionField * f, Add(path, ProjectionAction::kElemMatch));
  f->elem_match = std::move(match);
  return Ok();
}

void ProjectionParser::AddNeeds(const ProjectionNode& node, const std::string& prefix) {
  ProjectionNeeds& needs = result_->needs_;
  for (const ProjectionField& f : node.fields) {
    std::string path = prefix + f.name;
    switch (f.action) {
      case ProjectionAction::kInclude:
      case ProjectionAction::kSlice:
      case ProjectionAction::kElemMatch:
        needs.paths.insert(path);
        break;
      case ProjectionAction::kExclude:
        break;
      case ProjectionAction::kDescend:
        // Where a computed field goes depends on the arrays on the way.
        if (f.below->has_computed) needs.paths.insert(path);
        AddNeeds(*f.below, path + ".");
        break;
      case ProjectionAction::kCompute: {
        std::set<std::string> paths;
        f.expr->AddDependencies(&paths);
        for (const std::string& p : paths) {
          if (!p.starts_with(kMetaDependency)) {
            if (p.empty()) {
              needs.whole_document = true;
              needs.paths.insert(
                  "");  // tells $addFields that reads it all from one that hands it on
            } else {
              needs.paths.insert(p);
            }
            continue;
          }
          std::string_view meta =
              std::string_view(p).substr(std::string_view(kMetaDependency).size());
          if (meta == "sortKey") needs.sort_key = true;
          if (meta == "textScore") needs.text_score = true;
          if (meta == "recordId") needs.record_id = true;
          if (meta == "indexKey") needs.index_key = true;
          if (meta == "expireAt" || meta == "ttlMillis") needs.expire_at = true;
        }
        break;
      }
    }
  }
}

Result<ProjectionPtr> ProjectionParser::Finish() {
  ProjectionNode& root = *result_->root_;
  if (dialect_ == Dialect::kAddFields) {
    kind_ = ProjectionKind::kAddFields;
  } else if (!kind_) {
    bool inclusion = has_elem_match_ || id_ == true;
    kind_ = inclusion ? ProjectionKind::kInclusion : ProjectionKind::kExclusion;
  }
  result_->kind_ = *kind_;
  if (*kind_ == ProjectionKind::kInclusion) {
    if (id_ == false) {
      auto at = std::find_if(root.fields.begin(), root.fields.end(),
                             [](const ProjectionField& f) { return f.name == "_id"; });
      root.fields.erase(at);
    } else if (!id_ && !id_computed_ && root.Find("_id") < 0) {
      ProjectionField id;
      id.name = "_id";
      root.fields.insert(root.fields.begin(), std::move(id));
    }
  } else if (*kind_ == ProjectionKind::kExclusion && id_ == true) {
    std::erase_if(root.fields, [](const ProjectionField& f) { return f.name == "_id"; });
  }
  root.Finish();
  result_->identity_ = root.fields.empty() && *kind_ != ProjectionKind::kInclusion;
  AddNeeds(root, "");
  if (*kind_ != ProjectionKind::kInclusion || !result_->positional_path_.empty())
    result_->needs_.whole_document = true;
  result_->coverable_ = plain_ && *kind_ == ProjectionKind::kInclusion;
  if (dialect_ == Dialect::kFind && result_->needs_.text_score)
    return Located(40218, "query requires text score metadata, but it is not available");
  MAYFLY_TRY(work_.Keep(&result_->held_));
  return ProjectionPtr(std::move(result_));
}

namespace {

Error InStage(std::string_view stage, Error e) {
  e.message = "Invalid " + std::string(stage) + " :: caused by :: " + e.message;
  return e;
}

}  // namespace

Result<ProjectionPtr> ParseFindProjection(BsonView spec, const MatchExpression* filter,
                                          VariableScope& scope) {
  return ProjectionParser(ProjectionParser::Dialect::kFind, filter, scope).Parse(spec);
}

Result<ProjectionPtr> ParseAggProject(BsonView spec, VariableScope& scope) {
  if (spec.empty())
    return InStage("$project",
                   Located(51272, "projection specification must have at least one field"));
  Result<ProjectionPtr> r =
      ProjectionParser(ProjectionParser::Dialect::kProject, nullptr, scope).Parse(spec);
  if (r.has_value()) return r;
  return InStage("$project", std::move(r).error());
}

Result<ProjectionPtr> ParseAddFields(BsonView spec, VariableScope& scope, std::string_view stage) {
  if (spec.empty())
    return InStage(stage, Located(40177, "specification must have at least one field"));
  Result<ProjectionPtr> r =
      ProjectionParser(ProjectionParser::Dialect::kAddFields, nullptr, scope).Parse(spec);
  if (r.has_value()) return r;
  return InStage(stage, std::move(r).error());
}

Result<ProjectionPtr> ParseUnset(BsonValue spec, VariableScope& scope) {
  ProjectionParser parser(ProjectionParser::Dialect::kProject, nullptr, scope);
  auto exclude = [&](BsonValue path) -> Result<void> {
    // check_names: SplitSpecPath looks
    Result<void> r = parser.Exclude(path.String());
    if (r.has_value()) return Ok();
    return InStage("$unset", std::move(r).error());
  };
  if (spec.IsString()) {
    MAYFLY_TRY(exclude(spec));
  } else if (spec.IsArray()) {
    if (spec.Document().empty())
      return Located(31119,
                     "$unset specification must be a string or an array with at least one field");
    for (const BsonElement& e : spec.Document()) {
      if (!e.value.IsString())
        return Located(
            31120,
            "$unset specification must be a string or an array containing only string values");
      MAYFLY_TRY(exclude(e.value));
    }
  } else {
    return Located(31002, "$unset specification must be a string or an array");
  }
  return parser.Finish();
}

}  // namespace mayfly
