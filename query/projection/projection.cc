#include "query/projection/projection.h"

#include <algorithm>

#include "protocol/bson_builder.h"
#include "query/expression/growth.h"
#include "query/expression/nesting.h"
#include "query/expression/operator.h"
#include "query/expression/readable.h"
#include "query/match/match_internal.h"
#include "query/projection/projection_node.h"
#include "storage/operation.h"

namespace mayfly {

namespace {

constexpr size_t kLinearSearch = 8;  // up to here comparing names one by one is fastest

/// Which fields of a node have been written; no allocation for up to 64.
class Written {
 public:
  explicit Written(size_t n) {
    if (n > 64) more_.resize(n);
  }
  bool operator[](size_t i) const { return more_.empty() ? ((bits_ >> i) & 1) != 0 : more_[i]; }
  void Set(size_t i) {
    if (more_.empty()) {
      bits_ |= uint64_t{1} << i;
    } else {
      more_[i] = true;
    }
  }

 private:
  uint64_t bits_ = 0;
  std::vector<bool> more_;
};

void AppendSlice(const ProjectionField& f, std::string_view name, BsonValue v, BsonBuilder& out) {
  if (!v.IsArray()) {
    out.Append(name, v);
    return;
  }
  int64_t size = v.Document().Count();
  int64_t begin = 0, end = size;
  if (f.has_skip) {
    begin = f.skip >= 0 ? std::min<int64_t>(f.skip, size) : std::max<int64_t>(0, size + f.skip);
    end = std::min<int64_t>(size, begin + f.limit);
  } else if (f.limit >= 0) {
    end = std::min<int64_t>(size, f.limit);
  } else {
    begin = std::max<int64_t>(0, size + f.limit);
  }
  BsonArrayBuilder array = out.OpenArray(name);
  int64_t i = 0;
  for (const BsonElement& e : v.Document()) {
    if (i >= end) break;
    if (i >= begin) array.Append(e.value);
    ++i;
  }
}

struct ProjectionApplier {
  ProjectionKind kind;
  EvalContext& ctx;
  Charge charge{ctx};  ///< what is written
  Pace pace{ctx};      ///< what is walked: stages and fields may be many, and each walks all of it
  int within = 1;      ///< documents and arrays around the field that is written

  Result<void> Compute(const ProjectionField& f, BsonBuilder& out) {
    if (ctx.op) {
      MAYFLY_TRY(ctx.op->CheckInterrupt());
    }
    MAYFLY_TRY(Value v, f.expr->Evaluate(ctx));
    // In every document of an array, or under many names.
    const size_t n = out.buffer().size() + v.view().size();
    if (n >= large_memory::kLarge) [[unlikely]] {
      if (n > size_t{3} * kMaxValueBytes) return ValueTooLarge(n);
      MAYFLY_TRY(charge.Set(std::max(n, out.buffer().capacity())));
    }
    MAYFLY_TRY(CheckNesting(v.view(), within));
    out.Append(f.name, v.view());
    return Ok();
  }

  Result<void> ElemMatch(const ProjectionField& f, BsonView doc, BsonBuilder& out) {
    MAYFLY_TRY(pace.Step(doc.size()));
    BsonValue v = doc.Find(f.name);
    if (!v.IsArray()) return Ok();
    int position = -1;
    MAYFLY_TRY(bool found, f.elem_match->MatchesWithPosition(doc, &ctx, &position));
    if (!found || position < 0) return Ok();
    auto it = v.Document().begin();
    std::advance(it, position);
    BsonArrayBuilder array = out.OpenArray(f.name);
    array.Append(it->value);
    return Ok();
  }

  Result<void> Node(const ProjectionNode& node, BsonView doc, BsonBuilder& out) {
    MAYFLY_TRY(pace.Step(doc.size()));
    Written written(node.fields.size());
    const bool inclusion = kind == ProjectionKind::kInclusion;
    int left = node.in_document;
    if (!inclusion || left > 0) {
      for (const BsonElement& e : doc) {
        int i = node.Find(e.name);
        if (i < 0) {
          if (!inclusion) out.Append(e);
          continue;
        }
        const ProjectionField& f = node.fields[static_cast<size_t>(i)];
        bool again = written[static_cast<size_t>(i)];
        switch (f.action) {
          case ProjectionAction::kInclude:
            out.Append(e);
            break;
          case ProjectionAction::kExclude:
            break;
          case ProjectionAction::kSlice:
            AppendSlice(f, e.name, e.value, out);
            break;
          case ProjectionAction::kDescend: {
            MAYFLY_TRY(Below(*f.below, e.name, e.value, out));
            break;
          }
          case ProjectionAction::kCompute: {
            // An inclusion's new fields follow those it takes from the document.
            if (inclusion || again) continue;
            MAYFLY_TRY(Compute(f, out));
            break;
          }
          case ProjectionAction::kElemMatch: {
            if (inclusion || again) continue;
            MAYFLY_TRY(ElemMatch(f, doc, out));
            break;
          }
        }
        written.Set(static_cast<size_t>(i));
        if (inclusion && !again && --left == 0) break;
      }
    }
    if (!node.has_computed) return Ok();
    for (size_t i = 0; i < node.fields.size(); ++i) {
      if (written[i]) continue;
      const ProjectionField& f = node.fields[i];
      if (f.action == ProjectionAction::kCompute) {
        MAYFLY_TRY(Compute(f, out));
      } else if (f.action == ProjectionAction::kElemMatch) {
        MAYFLY_TRY(ElemMatch(f, doc, out));
      } else if (f.action == ProjectionAction::kDescend && f.below->has_computed) {
        BsonBuilder sub = out.OpenDocument(f.name);
        ++within;
        MAYFLY_TRY(Node(*f.below, BsonView(), sub));
        --within;
      }
    }
    return Ok();
  }

  Result<void> Below(const ProjectionNode& node, std::string_view name, BsonValue v,
                     BsonBuilder& out) {
    ++within;
    MAYFLY_TRY(BelowLevel(node, name, v, out));
    --within;
    return Ok();
  }

  Result<void> BelowLevel(const ProjectionNode& node, std::string_view name, BsonValue v,
                          BsonBuilder& out) {
    if (v.IsDocument()) {
      BsonBuilder sub = out.OpenDocument(name);
      return Node(node, v.Document(), sub);
    }
    if (v.IsArray()) {
      BsonArrayBuilder array = out.OpenArray(name);
      for (const BsonElement& e : v.Document()) {
        // A name is used up only by what is written: inclusions leave scalars out.
        if (!e.value.IsDocument() && !e.value.IsArray() && !node.has_computed) {
          if (kind != ProjectionKind::kInclusion) array.Append(e.value);
          continue;
        }
        MAYFLY_TRY(Below(node, array.NextName(), e.value, array.raw()));
      }
      return Ok();
    }
    if (node.has_computed) {  // a document takes the scalar's place
      BsonBuilder sub = out.OpenDocument(name);
      return Node(node, BsonView(), sub);
    }
    if (kind != ProjectionKind::kInclusion) out.Append(name, v);
    return Ok();
  }
};

/// `doc` with the first array on `path` cut down to its element `position`.
Result<void> AppendPositional(BsonView doc, std::string_view path, int position, BsonBuilder& out) {
  size_t dot = path.find('.');
  std::string_view name = path.substr(0, dot);
  for (const BsonElement& e : doc) {
    if (e.name != name) {
      out.Append(e);
    } else if (e.value.IsArray()) {
      if (position < 0)
        return Error{LocationCode(51246),
                     "positional operator '.$' couldn't find a matching element in the array"};
      int i = 0;
      BsonValue found;
      for (const BsonElement& m : e.value.Document())
        if (i++ == position) found = m.value;
      if (found.missing())
        return Error{LocationCode(51247), "positional operator '.$' element mismatch"};
      BsonArrayBuilder array = out.OpenArray(name);
      array.Append(found);
    } else if (e.value.IsDocument() && dot != std::string_view::npos) {
      BsonBuilder sub = out.OpenDocument(name);
      MAYFLY_TRY(AppendPositional(e.value.Document(), path.substr(dot + 1), position, sub));
    } else {
      out.Append(e);
    }
  }
  return Ok();
}

void SerializeProjection(const ProjectionNode& node, BsonBuilder& out) {
  for (const ProjectionField& f : node.fields) {
    switch (f.action) {
      case ProjectionAction::kInclude:
        out.Append(f.name, true);
        break;
      case ProjectionAction::kExclude:
        out.Append(f.name, false);
        break;
      case ProjectionAction::kCompute:
        f.expr->Serialize(out, f.name);
        break;
      case ProjectionAction::kSlice: {
        BsonBuilder sub = out.OpenDocument(f.name);
        if (f.has_skip) {
          BsonArrayBuilder args = sub.OpenArray("$slice");
          args.Append(f.skip).Append(f.limit);
        } else {
          sub.Append("$slice", f.limit);
        }
        break;
      }
      case ProjectionAction::kElemMatch:
        f.elem_match->Serialize(out);
        break;
      case ProjectionAction::kDescend: {
        BsonBuilder sub = out.OpenDocument(f.name);
        SerializeProjection(*f.below, sub);
        break;
      }
    }
  }
}

}  // namespace

int ProjectionNode::Find(std::string_view name) const {
  if (by_name.empty()) {
    for (size_t i = 0; i < fields.size(); ++i)
      if (fields[i].name == name) return static_cast<int>(i);
    return -1;
  }
  auto it = std::lower_bound(by_name.begin(), by_name.end(), name, [&](int i, std::string_view n) {
    return fields[static_cast<size_t>(i)].name < n;
  });
  return it != by_name.end() && fields[static_cast<size_t>(*it)].name == name ? *it : -1;
}

ProjectionField* ProjectionNode::FindField(std::string_view name) {
  int i = Find(name);
  return i < 0 ? nullptr : &fields[static_cast<size_t>(i)];
}

void ProjectionNode::Finish() {
  for (ProjectionField& f : fields) {
    if (f.below) f.below->Finish();
    bool computed =
        f.action == ProjectionAction::kCompute || f.action == ProjectionAction::kElemMatch;
    if (!computed) ++in_document;
    has_computed = has_computed || computed || (f.below && f.below->has_computed);
  }
  if (fields.size() <= kLinearSearch) {
    by_name.clear();
    return;
  }
  by_name.resize(fields.size());
  for (size_t i = 0; i < fields.size(); ++i) by_name[i] = static_cast<int>(i);
  std::sort(by_name.begin(), by_name.end(), [&](int a, int b) {
    return fields[static_cast<size_t>(a)].name < fields[static_cast<size_t>(b)].name;
  });
}

ProjectionExecutor::ProjectionExecutor() = default;
ProjectionExecutor::~ProjectionExecutor() = default;

Result<void> ProjectionExecutor::Apply(BsonView doc, EvalContext& ctx, BsonBuilder& out) const {
  if (identity_) {
    out.AppendAll(doc);
    return Ok();
  }
  ctx.root = doc;
  ProjectionApplier applier{.kind = kind_, .ctx = ctx};
  if (positional_path_.empty()) return applier.Node(*root_, doc, out);

  int position = -1;
  MAYFLY_TRY(filter_->MatchesWithPosition(doc, &ctx, &position));
  std::string bytes;
  BsonBuilder projected(bytes);
  MAYFLY_TRY(applier.Node(*root_, doc, projected));
  projected.Done();
  return AppendPositional(BsonView(bytes.data()), positional_path_, position, out);
}

Result<BsonDocument> ProjectionExecutor::Apply(BsonView doc, EvalContext& ctx) const {
  std::string bytes;
  bytes.reserve(doc.size());
  BsonBuilder out(bytes);
  MAYFLY_TRY(Apply(doc, ctx, out));
  out.Done();
  return BsonDocument(std::move(bytes));
}

bool ProjectionExecutor::Touches(std::string_view path) const {
  if (identity_) return false;
  const bool inclusion = kind_ == ProjectionKind::kInclusion;
  const ProjectionNode* node = root_.get();
  while (true) {
    size_t dot = path.find('.');
    int i = node->Find(path.substr(0, dot));
    if (i < 0) return inclusion;
    const ProjectionField& f = node->fields[static_cast<size_t>(i)];
    if (f.action == ProjectionAction::kInclude)
      return !positional_path_.empty();  // one array is cut down: say yes for all
    if (f.action != ProjectionAction::kDescend) return true;
    if (dot == std::string_view::npos) return true;
    node = f.below.get();
    path.remove_prefix(dot + 1);
  }
}

std::string ProjectionExecutor::RenamedFrom(std::string_view field) const {
  if (identity_) return {};
  const int i = root_->Find(field);
  if (i < 0) return {};
  const ProjectionField& f = root_->fields[static_cast<size_t>(i)];
  if (f.action != ProjectionAction::kCompute) return {};
  const ReadableExpression* e = AsReadable(*f.expr);
  std::string path = e != nullptr ? e->DocumentPath() : std::string();
  // "$a.b" is an array of its own where `a` is one: filters see another value there.
  if (path.find('.') != std::string::npos) path.clear();
  return path;
}

void ProjectionExecutor::Serialize(BsonBuilder& out) const {
  if (identity_) return;
  if (kind_ == ProjectionKind::kInclusion && root_->Find("_id") < 0) out.Append("_id", false);
  SerializeProjection(*root_, out);
}

}  // namespace mayfly
