#include "query/match/match_internal.h"
#include "query/pipeline/bucket_summary.h"
#include "query/pipeline/stage.h"

namespace mayfly {

// --- $match ---

bool MatchDependencies(const MatchExpression& match, std::set<std::string>* fields) {
  switch (match.kind) {
    case MatchKind::kWhere:
    case MatchKind::kJsonSchema:
      return false;
    case MatchKind::kExpr:
      if (!match.extra || !match.extra->expr) return false;
      match.extra->expr->AddDependencies(fields);
      return !fields->contains("");
    default:
      break;
  }
  if (!match.path.empty()) {
    fields->insert(match.path);
    return true;  // what is below has paths relative to this one
  }
  for (auto& child : match.children)
    if (!MatchDependencies(*child, fields)) return false;
  return true;
}

StageNeeds PipelineMatch::AddDependencies(std::set<std::string>* fields) const {
  return MatchDependencies(*match_, fields) ? StageNeeds::kAlso : StageNeeds::kWhole;
}

Result<StreamState> PipelineMatch::GetNext(StreamDocument* out) {
  while (true) {
    MAYFLY_TRY(StreamState state, Pull(out));
    if (state != StreamState::kAdvanced) return state;
    MAYFLY_TRY(bool matched, match_->Matches(out->doc, &Eval(*out)));
    if (matched) return state;
  }
}

Result<void> ParseMatchStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return LocationError(15959, "the match filter must be an expression in an object");
  BsonDocument filter(spec.Document());
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter, {.scope = &p.scope}));
  p.out.push_back(std::make_unique<PipelineMatch>(p.context, std::move(filter), std::move(match)));
  return Ok();
}

// --- $limit, $skip ---

Result<StreamState> PipelineLimit::GetNext(StreamDocument* out) {
  if (seen_ >= limit_) return StreamState::kEof;
  MAYFLY_TRY(StreamState state, Pull(out));
  if (state == StreamState::kAdvanced) ++seen_;
  return state;
}

Result<StreamState> PipelineSkip::GetNext(StreamDocument* out) {
  for (; seen_ < skip_; ++seen_) {
    MAYFLY_TRY(StreamState state, Pull(out));
    if (state != StreamState::kAdvanced) return state;
  }
  return Pull(out);
}

Result<void> ParseLimitStage(StageParser& p, BsonValue spec) {
  int64_t n;
  if (!spec.IsNumber() || !spec.ExactInt64(&n))
    return LocationError(
        5107201,
        "invalid argument to $limit stage: Expected an integer: $limit: " + ValueText(spec));
  if (n < 0)
    return LocationError(
        5107201, "invalid argument to $limit stage: Expected a non-negative number in: $limit: " +
                     ValueText(spec));
  if (n == 0) return LocationError(15958, "the limit must be positive");
  p.out.push_back(std::make_unique<PipelineLimit>(p.context, n));
  return Ok();
}

Result<void> ParseSkipStage(StageParser& p, BsonValue spec) {
  int64_t n;
  if (!spec.IsNumber() || !spec.ExactInt64(&n))
    return LocationError(
        5107200, "invalid argument to $skip stage: Expected an integer: $skip: " + ValueText(spec));
  if (n < 0)
    return LocationError(
        5107200, "invalid argument to $skip stage: Expected a non-negative number in: $skip: " +
                     ValueText(spec));
  p.out.push_back(std::make_unique<PipelineSkip>(p.context, n));
  return Ok();
}

// --- $count ---

namespace {

class CountStage final : public PipelineStage {
 public:
  CountStage(PipelineContext& context, std::string field)
      : PipelineStage(context), field_(std::move(field)) {}
  std::string_view name() const override { return "$count"; }
  void Serialize(BsonBuilder& out) const override { out.Append("$count", field_); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kOnly; }
  void AskSource(SourceRequest* request) const override { request->count = true; }
  /// Documents stand for several from now on: this field has their number.
  void Sum(std::string field) { summed_ = std::move(field); }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (done_) return StreamState::kEof;
    MAYFLY_TRY(std::optional<int64_t> rest, input_->CountRest());
    if (rest) count_ += *rest;
    while (!rest) {
      MAYFLY_TRY(StreamState state, Pull(out));
      if (state == StreamState::kPaused) return state;
      if (state == StreamState::kEof) break;
      count_ += summed_.empty() ? 1 : out->doc[summed_].NumberAsInt64();
    }
    done_ = true;
    if (count_ == 0) return StreamState::kEof;
    result_ =
        BuildBson([&](BsonBuilder& b) { b.Append(field_, MakeInteger(count_, false).view()); });
    *out = {result_.view(), nullptr};
    return StreamState::kAdvanced;
  }

 private:
  std::string field_, summed_;
  int64_t count_ = 0;
  bool done_ = false;
  BsonDocument result_;
};

}  // namespace

bool SummarizeCount(PipelineStage& stage, std::vector<SummaryField>* fields) {
  auto* count = dynamic_cast<CountStage*>(&stage);
  if (count == nullptr) return false;
  constexpr std::string_view kName = "n";
  count->Sum(std::string(kName));
  fields->push_back({SummaryField::Kind::kCount, std::string(kName), {}});  // one
  return true;
}

Result<void> ParseCountStage(StageParser& p, BsonValue spec) {
  if (!spec.IsString()) return LocationError(40156, "the count field must be a non-empty string");
  std::string_view field = spec.String();
  if (field.empty()) return LocationError(40157, "the count field must be a non-empty string");
  if (field.starts_with('$'))
    return LocationError(40158, "the count field cannot be a $-prefixed path");
  if (field.find('\0') != field.npos)
    return LocationError(40159, "the count field cannot contain a null byte");
  if (field.find('.') != field.npos)
    return LocationError(40160, "the count field cannot contain '.'");
  p.out.push_back(std::make_unique<CountStage>(p.context, std::string(field)));
  return Ok();
}

namespace {

/// Takes everything into the sorter first, then one after the other out of it.
template <class Pull>
Result<StreamState> NextSorted(Pull pull, Sorter& sorter, bool* sorted, StreamDocument* out) {
  while (!*sorted) {
    MAYFLY_TRY(StreamState state, pull());
    if (state == StreamState::kPaused) return state;
    if (state == StreamState::kEof) {
      MAYFLY_TRY(sorter.Finish());
      *sorted = true;
    } else {
      MAYFLY_TRY(sorter.Add(out->doc, out->metadata));
    }
  }
  MAYFLY_TRY(bool more, sorter.Next(out));
  return more ? StreamState::kAdvanced : StreamState::kEof;
}

}  // namespace

// --- $sort, $sample ---

void PipelineSort::Serialize(BsonBuilder& out) const {
  BsonBuilder sub = out.OpenDocument("$sort");
  BsonBuilder key = sub.OpenDocument("sortKey");
  key.AppendAll(pattern_.spec());
  key.Done();
  if (limit_ > 0) sub.Append("limit", limit_);
}

StageNeeds PipelineSort::AddDependencies(std::set<std::string>* fields) const {
  for (auto& part : pattern_.parts()) {
    if (part.meta == SortPattern::Meta::kNone)
      fields->insert(part.path);
    else if (part.meta == SortPattern::Meta::kTextScore)
      fields->insert(std::string(kMetaDependency) + "textScore");
    else if (part.meta == SortPattern::Meta::kExpireAt)
      fields->insert(std::string(kMetaDependency) + "expireAt");
  }
  return StageNeeds::kAlso;
}

void PipelineSort::ExplainStats(BsonBuilder& out) const {
  if (!sorter_) return;
  out.Append("totalDataSizeSortedBytesEstimate", sorter_->bytes_sorted());
  out.Append("usedDisk", sorter_->spills() > 0);
  out.Append("spills", sorter_->spills());
  out.Append("spilledDataStorageSize", sorter_->spilled_bytes());
}

Result<StreamState> PipelineSort::GetNext(StreamDocument* out) {
  if (!sorter_) {
    SorterOptions sorting = options().Sorting(limit_);
    sorting.want_sort_key = want_sort_key_;
    sorter_ = std::make_unique<Sorter>(pattern_, std::move(sorting));
  }
  const bool before = sorted_;
  Result<StreamState> r = NextSorted([&] { return Pull(out); }, *sorter_, &sorted_, out);
  if (context_->op != nullptr) {
    context_->op->has_sort_stage = true;
    if (sorted_ && !before) sorter_->CountFor(*context_->op);
  }
  return r;
}

Result<void> ParseSortStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return LocationError(15973, "the $sort key specification must be an object");
  BsonView view = spec.Document();
  // What Serialize writes.
  if (BsonValue key = view["sortKey"];
      key.IsDocument() && (view.Count() == 1 || view["limit"].IsNumber())) {
    MAYFLY_TRY(SortPattern pattern, SortPattern::Parse(key.Document()));
    auto stage = std::make_unique<PipelineSort>(p.context, std::move(pattern));
    stage->set_limit(view["limit"].NumberAsInt64());
    p.out.push_back(std::move(stage));
    return Ok();
  }
  MAYFLY_TRY(SortPattern pattern, SortPattern::Parse(view));
  p.out.push_back(std::make_unique<PipelineSort>(p.context, std::move(pattern)));
  return Ok();
}

namespace {

/// `size` documents at random: a sort by a random number, cut off after that many.
class SampleStage final : public PipelineStage {
 public:
  SampleStage(PipelineContext& context, int64_t size) : PipelineStage(context), size_(size) {}
  std::string_view name() const override { return "$sample"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$sample");
    sub.Append("size", size_);
  }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kAlso; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (!sorter_) {
      BsonDocument spec = BuildBson([](BsonBuilder& b) {
        BsonBuilder meta = b.OpenDocument("$rand");
        meta.Append("$meta", "randVal");
      });
      MAYFLY_TRY(SortPattern pattern, SortPattern::Parse(spec));
      sorter_ = std::make_unique<Sorter>(std::move(pattern), options().Sorting(size_));
    }
    return NextSorted([&] { return Pull(out); }, *sorter_, &sorted_, out);
  }

 private:
  int64_t size_;
  bool sorted_ = false;
  std::unique_ptr<Sorter> sorter_;
};

}  // namespace

Result<void> ParseSampleStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return LocationError(28745, "the $sample stage specification must be an object");
  std::optional<int64_t> size;
  for (const BsonElement& e : spec.Document()) {
    if (e.name != "size")
      return LocationError(28748, "unrecognized option to $sample: " + std::string(e.name));
    if (!e.value.IsNumber())
      return LocationError(28746, "size argument to $sample must be a number");
    size = e.value.NumberAsInt64();
    if (*size <= 0)
      return LocationError(28747, "size argument to $sample must be a positive integer");
  }
  if (!size) return LocationError(28749, "$sample stage must specify a size");
  p.out.push_back(std::make_unique<SampleStage>(p.context, *size));
  return Ok();
}

// --- $unwind ---

bool PathsOverlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (a.size() == b.size() || b[a.size()] == '.');
}

void SetPath(BsonView doc, std::span<const std::string> path, BsonValue value, BsonBuilder& out) {
  bool found = false;
  for (const BsonElement& e : doc) {
    if (found || e.name != path[0]) {
      out.Append(e);
      continue;
    }
    found = true;
    if (path.size() == 1) {
      out.Append(e.name, value);
    } else if (e.value.IsDocument()) {
      BsonBuilder sub = out.OpenDocument(e.name);
      SetPath(e.value.Document(), path.subspan(1), value, sub);
    } else if (!value.missing()) {
      BsonBuilder sub = out.OpenDocument(e.name);
      SetPath(BsonView(), path.subspan(1), value, sub);
    } else {
      out.Append(e);
    }
  }
  if (found || value.missing()) return;
  if (path.size() == 1) {
    out.Append(path[0], value);
  } else {
    BsonBuilder sub = out.OpenDocument(path[0]);
    SetPath(BsonView(), path.subspan(1), value, sub);
  }
}

void PipelineUnwind::Serialize(BsonBuilder& out) const {
  BsonBuilder sub = out.OpenDocument("$unwind");
  sub.Append("path", "$" + dotted_);
  if (preserve_) sub.Append("preserveNullAndEmptyArrays", true);
  if (index_) sub.Append("includeArrayIndex", *index_);
}

bool PipelineUnwind::Touches(std::string_view path) const {
  return PathsOverlap(path, dotted_) || (index_ && PathsOverlap(path, *index_));
}

std::vector<std::string> PipelineUnwind::index_path() const {
  std::vector<std::string> parts;
  size_t from = 0;
  for (size_t dot; (dot = index_->find('.', from)) != index_->npos; from = dot + 1)
    parts.push_back(index_->substr(from, dot - from));
  parts.push_back(index_->substr(from));
  return parts;
}

/// Hands out the document being unwound with `replacement` at the path (as it is when that is
/// missing).
void PipelineUnwind::Emit(BsonValue replacement, std::optional<int64_t> index,
                          StreamDocument* out) {
  BsonView doc(input_copy_.data());
  buffer_.clear();
  {
    BsonBuilder b(buffer_);
    if (replacement.missing())
      b.AppendAll(doc);
    else
      SetPath(doc, path_, replacement, b);
  }
  if (index_) {
    std::string with_index;
    {
      Value n = index ? Value::Int64(*index) : Value::Null();
      BsonBuilder b(with_index);
      SetPath(BsonView(buffer_.data()), index_path(), n.view(), b);
    }
    buffer_.swap(with_index);
  }
  *out = {BsonView(buffer_.data()), has_metadata_ ? &metadata_ : nullptr};
}

Result<StreamState> PipelineUnwind::GetNext(StreamDocument* out) {
  while (true) {
    if (unwinding_) {
      MAYFLY_TRY(Check());
      if (next_ != std::default_sentinel) {
        BsonValue v = (*next_).value;
        ++next_;
        Emit(v, position_++, out);
        return StreamState::kAdvanced;
      }
      unwinding_ = false;
    }
    StreamDocument in;
    MAYFLY_TRY(StreamState state, Pull(&in));
    if (state != StreamState::kAdvanced) return state;
    // Only sub-documents lead to the array.
    BsonValue v = in.doc.AsValue();
    for (auto& part : path_) v = v.IsDocument() ? v.Document().Find(part) : BsonValue();
    bool empty = v.IsNullish() || (v.IsArray() && v.Document().empty());
    if (empty && !preserve_) continue;
    if (!v.IsArray() && !index_) {
      *out = in;
      return state;
    }
    input_copy_.assign(in.doc.data(), in.doc.size());
    has_metadata_ = in.metadata != nullptr;
    if (has_metadata_) metadata_ = *in.metadata;
    if (!v.IsArray()) {
      Emit(BsonValue(), std::nullopt, out);
      return StreamState::kAdvanced;
    }
    v = BsonValue(v.type(), input_copy_.data() + (v.data() - in.doc.data()), v.size());
    if (empty) {
      // An empty array is as good as a missing field.
      std::string without;
      {
        BsonBuilder b(without);
        SetPath(BsonView(input_copy_.data()), path_, BsonValue(), b);
      }
      input_copy_.swap(without);
      Emit(BsonValue(), std::nullopt, out);
      return StreamState::kAdvanced;
    }
    next_ = v.Document().begin();
    position_ = 0;
    unwinding_ = true;
  }
}

Result<void> ParseUnwindStage(StageParser& p, BsonValue spec) {
  BsonValue path;
  std::optional<std::string> index;
  bool preserve = false;
  if (spec.IsString()) {
    path = spec;
  } else if (spec.IsDocument()) {
    for (const BsonElement& e : spec.Document()) {
      if (e.name == "path") {
        if (!e.value.IsString())
          return LocationError(
              28808, "expected a string as the path for $unwind stage, got " + TypeText(e.value));
        path = e.value;
      } else if (e.name == "preserveNullAndEmptyArrays") {
        if (!e.value.Is(BsonType::kBool))
          return LocationError(28809,
                               "expected a boolean for the preserveNullAndEmptyArrays option to "
                               "$unwind stage, got " +
                                   TypeText(e.value));
        preserve = e.value.Bool();
      } else if (e.name == "includeArrayIndex") {
        if (!e.value.IsString() || e.value.String().empty())
          return LocationError(28810,
                               "expected a non-empty string for the includeArrayIndex option to "
                               "$unwind stage, got " +
                                   TypeText(e.value));
        if (e.value.String().starts_with('$'))
          return LocationError(
              28822,
              "includeArrayIndex option to $unwind stage should not be prefixed with a '$': " +
                  std::string(e.value.String()));
        MAYFLY_TRY(ParseFieldPath(e.value.String()));
        index = e.value.String();
      } else {
        return LocationError(28811, "unrecognized option to $unwind stage: " + std::string(e.name));
      }
    }
  } else {
    return LocationError(
        15981, "expected either a string or an object as specification for $unwind stage, got " +
                   TypeText(spec));
  }
  if (path.missing() || path.String().empty())
    return LocationError(28812, "no path specified to $unwind stage");
  if (!path.String().starts_with('$'))
    return LocationError(28818, "path option to $unwind stage should be prefixed with a '$': " +
                                    std::string(path.String()));
  std::string dotted(path.String().substr(1));
  MAYFLY_TRY(auto parts, ParseFieldPath(dotted));
  p.out.push_back(std::make_unique<PipelineUnwind>(p.context, std::move(parts), std::move(dotted),
                                                   std::move(index), preserve));
  return Ok();
}

}  // namespace mayfly
