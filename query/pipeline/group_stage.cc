#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>

#include "protocol/bson_compare.h"
#include "query/pipeline/accumulator.h"
#include "query/pipeline/stage.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {
namespace {

/// Groups live in a hash table by `_id`. Over the memory limit all of them go to a file, sorted by
/// the encoding of `_id`, and the table starts anew; at the end the files are merged, equal `_id`s
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
  void ExplainStats(BsonBuilder& out) const override {
    out.Append("maxAccumulatorMemoryUsageBytes", most_memory_);
    out.Append("usedDisk", spills_ > 0);
    out.Append("spills", spills_);
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    while (!read_) {
      StreamDocument in;
      MAYFLY_TRY(StreamState state, Pull(&in));
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
  static constexpr uint32_t kNone = UINT32_MAX;
  /// What the accumulators may grow by before the room for them is looked at again.
  static constexpr int64_t kLookBytes = int64_t{4} << 20;
  /// What comes back from disk of one group, all its accumulators together.
  static constexpr int64_t kMaxMerged = int64_t{4} * kMaxValueBytes;
  struct Group {
    Value id;
    uint32_t next = kNone;  ///< another group with the same hash
    std::vector<AccumulatorPtr> states;
  };

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
      for (uint32_t i = it->second; i != kNone; i = groups_[i].next)
        if (CompareValues(groups_[i].id.view(), id.view()) == 0) return &groups_[i];
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

  Result<void> Take(const StreamDocument& in) {
    EvalContext& ctx = Eval(in);
    MAYFLY_TRY(Value id, id_->Evaluate(ctx));
    if (id.missing()) id = Value::Null();
    MAYFLY_TRY(Group * group, FindGroup(id));
    int64_t looked_at = memory_;
    for (size_t i = 0; i < fields_.size(); ++i) {
      const AccumulatorField& f = fields_[i];
      Value v;
      if (f.argument) {
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
      MAYFLY_TRY(bool spilled, MakeRoom());
      if (!spilled) continue;
      looked_at = memory_;
      MAYFLY_TRY(group, FindGroup(id));
    }
    MAYFLY_TRY(MakeRoom());
    return Ok();
  }

  /// Counts what the groups have, and writes them out when that is too much; whether it did.
  Result<bool> MakeRoom() {
    most_memory_ = std::max(most_memory_, memory_);
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
  boost::unordered_flat_map<uint64_t, uint32_t> index_;
  std::vector<Run> runs_;
  Group merged_;
  std::string merged_key_, key_, buffer_;
  int64_t memory_ = 0, most_memory_ = 0, spills_ = 0;
  large_memory::Hold hold_, emitted_;
  size_t next_ = 0;
  bool read_ = false;
};

}  // namespace

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
  p.out.push_back(std::make_unique<GroupStage>(p.context, std::move(id), std::move(fields)));
  return Ok();
}

}  // namespace mayfly
