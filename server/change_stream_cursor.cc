#include "server/change_stream_cursor.h"

#include "protocol/extended_json.h"
#include "replication/change_stream.h"
#include "replication/replica_set.h"
#include "server/arg_reader.h"
#include "server/server_context.h"
#include "storage/namespace.h"

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
  explicit MemberLog(ReplicaSet& set) : set_(set) {}
  uint64_t applied_index() const override { return set_.applied_index(); }
  uint64_t applied_ts() const override { return set_.applied_ts(); }
  std::unique_ptr<LogCursor> Read() override { return set_.consensus().ReadLog(); }

 private:
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
  /// What Next gave last; null: nothing.
  const ChangeEvent* event() const { return event_; }

 private:
  const std::unique_ptr<ChangeStream> stream_;
  Operation* op_ = nullptr;
  const ChangeEvent* event_ = nullptr;
};

class ChangeStreamCursor final : public ServerCursor {
 public:
  ChangeStreamCursor(std::unique_ptr<Pipeline> pipeline, std::unique_ptr<StreamSource> source)
      : pipeline_(std::move(pipeline)),
        source_(source.get()),
        plain_(pipeline_->empty()),
        position_(source_->stream().position()) {
    pipeline_->SetSource(std::move(source));
  }

  Result<void> NextBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                         BsonArrayBuilder& batch) override {
    pipeline_->Attach(&op, nullptr);
    for (int64_t n = 0; n < batch_size; ++n) {
      if (held_) {
        batch.Append(*held_);
        held_.reset();
        position_ = held_position_;
        continue;
      }
      StreamDocument d;
      MAYFLY_TRY(StreamState state, pipeline_->Next(&d));
      if (state != StreamState::kAdvanced) {
        exhausted_ = state == StreamState::kEof;
        position_ = source_->stream().position();
        return Ok();
      }
      const ChangeEvent& event = *source_->event();
      if (!plain_) {
        MAYFLY_TRY(CheckId(event, d.doc));
      }
      if (d.doc.size() > static_cast<uint32_t>(kMaxBsonInternalSize))
        return Labelled({ErrorCode::kBSONObjectTooLarge,
                         "BSONObj size: " + std::to_string(d.doc.size()) +
                             " is invalid. Size must be between 0 and 16793600(16MB): take fields "
                             "of the change event away with "
                             "$project"},
                        "NonResumableChangeStreamError");
      if (batch.count() > 0 && batch.size() + d.doc.size() + 64 > max_bytes) {
        held_ = BsonDocument(d.doc);
        held_position_ = event.position;
        break;
      }
      batch.Append(d.doc);
      position_ = event.position;
    }
    // The invalidate event is the last one: no further getMore is needed to learn that.
    exhausted_ = source_->stream().closed() && !held_;
    return Ok();
  }
  bool Exhausted() const override { return exhausted_; }
  void Park() override { pipeline_->SaveState(); }
  bool tailable() const override { return true; }
  bool await_data() const override { return true; }
  uint32_t collection_id() const override { return static_cast<uint32_t>(ReplEvent::kApplied); }
  bool change_stream() const override { return true; }
  bool behind() const override { return source_->stream().behind(); }
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
  StreamSource* const source_;        ///< the pipeline's
  const bool plain_;                  ///< nothing behind $changeStream
  StreamPosition position_;           ///< where to resume after the batch
  std::optional<BsonDocument> held_;  ///< did not fit into the batch before
  StreamPosition held_position_;
  bool exhausted_ = false;
};

/// resumeAfter and startAfter: {_data: "…"}, with whatever a newer server may put beside it.
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
  BsonDocument rest;  ///< the stages behind, an array
};

Result<void> CheckWhere(ServerContext& server, const AggregateSpec& spec, bool cluster, Spec* out) {
  out->db = spec.db;
  out->collection = spec.collection;
  const bool internal = spec.db == "admin" || spec.db == "local" || spec.db == "config";
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
  CollectionInfoPtr coll = server.storage().catalog().Find(spec.db, spec.collection);
  if (coll && coll->is_view)
    return Error{ErrorCode::kCommandNotSupportedOnView,
                 "Namespace " + coll->ns + " is a view, not a collection"};
  return Ok();
}

Result<StreamArgs> ParseStream(ServerContext& server, const AggregateSpec& spec) {
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
      return Error{kInvalidResumeToken,
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
  std::string bytes;
  BsonArrayBuilder rest(bytes);
  bool behind = false;
  for (const BsonElement& e : spec.pipeline) {
    if (behind) rest.Append(e.value);
    behind = true;
  }
  rest.Done();
  a.rest = BsonDocument(std::move(bytes));
  return a;
}

Result<std::unique_ptr<Pipeline>> ParseRest(ServerContext& server, Operation& op,
                                            const AggregateSpec& spec, const StreamArgs& a) {
  PipelineOptions options;
  options.db = spec.db;
  options.collection = spec.collection;
  options.memory_limit =
      static_cast<size_t>(server.settings().internal_document_source_group_max_bytes.load());
  options.let = spec.let;
  options.now = op.now;
  options.allow_writes = false;
  options.change_stream = true;
  return Pipeline::Parse(a.rest, options);
}

}  // namespace

bool IsChangeStream(ServerContext& server, BsonView pipeline) {
  if (server.replica_set() == nullptr || pipeline.empty()) return false;
  const BsonValue first = pipeline.First().value;
  return first.IsDocument() && !first.Document().empty() && first.Document().First().name == kStage;
}

Result<std::unique_ptr<ServerCursor>> OpenChangeStream(ServerContext& server, Operation& op,
                                                       const AggregateSpec& spec) {
  MAYFLY_TRY(StreamArgs a, ParseStream(server, spec));
  MAYFLY_TRY(std::unique_ptr<Pipeline> pipeline, ParseRest(server, op, spec, a));
  MAYFLY_TRY(
      std::unique_ptr<ChangeStream> stream,
      ChangeStream::Open(server.storage(), std::make_unique<MemberLog>(*server.replica_set()),
                         std::move(a.spec), a.after, op));
  return std::unique_ptr<ServerCursor>(std::make_unique<ChangeStreamCursor>(
      std::move(pipeline), std::make_unique<StreamSource>(std::move(stream))));
}

Result<void> ExplainChangeStream(ServerContext& server, Operation& op, const AggregateSpec& spec,
                                 BsonBuilder& reply) {
  MAYFLY_TRY(StreamArgs a, ParseStream(server, spec));
  MAYFLY_TRY(std::unique_ptr<Pipeline> pipeline, ParseRest(server, op, spec, a));
  reply.Append("explainVersion", "1");
  BsonArrayBuilder stages = reply.OpenArray("stages");
  stages.Append(spec.pipeline.First().value);
  pipeline->ExplainStages(stages, 0);
  return Ok();
}

void LabelStreamError(Error* error) {
  if (!error->details.empty() && !BsonView(error->details.data())["errorLabels"].missing()) return;
  switch (static_cast<int32_t>(error->code)) {
    case 6:      // HostUnreachable
    case 7:      // HostNotFound
    case 63:     // StaleShardVersion
    case 89:     // NetworkTimeout
    case 91:     // ShutdownInProgress
    case 133:    // FailedToSatisfyReadPreference
    case 150:    // StaleEpoch
    case 189:    // PrimarySteppedDown
    case 234:    // RetryChangeStream
    case 262:    // ExceededTimeLimit
    case 9001:   // SocketException
    case 10107:  // NotWritablePrimary
    case 11600:  // InterruptedAtShutdown
    case 11602:  // InterruptedDueToReplStateChange
    case 13388:  // StaleConfig
    case 13435:  // NotPrimaryNoSecondaryOk
    case 13436:  // NotPrimaryOrSecondary
      *error = Labelled(std::move(*error), "ResumableChangeStreamError");
      break;
    default:
      break;
  }
}

}  // namespace mayfly
