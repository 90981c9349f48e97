#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>

#include "protocol/bson_compare.h"
#include "query/expression/readable.h"
#include "query/pipeline/accumulator.h"
#include "query/pipeline/bucket_filter.h"
#include "query/pipeline/bucket_summary.h"
#include "query/pipeline/edge_stage.h"
#include "query/pipeline/stage.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {
namespace {

/// Groups live in a hash table by `_id`. Over the memory limit all of them go to a file, sorted by
/// the encoding of `_id`, and the table starts again; at the end the files are merged, equal `_id`s
/// meeting in order of the files.
class GroupStage final : public PipelineStage {
 public:
  GroupStage(PipelineContext& context, ExpressionPtr id, std::vector<AccumulatorField> fields)
      : PipelineStage(context), id_(std::move(id)), fields_(std::move(fields)) {}
  std::string_view name() const override { return "$group"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$group");
    id_->Serialize(sub, "_id");
    for (auto& f : fields_) f.Serialize(sub);
  }
  StageNeeds AddDependencies(std::set<std::string>* paths) const override {
    id_->AddDependencies(paths);
    for (auto& f : fields_) f.AddDependencies(paths);
    return StageNeeds::kOnly;
  }
  void AskSource(SourceRequest* request) const override {
    request->count = OnlyCounts();
    // One document of each value will do for its accumulators.
    const std::string_view op = fields_.empty() ? std::string_view("$first") : fields_[0].def->name;
    if (request->skip > 0 || request->limit > 0 || (op != "$first" && op != "$last")) return;
    if (!fields_.empty() && request->sort.view().empty()) return;
    for (const auto& f : fields_)
      if (f.def->name != op) return;
    if (const ReadableExpression* id = AsReadable(*id_)) request->one_per = id->DocumentPath();
    request->one_per_last = op == "$last";
  }
  bool ReadsFirstOnly() const {
    return !fields_.empty() && id_->Constant() != nullptr &&
           std::all_of(fields_.begin(), fields_.end(), [](const AccumulatorField& f) {
             // Another document's argument might be an error.
             return f.def->name == "$first" && f.argument && AsReadable(*f.argument) != nullptr &&
                    !AsReadable(*f.argument)->DocumentPath().empty();
           });
  }
  /// GroupedFrom, of "_id" and below.
  std::string SourceOf(std::string_view path) const {
    if (path.substr(0, path.find('.')) != "_id") return {};
    path.remove_prefix(3);
    if (const ReadableExpression* id = AsReadable(*id_)) {
      const std::string from = id->DocumentPath();
      if (!from.empty() && from.find('.') == std::string::npos) return from + std::string(path);
    }
    // {_id: {x: "$a"}}: "_id.x" is "a".
    if (path.empty()) return {};
    path.remove_prefix(1);
    const size_t dot = path.find('.');
    const BsonDocument written = BuildBson([&](BsonBuilder& b) { id_->Serialize(b, "_id"); });
    const BsonValue id = written.view()["_id"];
    if (!id.Is(BsonType::kDocument)) return {};
    const BsonValue part = id.Document()[path.substr(0, dot)];
    if (!part.Is(BsonType::kString)) return {};
    // check_names: the parser of the expression
    const std::string_view from = part.String();
    if (from.size() < 2 || from[0] != '$' || from[1] == '$') return {};
    if (from.find('.') != std::string_view::npos) return {};
    return std::string(from.substr(1)) +
           std::string(dot == std::string_view::npos ? std::string_view() : path.substr(dot));
  }
  void ExplainStats(BsonBuilder& out) const override {
    out.Append("maxAccumulatorMemoryUsageBytes", most_memory_);
    out.Append("usedDisk", spills_ > 0);
    out.Append("spills", spills_);
  }

  bool Summarize(const SeriesShape& shape, VariableScope& scope, std::vector<SummaryField>* summary,
                 int64_t* interval_millis) {
    const SeriesFields& series = shape.fields;
    const BsonDocument id = BuildBson([&](BsonBuilder& b) { id_->Serialize(b, "_id"); });
    *interval_millis = 0;
    if (id_->Constant() == nullptr && !OfMeta(id.view()["_id"], series, 0)) {
      // A document that stands for a bucket has names that begin with the metaField's and "_".
      if (shape.max_span_seconds == 0 || series.time.starts_with(series.meta + "_")) return false;
      *interval_millis = IntervalsOf(id.view()["_id"], series).millis;
      if (*interval_millis / 4000 < shape.max_span_seconds) return false;
    }
    std::vector<std::pair<size_t, SummaryField>> found;
    for (size_t i = 0; i < fields_.size(); ++i) {
      std::optional<SummaryField> field;
      if (!SummaryOf(fields_[i], series, &field)) return false;
      if (field) found.emplace_back(i, std::move(*field));  // bounded: by the stage, parsed
    }
    for (auto& [i, field] : found) {
      field.name = series.meta + "_" + std::to_string(i);
      const BsonDocument path = BuildBson([&](BsonBuilder& b) { b.Append("p", "$" + field.name); });
      Result<ExpressionPtr> argument = ParseExpression(path.view()["p"], scope);
      if (!argument) return false;
      fields_[i].argument = std::move(argument).value();
      if (field.kind == SummaryField::Kind::kCount) fields_[i].def = FindAccumulator("$sum");
      summary->push_back(std::move(field));  // bounded: by the stage, parsed
    }
    if (*interval_millis > 0)
      // bounded: one
      summary->push_back({SummaryField::Kind::kTime, series.time, series.time});
    return true;
  }

  void FollowIntervals(UnpackStage& unpack) {
    const SeriesFields& series = unpack.shape().fields;
    const BsonDocument shown = BuildBson([&](BsonBuilder& b) { id_->Serialize(b, "_id"); });
    const BsonValue id = shown.view()["_id"];
    if (id_->Constant() != nullptr || OfMeta(id, series, 0)) {
      whole_buckets_ = true;
      unpack_ = &unpack;
      by_columns_ = FindColumns();
      return;
    }
    const Intervals intervals = IntervalsOf(id, series);
    if (intervals.millis == 0) return;
    interval_millis_ = intervals.millis;
    interval_field_ = intervals.field;
    unpack_ = &unpack;
    by_columns_ = FindColumns();
  }

  bool TakesEdges(const SeriesFields& series, bool* first) const {
    const BsonDocument id = BuildBson([&](BsonBuilder& b) { id_->Serialize(b, "_id"); });
    const BsonValue path = id.view()["_id"];
    if (series.meta.empty() || !path.IsString() || path.String() != "$" + series.meta) return false;
    if (fields_.empty()) return false;
    const std::string_view op = fields_[0].def->name;
    if (op != "$first" && op != "$last") return false;
    *first = op == "$first";
    return std::all_of(fields_.begin(), fields_.end(),
                       [&](const AccumulatorField& f) { return f.def->name == op; });
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (!read_ && OnlyCounts()) {
      MAYFLY_TRY(std::optional<int64_t> n, input_->CountRest());
      if (n) {
        read_ = true;
        return EmitCount(*n, out);
      }
    }
    while (!read_) {
      StreamDocument in;
      MAYFLY_TRY(const StreamState state, by_columns_ ? PullColumns(&in) : Pull(&in));
      if (state == StreamState::kPaused) return state;
      if (state == StreamState::kEof) {
        MAYFLY_TRY(EndOfInput());
        read_ = true;
        break;
      }
      MAYFLY_TRY(Take(in));
    }
    MAYFLY_TRY(Check());
    if (runs_.empty()) {
      if (next_ >= groups_.size()) return StreamState::kEof;
      MAYFLY_TRY(Emit(groups_[next_], out));
      groups_[next_++] = Group{};
      return StreamState::kAdvanced;
    }
    MAYFLY_TRY(bool more, NextMerged());
    if (!more) return StreamState::kEof;
    MAYFLY_TRY(Emit(merged_, out));
    return StreamState::kAdvanced;
  }

  void AddKeptByStage(large_memory::Kept* kept) const override {
    kept->Add(static_cast<size_t>(std::max<int64_t>(memory_, 0)), hold_);
    kept->Add(buffer_.capacity(), emitted_);
  }

 private:
  /// A path within the metaField, or a document of such paths, as expressions are shown.
  static bool OfMeta(BsonValue shown, const SeriesFields& series, int depth) {
    if (shown.IsString()) {
      const std::string_view text = shown.String();
      return text.starts_with('$') && MovedPath(series.meta, "meta", text.substr(1));
    }
    if (!shown.IsDocument() || depth > 1) return false;
    for (const BsonElement& e : shown.Document())
      if (e.name.starts_with('$') || !OfMeta(e.value, series, depth + 1)) return false;
    return true;
  }

  /// The interval of {$dateTrunc: {date: "$time", unit, binSize}} in milliseconds. 0: none, or not
  /// all are alike.
  static int64_t IntervalOf(BsonValue shown, const SeriesFields& series) {
    if (!shown.IsDocument() || shown.Document().Count() != 1) return 0;
    const BsonElement call = shown.Document().First();
    if (call.name != "$dateTrunc" || !call.value.IsDocument()) return 0;
    auto constant = [](BsonValue v) { return v.IsDocument() ? v.Document()["$const"] : v; };
    int64_t unit = 0, size = 1;
    for (const BsonElement& e : call.value.Document()) {
      const BsonValue v = constant(e.value);
      if (e.name == "date") {
        if (!e.value.IsString() || e.value.String() != "$" + series.time) return 0;
      } else if (e.name == "unit" && v.IsString()) {
        const std::string_view name = v.String();
        unit = name == "second"   ? 1000
               : name == "minute" ? 60'000
               : name == "hour"   ? 3'600'000
               : name == "day"    ? 86'400'000
                                  : 0;
      } else if (e.name != "binSize" || !v.ExactInt64(&size) || size < 1 || size > 1'000'000) {
        return 0;
      }
    }
    return unit * size;
  }

  struct Intervals {
    int64_t millis = 0;  ///< 0: none
    std::string field;   ///< of `_id`, if it is a document with others
  };
  /// The intervals of time by which an `_id` groups, if it has nothing else but paths within the
  /// metaField.
  static Intervals IntervalsOf(BsonValue id, const SeriesFields& series) {
    if (!id.IsDocument()) return {};
    Intervals out{IntervalOf(id, series), {}};
    if (out.millis > 0) return out;
    for (const BsonElement& e : id.Document()) {
      if (OfMeta(e.value, series, 2)) continue;
      if (out.millis > 0 || e.name.starts_with('$')) return {};
      out = {IntervalOf(e.value, series), std::string(e.name)};
      if (out.millis == 0) return {};
    }
    return out;
  }

  /// Whether the accumulator can go without the points; `*out`: what it then needs of a bucket,
  /// nothing if its argument is of the metaField.
  static bool SummaryOf(const AccumulatorField& f, const SeriesFields& series,
                        std::optional<SummaryField>* out) {
    using Kind = SummaryField::Kind;
    const std::string_view op = f.def->name;
    if (op == "$count") {
      *out = SummaryField{Kind::kCount, {}, {}};
      return true;
    }
    if (!f.argument || f.n || f.sort_by) return false;
    if (op == "$sum") {
      const Value* one = f.argument->Constant();
      if (one == nullptr || !one->view().Is(BsonType::kInt32) || one->view().Int32() != 1)
        return false;
      *out = SummaryField{Kind::kCount, {}, {}};
      return true;
    }
    if (op != "$min" && op != "$max") return false;
    const BsonDocument shown = BuildBson([&](BsonBuilder& b) { f.argument->Serialize(b, "a"); });
    const BsonValue path = shown.view()["a"];
    if (OfMeta(path, series, 2)) return true;
    if (!path.IsString() || !path.String().starts_with('$') || path.String().starts_with("$$") ||
        path.String().find('.') != std::string_view::npos)
      return false;
    *out = SummaryField{
        op == "$min" ? Kind::kLeast : Kind::kGreatest, {}, std::string(path.String().substr(1))};
    return true;
  }

  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kMaxPlain = 64 << 10;
  /// HashValue has mixed its bits already.
  struct HashOfHash {
    using is_avalanching = void;
    size_t operator()(uint64_t h) const { return h; }
  };
  /// Allowed growth of the accumulators before their memory is checked again.
  static constexpr int64_t kLookBytes = int64_t{4} << 20;
  /// The data of one group read back from disk, all its accumulators together.
  static constexpr int64_t kMaxMerged = int64_t{4} * kMaxValueBytes;
  struct Group {
    Value id;
    uint32_t next = kNone;  ///< another group with the same hash
    std::vector<AccumulatorPtr> states;
  };

  /// Whether there is one group, and it only counts its documents.
  bool OnlyCounts() const {
    if (id_->Constant() == nullptr) return false;
    return std::all_of(fields_.begin(), fields_.end(), [](const AccumulatorField& f) {
      if (f.def->name == "$count") return true;
      const Value* v = f.argument ? f.argument->Constant() : nullptr;
      return f.def->name == "$sum" && v != nullptr && v->view().Is(BsonType::kInt32) &&
             v->view().Int32() == 1;
    });
  }

  Result<StreamState> EmitCount(int64_t n, StreamDocument* out) {
    if (n == 0) return StreamState::kEof;
    const Value* id = id_->Constant();
    buffer_.clear();
    BsonBuilder b(buffer_);
    b.Append("_id", id->missing() ? Value::Null().view() : id->view());
    for (const auto& f : fields_) b.Append(f.name, MakeInteger(n, false).view());
    b.Done();
    *out = {BsonView(buffer_.data()), nullptr};
    return StreamState::kAdvanced;
  }

  /// The group of the point before, if this one is of the same bucket and interval.
  Group* SameInterval(const StreamDocument& in) {
    if (unpack_->bucket() != last_bucket_) return nullptr;
    if (whole_buckets_) return &groups_[last_group_];
    const BsonValue time = in.doc[unpack_->shape().fields.time];
    if (!time.IsDate() || time.Date().millis < interval_begin_ ||
        time.Date().millis - interval_begin_ >= interval_millis_)
      return nullptr;
    return &groups_[last_group_];
  }
  void NoteInterval(const Value& id, const Group* group) {
    BsonValue begin = id.view();
    if (!interval_field_.empty())
      begin = begin.IsDocument() ? begin.Document()[interval_field_] : BsonValue();
    last_bucket_ = whole_buckets_ || begin.IsDate() ? unpack_->bucket() : -1;
    if (begin.IsDate()) interval_begin_ = begin.Date().millis;
    last_group_ = static_cast<size_t>(group - groups_.data());
  }

  /// Whether the accumulators can be fed by columns: the time, the meta value, and what each of
  /// them reads.
  bool FindColumns() {
    const SeriesFields& series = unpack_->shape().fields;
    column_names_ = {series.time};
    // bounded: two names
    if (!series.meta.empty()) column_names_.push_back(series.meta);
    for (const AccumulatorField& f : fields_) {
      const std::string_view op = f.def->name;
      // They keep one value at most, so that the room for them can wait for the bucket's end.
      if (op != "$avg" && op != "$sum" && op != "$min" && op != "$max" && op != "$count")
        return false;
      column_of_.push_back(0);  // bounded: by the stage, which is parsed
      if (!f.argument || f.argument->Constant() != nullptr) continue;
      const ReadableExpression* argument = AsReadable(*f.argument);
      std::string path = argument != nullptr ? argument->DocumentPath() : std::string();
      if (path.empty() || path.find('.') != std::string::npos) return false;
      column_of_.back() = column_names_.size();
      column_names_.push_back(std::move(path));  // bounded: by the stage, which is parsed
    }
    return true;
  }

  /// Takes buckets by their columns; kAdvanced with a point of one that has none.
  Result<StreamState> PullColumns(StreamDocument* out) {
    for (;;) {
      MAYFLY_TRY(Check());
      MAYFLY_TRY(const bool point, unpack_->NextPoint(out));
      if (point) return StreamState::kAdvanced;
      MAYFLY_TRY(const StreamState state, unpack_->NextColumns(column_names_, &columns_));
      if (state != StreamState::kAdvanced) return state;
      MAYFLY_TRY(TakeColumns());
    }
  }

  /// All points of a bucket, by columns_; none if it has no columns.
  Result<void> TakeColumns() {
    if (columns_.empty()) return Ok();
    const std::vector<BsonValue>& times = *columns_[0];
    Group* group = nullptr;
    for (size_t i = 0; i < times.size(); ++i) {
      const BsonValue time = times[i];
      if (group == nullptr ||
          (!whole_buckets_ && (!time.IsDate() || time.Date().millis < interval_begin_ ||
                               time.Date().millis - interval_begin_ >= interval_millis_))) {
        MAYFLY_TRY(MakeRoom());
        MAYFLY_TRY(Check());
        MAYFLY_TRY(group, GroupOfPoint(i));
      }
      for (size_t f = 0; f < fields_.size(); ++f) {
        const ExpressionPtr& argument = fields_[f].argument;
        MAYFLY_TRY(group->states[f]->Add(column_of_[f] > 0
                                             ? Value::Borrow((*columns_[column_of_[f]])[i])
                                         : argument ? *argument->Constant()
                                                    : Value(),
                                         {}, &memory_));
      }
      // Without a date there is no interval for the next one to be in.
      if (last_bucket_ < 0) group = nullptr;
    }
    MAYFLY_TRY(MakeRoom());
    return Ok();
  }
  Result<Group*> GroupOfPoint(size_t i) {
    const SeriesFields& series = unpack_->shape().fields;
    point_.clear();
    BsonBuilder b(point_);
    b.Append(series.time, (*columns_[0])[i]);
    if (!series.meta.empty()) b.Append(series.meta, (*columns_[1])[i]);
    b.Done();
    MAYFLY_TRY(Value id, id_->Evaluate(Eval({BsonView(point_.data()), nullptr})));
    if (id.missing()) id = Value::Null();
    MAYFLY_TRY(Group * group, FindGroup(id));
    NoteInterval(id, group);
    return group;
  }

  Result<void> MakeStates(Group& group) {
    group.states.clear();
    for (auto& f : fields_) {
      MAYFLY_TRY(AccumulatorPtr state, f.Make(group.id.view(), context_->eval));
      group.states.push_back(std::move(state));
    }
    return Ok();
  }

  Result<Group*> FindGroup(const Value& id) {
    auto [it, fresh] =
        index_.try_emplace(HashValue(id.view()), static_cast<uint32_t>(groups_.size()));
    if (!fresh) {
      for (uint32_t i = it->second; i != kNone; i = groups_[i].next) {
        const BsonValue other = groups_[i].id.view();
        if (other.BinaryEquals(id.view()) || CompareValues(other, id.view()) == 0)
          return &groups_[i];
      }
    }
    Group group;
    group.id = id.missing() ? Value::Null() : id.Own();
    MAYFLY_TRY(MakeStates(group));
    if (!fresh) {
      group.next = it->second;
      it->second = static_cast<uint32_t>(groups_.size());
    }
    memory_ +=
        static_cast<int64_t>(sizeof(Group) + group.id.view().size() + 32 + fields_.size() * 96);
    groups_.push_back(std::move(group));
    return &groups_.back();
  }

  /// The name of the field that an expression reads, if that is at the top and all it does.
  static std::string PlainField(const Expression& e) {
    const ReadableExpression* const r = AsReadable(e);
    const std::string path = r != nullptr ? r->DocumentPath() : std::string();
    return path.find('.') == std::string::npos ? path : std::string();
  }
  void LookForPlainFields() {
    plain_known_ = true;
    plain_id_ = PlainField(*id_);
    plain_arguments_.clear();
    for (const AccumulatorField& f : fields_)
      // bounded: by the stage, which is parsed
      plain_arguments_.push_back(f.argument ? PlainField(*f.argument) : std::string());
  }

  Result<void> Take(const StreamDocument& in) {
    EvalContext& ctx = Eval(in);
    Group* group = unpack_ != nullptr ? SameInterval(in) : nullptr;
    if (!plain_known_) LookForPlainFields();
    // For larger documents the expressions check whether to stop.
    const bool plain = in.doc.size() < kMaxPlain;
    Value id;
    if (group == nullptr) {
      if (plain && !plain_id_.empty()) {
        id = Value::Borrow(in.doc.Find(plain_id_));
      } else {
        MAYFLY_TRY(id, id_->Evaluate(ctx));
      }
      if (id.missing()) id = Value::Null();
      MAYFLY_TRY(group, FindGroup(id));
      if (unpack_ != nullptr) NoteInterval(id, group);
    }
    int64_t looked_at = memory_;
    for (size_t i = 0; i < fields_.size(); ++i) {
      const AccumulatorField& f = fields_[i];
      Value v;
      if (plain && !plain_arguments_[i].empty()) {
        v = Value::Borrow(in.doc.Find(plain_arguments_[i]));
      } else if (f.argument) {
        MAYFLY_TRY(v, f.argument->Evaluate(ctx));
      }
      key_.clear();
      if (f.sort_by) {
        MAYFLY_TRY(f.sort_by->AppendKey(in.doc, in.metadata, key_));
      }
      MAYFLY_TRY(group->states[i]->Add(v, key_, &memory_));
      // One document can bring as much as it has fields: the room is looked at before the next.
      if (memory_ < looked_at + kLookBytes) continue;
      looked_at = memory_;
      MAYFLY_TRY(Check());
      if (id.missing()) id = Value::Copy(group->id.view());
      MAYFLY_TRY(bool spilled, MakeRoom());
      if (!spilled) continue;
      looked_at = memory_;
      MAYFLY_TRY(group, FindGroup(id));
    }
    // Most documents are of a group that is there, and add nothing to it.
    if (memory_ != room_for_) {
      MAYFLY_TRY(MakeRoom());
    }
    return Ok();
  }

  /// Counts the groups' memory, and spills them if it is too much; true if it did.
  Result<bool> MakeRoom() {
    most_memory_ = std::max(most_memory_, memory_);
    room_for_ = memory_;
    const auto limit = static_cast<int64_t>(options().memory_limit);
    // With others using much it spills earlier, but not so early that runs become many.
    const bool room = hold_.Set(static_cast<size_t>(std::max<int64_t>(memory_, 0))).has_value() ||
                      memory_ < limit / 8;
    if (room && memory_ <= limit) return false;
    if (!options().allow_disk_use && !room) return large_memory::TooMuch();
    if (!options().allow_disk_use)
      return Error{ErrorCode::kQueryExceededMemoryLimitNoDiskUseAllowed,
                   "Exceeded memory limit for $group, but didn't allow external sort. Pass "
                   "allowDiskUse:true to opt in."};
    MAYFLY_TRY(Spill());
    return true;
  }

  Result<void> Spill() {
    std::vector<std::pair<std::string, uint32_t>> order(groups_.size());
    for (uint32_t i = 0; i < groups_.size(); ++i) {
      EncodeKeyValue(groups_[i].id.view(), false, order[i].first);
      order[i].second = i;
    }
    std::sort(order.begin(), order.end());
    MAYFLY_TRY(SpillFile file, SpillFile::Create(options().temp_dir));
    for (auto& [key, i] : order) {
      Group& group = groups_[i];
      Value saved = BuildArray([&](BsonArrayBuilder& out) {
        out.Append(group.id.view());
        for (auto& state : group.states) out.Append(state->Save().view());
      });
      MAYFLY_TRY(file.Write(key, saved.view().bytes()));
    }
    ++spills_;
    groups_.clear();
    last_bucket_ = -1;
    index_.clear();
    memory_ = 0;
    hold_.Release();
    runs_.push_back(Run{std::move(file), {}, {}, false});
    if (runs_.size() >= 64) {
      // Merged into one, so that a small limit cannot use up the process's files.
      for (auto& run : runs_) {
        MAYFLY_TRY(run.file.Rewind());
        MAYFLY_TRY(run.Advance());
      }
      MAYFLY_TRY(SpillFile merged, SpillFile::Create(options().temp_dir));
      while (true) {
        MAYFLY_TRY(bool more, NextMerged());
        if (!more) break;
        Value saved = BuildArray([&](BsonArrayBuilder& out) {
          out.Append(merged_.id.view());
          for (auto& state : merged_.states) out.Append(state->Save().view());
        });
        MAYFLY_TRY(merged.Write(merged_key_, saved.view().bytes()));
      }
      runs_.clear();
      runs_.push_back(Run{std::move(merged), {}, {}, false});
    }
    return Ok();
  }

  Result<void> EndOfInput() {
    index_.clear();
    if (runs_.empty()) return Ok();
    MAYFLY_TRY(Spill());
    for (auto& run : runs_) {
      MAYFLY_TRY(run.file.Rewind());
      MAYFLY_TRY(run.Advance());
    }
    return Ok();
  }

  struct Run {
    Result<void> Advance() {
      MAYFLY_TRY(bool more, file.Read(&key, &payload));
      done = !more;
      return Ok();
    }
    SpillFile file;
    std::string key, payload;
    bool done;
  };

  /// The next group of the merged files, in merged_; false at the end.
  Result<bool> NextMerged() {
    const Run* least = nullptr;
    for (auto& run : runs_)
      if (!run.done && (!least || run.key < least->key)) least = &run;
    if (!least) return false;
    merged_key_ = least->key;
    merged_ = Group{};
    int64_t memory = 0;
    for (auto& run : runs_) {
      if (run.done || run.key != merged_key_) continue;
      auto it = BsonView(run.payload.data()).begin();
      if (merged_.states.empty() && merged_.id.missing()) {
        merged_.id = Value::Copy((*it).value);
        MAYFLY_TRY(MakeStates(merged_));
      }
      for (auto& state : merged_.states) {
        ++it;
        MAYFLY_TRY(state->Merge((*it).value, &memory));
        if (memory > kMaxMerged)
          return Error{ErrorCode::kExceededMemoryLimit,
                       "one group of $group used too much memory and cannot spill to disk. "
                       "Memory limit: " +
                           std::to_string(kMaxMerged) + " bytes"};
        MAYFLY_TRY(hold_.Set(static_cast<size_t>(std::max<int64_t>(memory, 0))));
      }
      MAYFLY_TRY(run.Advance());
    }
    return true;
  }

  Result<void> Emit(Group& group, StreamDocument* out) {
    buffer_.clear();
    BsonBuilder b(buffer_);
    b.Append("_id", group.id.view());
    for (size_t i = 0; i < fields_.size(); ++i) {
      MAYFLY_TRY(Value v, group.states[i]->Finish());
      const size_t bytes = buffer_.size() + v.view().size();
      if (bytes > size_t{4} * kMaxValueBytes) return ValueTooLarge(bytes);
      MAYFLY_TRY(emitted_.Set(std::max(bytes, buffer_.capacity())));
      b.Append(fields_[i].name, v.view());
      group.states[i].reset();
    }
    b.Done();
    *out = {BsonView(buffer_.data()), nullptr};
    return Ok();
  }

  ExpressionPtr id_;
  std::vector<AccumulatorField> fields_;
  std::vector<Group> groups_;
  boost::unordered_flat_map<uint64_t, uint32_t, HashOfHash> index_;
  // Fields that are read without their expressions: those of most groups. Empty: by the expression.
  bool plain_known_ = false;
  std::string plain_id_;
  std::vector<std::string> plain_arguments_;
  std::vector<Run> runs_;
  Group merged_;
  std::string merged_key_, key_, buffer_;
  int64_t memory_ = 0, most_memory_ = 0, spills_ = 0;
  int64_t room_for_ = -1;  ///< the memory that MakeRoom was last asked for
  large_memory::Hold hold_, emitted_;
  size_t next_ = 0;
  bool read_ = false;
  UnpackStage* unpack_ = nullptr;  ///< with FollowIntervals
  bool by_columns_ = false;
  bool whole_buckets_ = false;             ///< all points of a bucket are of one group
  std::vector<std::string> column_names_;  ///< the time, the meta field if there is one, others
  std::vector<size_t> column_of_;          ///< of each accumulator, in columns_; 0: it has none
  std::vector<const std::vector<BsonValue>*> columns_;
  std::string point_;
  std::string interval_field_;  ///< of `_id`, with the begin of the interval; empty: `_id`
  int64_t interval_millis_ = 0, interval_begin_ = 0, last_bucket_ = -1;
  size_t last_group_ = 0;
};

}  // namespace

bool IsGroup(const PipelineStage& stage) {
  return dynamic_cast<const GroupStage*>(&stage) != nullptr;
}

bool ReadsFirstOnly(const PipelineStage& stage) {
  auto* group = dynamic_cast<const GroupStage*>(&stage);
  return group != nullptr && group->ReadsFirstOnly();
}

std::string GroupedFrom(const PipelineStage& stage, std::string_view path) {
  auto* group = dynamic_cast<const GroupStage*>(&stage);
  return group != nullptr ? group->SourceOf(path) : std::string();
}

bool SummarizeGroup(PipelineStage& stage, const SeriesShape& series, VariableScope& scope,
                    std::vector<SummaryField>* fields, int64_t* interval_millis) {
  auto* group = dynamic_cast<GroupStage*>(&stage);
  return group != nullptr && group->Summarize(series, scope, fields, interval_millis);
}

void FollowIntervals(PipelineStage& stage, UnpackStage& unpack) {
  if (auto* group = dynamic_cast<GroupStage*>(&stage)) group->FollowIntervals(unpack);
}

bool TakesEdges(const PipelineStage& group, const SeriesFields& series, bool* first) {
  auto* stage = dynamic_cast<const GroupStage*>(&group);
  return stage != nullptr && stage->TakesEdges(series, first);
}

Result<void> ParseGroupStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return LocationError(15947, "a group's fields must be specified in an object");
  ExpressionPtr id;
  std::vector<AccumulatorField> fields;
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "_id") {
      if (id) return LocationError(15948, "a group's _id may only be specified once");
      MAYFLY_TRY(id, ParseExpression(e.value, p.scope));
    } else {
      MAYFLY_TRY(AccumulatorField field, AccumulatorField::Parse(e.name, e.value, p.scope));
      fields.push_back(std::move(field));
    }
  }
  if (!id) return LocationError(15955, "a group specification must include an _id");
  MAYFLY_TRY(CheckOptionsOnce("$group", spec));
  p.out.push_back(std::make_unique<GroupStage>(p.context, std::move(id), std::move(fields)));
  return Ok();
}

}  // namespace mayfly
