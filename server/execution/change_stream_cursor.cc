#include "server/execution/change_stream_cursor.h"

#include <algorithm>
#include <deque>

#include "protocol/database_name.h"
#include "protocol/error_labels.h"
#include "protocol/extended_json.h"
#include "query/expression/parse_work.h"
#include "replication/change_stream.h"
#include "replication/replica_set.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/data_services.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

using Spec = ChangeStreamSpec;
constexpr std::string_view kStage = "$changeStream";

Error Labelled(Error e, std::string_view label) {
  e.details = BuildBson([&](BsonBuilder& b) {
                b.AppendAll(e.details.empty() ? BsonView() : BsonView(e.details.data()));
                b.OpenArray("errorLabels").Append(label);
              }).bytes();
  return e;
}

/// This member's log.
class MemberLog final : public StreamLog {
 public:
  explicit MemberLog(DataServices& server) : server_(server), set_(*server.replica_set()) {}
  uint64_t applied_index() const override { return set_.applied_index(); }
  uint64_t applied_ts() const override { return set_.applied_ts(); }
  int64_t image_expiry_seconds() const override {
    return server_.cluster_parameters().image_expiry_seconds();
  }
  std::unique_ptr<LogCursor> Read() override { return set_.consensus().ReadLog(); }

 private:
  DataServices& server_;
  ReplicaSet& set_;
};

/// The stream as the source of a pipeline.
class StreamSource final : public DocumentSource {
 public:
  explicit StreamSource(std::unique_ptr<ChangeStream> stream) : stream_(std::move(stream)) {}
  Result<StreamState> Next(StreamDocument* out) override {
    MAYFLY_TRY(event_, stream_->Next(*op_));
    if (event_ == nullptr) return stream_->closed() ? StreamState::kEof : StreamState::kPaused;
    *out = {event_->document.view(), nullptr};
    return StreamState::kAdvanced;
  }
  void SetOperation(Operation* op) override { op_ = op; }
  void SaveState() override { stream_->Park(); }

  ChangeStream& stream() { return *stream_; }
  /// The event of the latest Next; null if there was none.
  const ChangeEvent* event() const { return event_; }

 private:
  const std::unique_ptr<ChangeStream> stream_;
  Operation* op_ = nullptr;
  const ChangeEvent* event_ = nullptr;
};

/// Splits an event that is larger than a document may be (manual: $changeStreamSplitLargeEvent).
/// Top-level fields are not divided. Small fields come first, so that the first fragment has as
/// many of them as possible.
class EventSplitter {
 public:
  /// Smaller events are not split. What the split adds to a fragment fits into the room above.
  static constexpr uint32_t kMaxFragment = kMaxBsonUserSize + 8 * 1024;

  struct Fragment {
    StreamPosition position;
    BsonDocument doc;
  };
  /// Errors: BSONObjectTooLarge 10334 when a single field is too large.
  static Result<std::vector<Fragment>> Split(StreamPosition at, BsonView event) {
    std::vector<BsonElement> fields;
    for (const BsonElement& e : event)
      if (e.name != "_id") fields.push_back(e);
    auto size = [](const BsonElement& e) { return e.name.size() + 2 + e.value.size(); };
    std::stable_sort(fields.begin(), fields.end(),
                     [&](const BsonElement& a, const BsonElement& b) { return size(a) < size(b); });
    constexpr size_t kHead = 256;  // _id and splitEvent
    std::vector<std::vector<BsonElement>> parts(1);
    size_t bytes = kHead;
    for (const BsonElement& e : fields) {
      if (kHead + size(e) > kMaxFragment)
        return Error{ErrorCode::kBSONObjectTooLarge,
                     "the field '" + std::string(e.name) + "' of a change event has " +
                         std::to_string(e.value.size()) +
                         " bytes, more than a fragment may have: take it away with $project"};
      if (bytes + size(e) > kMaxFragment) {
        parts.emplace_back();
        bytes = kHead;
      }
      parts.back().push_back(e);
      bytes += size(e);
    }
    std::vector<Fragment> out;
    for (size_t i = 0; i < parts.size(); ++i) {
      // The last one's token stays good when the event is shown otherwise by then: with
      // `updateLookup` it has the document of the moment.
      const bool last = i + 1 == parts.size();
      at.fragment = last ? StreamPosition::kAllFragments : static_cast<uint16_t>(i + 1);
      out.push_back({at, BuildBson([&](BsonBuilder& b) {
                       b.OpenDocument("_id").Append("_data", at.ToToken());
                       b.OpenDocument("splitEvent")
                           .Append("fragment", static_cast<int32_t>(i + 1))
                           .Append("of", static_cast<int32_t>(parts.size()));
                       for (const BsonElement& e : parts[i]) b.Append(e);
                     })});
    }
    return out;
  }
};

class ChangeStreamCursor final : public ServerCursor {
 public:
  /// `resume`: where the client continues. `split`: large events come in fragments.
  ChangeStreamCursor(std::unique_ptr<Pipeline> pipeline, std::unique_ptr<StreamSource> source,
                     bool split, std::optional<StreamPosition> resume)
      : pipeline_(std::move(pipeline)),
        source_(source.get()),
        plain_(pipeline_->empty()),
        split_(split),
        position_(source_->stream().position()) {
    if (resume && resume->fragment != 0) {
      given_ = *resume;
      position_ = *resume;
    }
    pipeline_->SetSource(std::move(source));
  }

  Result<void> NextBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                         BsonArrayBuilder& batch) override {
    pipeline_->Attach(&op, nullptr);
    auto fits = [&](BsonView doc) {
      return batch.count() == 0 || batch.size() + doc.size() + 64 <= max_bytes;
    };
    for (int64_t n = 0; n < batch_size;) {
      if (!held_.empty()) {
        if (!fits(held_.front().doc)) break;
        batch.Append(held_.front().doc);
        position_ = held_.front().position;
        held_.pop_front();
        ++n;
        continue;
      }
      StreamDocument d;
      MAYFLY_TRY(StreamState state, pipeline_->Next(&d));
      if (state != StreamState::kAdvanced) {
        exhausted_ = state == StreamState::kEof;
        // While fragments of an event are still to come, the client resumes at that event.
        if (!given_ || *given_ < source_->stream().position()) {
          position_ = source_->stream().position();
          given_.reset();
        }
        return Ok();
      }
      const ChangeEvent& event = *source_->event();
      if (!plain_) {
        MAYFLY_TRY(CheckId(event, d.doc));
      }
      size_t skip = 0;
      if (given_) {
        StreamPosition whole = *given_;
        whole.fragment = 0;
        if (whole == event.position) skip = given_->fragment;
        given_.reset();
        if (skip == StreamPosition::kAllFragments) continue;
      }
      if (split_ && (d.doc.size() > EventSplitter::kMaxFragment || skip > 0)) {
        Result<std::vector<EventSplitter::Fragment>> parts =
            EventSplitter::Split(event.position, d.doc);
        if (!parts) return Labelled(parts.error(), "NonResumableChangeStreamError");
        if (skip > parts.value().size())
          return Labelled({ErrorCode::kChangeStreamFatalError,
                           "the resume token is of fragment " + std::to_string(skip) +
                               " of an event that now has " + std::to_string(parts.value().size()) +
                               ": resume with the pipeline that the token came from"},
                          "NonResumableChangeStreamError");
        for (size_t i = skip; i < parts.value().size(); ++i)
          held_.push_back(std::move(parts.value()[i]));
        continue;
      }
      if (d.doc.size() > static_cast<uint32_t>(kMaxBsonInternalSize))
        return Labelled({ErrorCode::kBSONObjectTooLarge,
                         "BSONObj size: " + std::to_string(d.doc.size()) +
                             " is invalid. Size must be between 0 and 16793600(16MB): let the "
                             "stream end with $changeStreamSplitLargeEvent, or take fields of the "
                             "change event away with $project"},
                        "NonResumableChangeStreamError");
      if (!fits(d.doc)) {
        held_.push_back({event.position, BsonDocument(d.doc)});
        break;
      }
      batch.Append(d.doc);
      position_ = event.position;
      ++n;
    }
    // The invalidate event is the last one. The client learns this without another getMore.
    exhausted_ = source_->stream().closed() && held_.empty();
    return Ok();
  }
  bool Exhausted() const override { return exhausted_; }
  void Park() override { pipeline_->SaveState(); }
  bool tailable() const override { return true; }
  bool await_data() const override { return true; }
  uint32_t collection_id() const override { return static_cast<uint32_t>(ReplEvent::kApplied); }
  bool change_stream() const override { return true; }
  bool behind() const override { return source_->stream().behind(); }
  size_t KeptBytes() const override {
    size_t bytes = 0;
    for (const EventSplitter::Fragment& f : held_) bytes += f.doc.view().size();
    return bytes;
  }
  void AppendPosition(BsonBuilder& cursor) const override {
    cursor.OpenDocument("postBatchResumeToken").Append("_data", position_.ToToken());
  }

 private:
  static Result<void> CheckId(const ChangeEvent& event, BsonView doc) {
    const BsonValue want = event.document.view()["_id"], got = doc["_id"];
    if (!got.missing() && want.BinaryEquals(got)) return Ok();
    return Labelled({ErrorCode::kChangeStreamFatalError,
                     "Encountered an event whose _id field, which contains the resume token, was "
                     "modified by the pipeline. Modifying the _id field of "
                     "an event makes it impossible to resume the stream from that point. Only "
                     "transformations that retain the unmodified _id field "
                     "are allowed. Expected: " +
                         ToRelaxedJson(want) +
                         " but found: " + (got.missing() ? "(no _id)" : ToRelaxedJson(got))},
                    "NonResumableChangeStreamError");
  }

  const std::unique_ptr<Pipeline> pipeline_;
  StreamSource* const source_;  ///< the pipeline's
  const bool plain_;            ///< there are no stages after $changeStream
  const bool split_;
  StreamPosition position_;  ///< where to resume after the batch
  /// Fragments that did not fit into the previous batch.
  std::deque<EventSplitter::Fragment> held_;
  std::optional<StreamPosition> given_;  ///< how far the next event was already delivered
  bool exhausted_ = false;
};

/// resumeAfter and startAfter: {_data: "…"}, and any further fields that a newer server may add.
Result<StreamPosition> ReadToken(std::string_view option, BsonView token) {
  const BsonValue data = token["_data"];
  if (!data.IsString())
    return Error{LocationCode(40647), "Bad resume token: _data of missing or of wrong type in '" +
                                          std::string(option) + "'"};
  return StreamPosition::FromToken(data.String());
}

template <class E>
void ReadChoice(ArgReader& in, std::string_view name,
                std::initializer_list<std::pair<std::string_view, E>> choices, E* out) {
  const std::optional<std::string_view> given = in.OptString(name);
  if (!given) return;
  for (const auto& [text, value] : choices)
    if (*given == text) {
      *out = value;
      return;
    }
  in.Fail({ErrorCode::kBadValue, "Enumeration value '" + std::string(*given) + "' for field '" +
                                     std::string(kStage) + "." + std::string(name) +
                                     "' is not a valid value."});
}

struct StreamArgs {
  Spec spec;
  std::optional<StreamPosition> after;
  BsonDocument rest;   ///< the stages behind, an array, without the last one if that is
                       ///< $changeStreamSplitLargeEvent
  bool split = false;  ///< it is
};

constexpr std::string_view kSplitStage = "$changeStreamSplitLargeEvent";

/// Whether a stage is the one that splits events.
bool IsSplitStage(BsonValue stage) {
  return stage.IsDocument() && stage.Document().Count() == 1 &&
         stage.Document().First().name == kSplitStage;
}

Result<void> CheckWhere(DataServices& server, const AggregateSpec& spec, bool cluster, Spec* out) {
  out->db = spec.db;
  out->collection = spec.collection;
  const bool internal = IsInternalDatabase(spec.db);
  if (cluster) {
    if (spec.db != "admin" || !spec.collection.empty())
      return Error{ErrorCode::kInvalidOptions,
                   "A $changeStream with 'allChangesForCluster:true' may only be opened on the "
                   "'admin' database, and with no collection "
                   "name; found " +
                       (spec.collection.empty() ? std::string(spec.db)
                                                : JoinNamespace(spec.db, spec.collection))};
    out->scope = Spec::Scope::kCluster;
    return Ok();
  }
  if (internal)
    return Error{ErrorCode::kInvalidNamespace, "$changeStream may not be opened on the internal " +
                                                   std::string(spec.db) + " database"};
  if (spec.collection.starts_with("system."))
    return Error{ErrorCode::kInvalidNamespace, "$changeStream may not be opened on the internal " +
                                                   JoinNamespace(spec.db, spec.collection) +
                                                   " collection"};
  if (spec.collection.empty()) {
    out->scope = Spec::Scope::kDatabase;
    return Ok();
  }
  MAYFLY_TRY(
      OpenCollection(server.storage().catalog(), spec.db, spec.collection, CollectionUse::kWatch));
  return Ok();
}

Result<StreamArgs> ParseStream(DataServices& server, const AggregateSpec& spec) {
  StreamArgs a;
  const BsonElement first = spec.pipeline.First();
  const BsonView stage = first.value.Document();
  if (stage.Count() != 1)
    return Error{LocationCode(40323),
                 "A pipeline stage specification object must contain exactly one field."};
  const BsonValue given = stage.First().value;
  if (!given.IsDocument())
    return Error{LocationCode(50808), "$changeStream stage expects a document as argument"};
  ArgReader in(kStage, given.Document());
  ReadChoice<Spec::FullDocument>(in, "fullDocument",
                                 {{"default", Spec::FullDocument::kDefault},
                                  {"updateLookup", Spec::FullDocument::kUpdateLookup},
                                  {"whenAvailable", Spec::FullDocument::kWhenAvailable},
                                  {"required", Spec::FullDocument::kRequired}},
                                 &a.spec.full_document);
  ReadChoice<Spec::BeforeChange>(in, "fullDocumentBeforeChange",
                                 {{"off", Spec::BeforeChange::kOff},
                                  {"whenAvailable", Spec::BeforeChange::kWhenAvailable},
                                  {"required", Spec::BeforeChange::kRequired}},
                                 &a.spec.before_change);
  const std::optional<BsonView> resume = in.OptDocument("resumeAfter"),
                                start = in.OptDocument("startAfter");
  const BsonValue at = in.Any("startAtOperationTime");
  if (!at.IsNullish() && !at.Is(BsonType::kTimestamp))
    in.Fail(in.WrongType("startAtOperationTime", at.type(), "timestamp"));
  const bool cluster = in.BoolOr("allChangesForCluster", false);
  a.spec.expanded = in.BoolOr("showExpandedEvents", false);
  a.spec.expiry = in.BoolOr("showExpiryEvents", false);
  a.spec.deadlines = in.BoolOr("showExpireAt", false);
  MAYFLY_TRY(in.Finish());
  if (resume && start)
    return Error{LocationCode(50865),
                 "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage"};
  if (!at.IsNullish() && (resume || start))
    return Error{LocationCode(40674),
                 "Only one type of resume option is allowed, but multiple were found."};
  MAYFLY_TRY(CheckWhere(server, spec, cluster, &a.spec));
  if (resume) {
    MAYFLY_TRY(a.after, ReadToken("resumeAfter", *resume));
    if (a.after->kind == StreamPosition::kInvalidate)
      return Error{ErrorCode::kInvalidResumeToken,
                   "Attempting to resume a change stream using 'resumeAfter' is not allowed from "
                   "an invalidate notification."};
  } else if (start) {
    MAYFLY_TRY(a.after, ReadToken("startAfter", *start));
  } else if (!at.IsNullish()) {
    if (at.Timestamp() == 0)
      return Error{ErrorCode::kInvalidOptions,
                   "'startAtOperationTime' of a $changeStream stage cannot be the null timestamp"};
    a.after = StreamPosition::After(at.Timestamp() - 1);
  }
  std::vector<BsonValue> stages;
  for (const BsonElement& e : spec.pipeline) stages.push_back(e.value);
  stages.erase(stages.begin());
  for (size_t i = 0; i < stages.size(); ++i) {
    if (!IsSplitStage(stages[i])) continue;
    const BsonValue argument = stages[i].Document().First().value;
    if (!argument.IsDocument() || !argument.Document().empty())
      return Error{LocationCode(7182800),
                   std::string(kSplitStage) + " spec should be an empty object"};
    if (i + 1 < stages.size())
      return Error{LocationCode(7182802),
                   std::string(kSplitStage) + " must be the last stage in the pipeline"};
    a.split = true;
  }
  if (a.split) stages.pop_back();
  if (a.after && a.after->fragment != 0 && !a.split)
    return Error{ErrorCode::kChangeStreamFatalError,
                 "To resume from a split event, the resumed pipeline must end with " +
                     std::string(kSplitStage)};
  std::string bytes;
  BsonArrayBuilder rest(bytes);
  for (BsonValue stage : stages) rest.Append(stage);
  rest.Done();
  a.rest = BsonDocument(std::move(bytes));
  return a;
}

Result<std::unique_ptr<Pipeline>> ParseRest(DataServices& server, Operation& op,
                                            const AggregateSpec& spec, const StreamArgs& a) {
  PipelineOptions options;
  options.db = spec.db;
  options.collection = spec.collection;
  options.memory_limit =
      static_cast<size_t>(server.settings().internal_document_source_group_max_bytes.load());
  options.let = spec.let;
  options.now = op.now;
  options.cluster_time = op.cluster_time;
  options.allow_writes = false;
  options.change_stream = true;
  return Pipeline::Parse(a.rest, options);
}

}  // namespace

bool IsChangeStream(DataServices& server, BsonView pipeline) {
  if (server.replica_set() == nullptr || pipeline.empty()) return false;
  const BsonValue first = pipeline.First().value;
  return first.IsDocument() && !first.Document().empty() && first.Document().First().name == kStage;
}

Result<std::unique_ptr<ServerCursor>> OpenChangeStream(DataServices& server, Operation& op,
                                                       const AggregateSpec& spec) {
  MAYFLY_TRY(StreamArgs a, ParseStream(server, spec));
  std::unique_ptr<Pipeline> pipeline;
  size_t parsed = 0, kept = 0;
  {
    ParseWork work(&op);
    MAYFLY_TRY(pipeline, ParseRest(server, op, spec, a));
    parsed = work.bytes();
    kept = work.kept_bytes();
  }
  std::optional<StreamPosition> begin = a.after;
  if (begin && begin->fragment != 0) {
    // Makes the event again, for the fragments that are still to come.
    if (begin->step == 0)
      begin = StreamPosition::After(begin->ts - 1);
    else
      begin = StreamPosition{begin->ts, begin->step - 1, StreamPosition::kEvent};
  }
  MAYFLY_TRY(std::unique_ptr<ChangeStream> stream,
             ChangeStream::Open(server.storage(), std::make_unique<MemberLog>(server),
                                std::move(a.spec), begin, op));
  std::unique_ptr<ServerCursor> cursor = std::make_unique<ChangeStreamCursor>(
      std::move(pipeline), std::make_unique<StreamSource>(std::move(stream)), a.split, a.after);
  MAYFLY_TRY(cursor->HoldParsed(parsed, kept));
  return cursor;
}

Result<void> ExplainChangeStream(DataServices& server, Operation& op, const AggregateSpec& spec,
                                 BsonBuilder& reply) {
  MAYFLY_TRY(StreamArgs a, ParseStream(server, spec));
  const ParseWork work(&op);
  MAYFLY_TRY(std::unique_ptr<Pipeline> pipeline, ParseRest(server, op, spec, a));
  reply.Append("explainVersion", "1");
  BsonArrayBuilder stages = reply.OpenArray("stages");
  stages.Append(spec.pipeline.First().value);
  pipeline->ExplainStages(stages, 0);
  if (a.split) stages.OpenDocument().OpenDocument(kSplitStage).Done();
  return Ok();
}

void LabelStreamError(Error* error) {
  if (!error->details.empty() && !BsonView(error->details.data())["errorLabels"].missing()) return;
  if (IsResumableStreamError(error->code))
    *error = Labelled(std::move(*error), "ResumableChangeStreamError");
}

}  // namespace mayfly
