#include <algorithm>

#include "protocol/bson_compare.h"
#include "query/match/match_internal.h"
#include "query/pipeline/stage.h"

namespace mayfly {
namespace {

Error Bad(std::string message) { return Error{ErrorCode::kFailedToParse, std::move(message)}; }

struct LookupSpec {
  std::string from;  ///< empty: the pipeline makes its own documents
  std::string as;
  std::vector<std::string> as_path;
  std::string local, foreign;  ///< empty: not given
  std::vector<std::string> local_path;
  std::vector<std::pair<std::string, ExpressionPtr>> let;
  std::optional<BsonDocument> pipeline;  ///< array bytes
  std::set<std::string> namespaces;
};

/// A foreign collection in memory, by the hash of every value at one path. What it finds are
/// candidates: equal values have equal hashes, and a filter has the last word.
class HashedCollection {
 public:
  explicit HashedCollection(std::string path) : path_(std::move(path)) {}
  size_t memory() const { return memory_; }
  large_memory::Hold hold;
  void Add(BsonView doc) {
    auto index = static_cast<uint32_t>(docs_.size());
    docs_.emplace_back(doc);
    memory_ += doc.size() + sizeof(BsonDocument);
    auto add = [&](BsonValue v, int) {
      by_hash_.emplace(Hash(v), index);
      memory_ += 32;
      return false;
    };
    match::WalkPath(docs_.back().view(), path_, true, -1, add);
  }
  /// Calls `f` with the candidates for `local` (an array stands for each of its elements), in the
  /// collection's order.
  template <class Check, class F>
  Result<void> ForEachCandidate(BsonValue local, Check&& check, F&& f) const {
    // Each value once: a document would be found by every one of a thousand equal elements.
    boost::container::small_vector<uint64_t, 8> hashes;
    if (local.IsArray()) {
      for (const BsonElement& e : local.Document()) {
        MAYFLY_TRY(check());
        hashes.push_back(Hash(e.value));
      }
      std::sort(hashes.begin(), hashes.end());
      hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
    } else {
      hashes.push_back(Hash(local));
    }
    std::vector<uint32_t> found;
    for (uint64_t hash : hashes) {
      auto [begin, end] = by_hash_.equal_range(hash);
      for (auto it = begin; it != end; ++it) found.push_back(it->second);
      // An array in a document is found by each of its elements.
      if (found.size() > 2 * docs_.size() + 1024) Tidy(found);
      MAYFLY_TRY(check());
    }
    Tidy(found);
    for (uint32_t i : found) {
      MAYFLY_TRY(check());
      MAYFLY_TRY(f(docs_[i].view()));
    }
    return Ok();
  }

 private:
  static void Tidy(std::vector<uint32_t>& found) {
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
  }
  /// Null, undefined and missing are one.
  static uint64_t Hash(BsonValue v) { return v.IsNullish() ? 0 : HashValue(v); }
  std::string path_;
  std::vector<BsonDocument> docs_;
  std::unordered_multimap<uint64_t, uint32_t> by_hash_;
  size_t memory_ = 0;
};

/// For each document: the foreign documents whose field equals the local one's, or what a pipeline
/// gives, or both.
class LookupStage final : public PipelineStage {
 public:
  LookupStage(PipelineContext& context, LookupSpec spec)
      : PipelineStage(context), spec_(std::move(spec)) {}
  std::string_view name() const override { return "$lookup"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$lookup");
    if (!spec_.from.empty()) sub.Append("from", spec_.from);
    sub.Append("as", spec_.as);
    if (!spec_.local.empty())
      sub.Append("localField", spec_.local).Append("foreignField", spec_.foreign);
    if (!spec_.let.empty()) {
      BsonBuilder let = sub.OpenDocument("let");
      for (auto& [name, e] : spec_.let) e->Serialize(let, name);
    }
    if (spec_.pipeline) sub.AppendArray("pipeline", *spec_.pipeline);
  }
  StageNeeds AddDependencies(std::set<std::string>* fields) const override {
    if (!spec_.local.empty()) fields->insert(spec_.local);
    for (auto& [name, e] : spec_.let) e->AddDependencies(fields);
    return StageNeeds::kAlso;
  }
  void AddNamespaces(std::set<std::string>* namespaces) const override {
    namespaces->insert(spec_.namespaces.begin(), spec_.namespaces.end());
  }
  void ExplainStats(BsonBuilder& out) const override {
    out.Append("totalDocsExamined", docs_examined_).Append("totalKeysExamined", keys_examined_);
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    StreamDocument in;
    MAYFLY_TRY(StreamState state, Pull(&in));
    if (state != StreamState::kAdvanced) return state;
    const int64_t docs = context_->op ? context_->op->docs_examined : 0;
    const int64_t keys = context_->op ? context_->op->keys_examined : 0;
    MAYFLY_TRY(Find(in));
    docs_examined_ += context_->op->docs_examined - docs;
    keys_examined_ += context_->op->keys_examined - keys;
    buffer_.clear();
    BsonBuilder b(buffer_);
    SetPath(in.doc, spec_.as_path, found_.view(), b);
    b.Done();
    *out = {BsonView(buffer_.data()), in.metadata};
    return state;
  }

 private:
  /// {foreign: {$eq: local}}, or any of the elements of a local array.
  BsonDocument EqualityFilter(BsonValue local) const {
    return BuildBson([&](BsonBuilder& b) {
      if (!local.IsArray()) {
        BsonBuilder eq = b.OpenDocument(spec_.foreign);
        if (local.missing())
          eq.AppendNull("$eq");
        else
          eq.Append("$eq", local);
        return;
      }
      bool regex = false;
      for (const BsonElement& e : local.Document()) regex = regex || e.value.Is(BsonType::kRegex);
      if (!regex) {
        BsonBuilder in = b.OpenDocument(spec_.foreign);
        in.AppendArray("$in", local.Document());
        return;
      }
      // A regular expression in $in would match text; here it equals only itself.
      BsonArrayBuilder any = b.OpenArray("$or");
      for (const BsonElement& e : local.Document()) {
        BsonBuilder one = any.OpenDocument();
        BsonBuilder eq = one.OpenDocument(spec_.foreign);
        eq.Append("$eq", e.value);
      }
    });
  }

  /// Fills found_ with the array for one document. What depends on the same values is not asked for
  /// twice in a row.
  Result<void> Find(const StreamDocument& in) {
    EvalContext& ctx = Eval(in);
    std::vector<std::pair<std::string, Value>> variables;
    std::string key;
    BsonDocument filter;
    if (!spec_.local.empty()) {
      Value local = ReadFieldPath(in.doc.AsValue(), spec_.local_path);
      filter = EqualityFilter(local.view());
      key = filter.bytes();
    }
    for (auto& [name, e] : spec_.let) {
      MAYFLY_TRY(Value v, e->Evaluate(ctx));
      variables.emplace_back(name, std::move(v).Own());
      key += static_cast<char>(variables.back().second.type());
      key += variables.back().second.view().bytes();
    }
    if (have_found_ && key == found_key_) return Ok();
    have_found_ = false;
    if (!context_->env || !context_->op)
      return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
    std::unique_ptr<DocumentSource> source;
    if (!spec_.pipeline) {
      MAYFLY_TRY(bool hashed, Hashed());
      if (hashed) return FindHashed(in, filter, std::move(key));
      SourceRequest request;
      MAYFLY_TRY(request.match, ParseMatch(filter));
      request.filter = std::move(filter);
      MAYFLY_TRY(source, context_->env->OpenSource(*context_->op, options().db, spec_.from,
                                                   std::move(request)));
    } else {
      BsonDocument stages;
      if (!spec_.local.empty()) {
        std::string bytes;
        BsonArrayBuilder all(bytes);
        bool placed = !spec_.from.empty();
        auto place = [&] {
          BsonBuilder match = all.OpenDocument();
          match.Append("$match", filter);
        };
        if (placed) place();
        for (const BsonElement& e : spec_.pipeline->view()) {
          all.Append(e.value);
          if (!placed) place();  // behind the stage that makes the documents
          placed = true;
        }
        all.Done();
        stages = BsonDocument(std::move(bytes));
      }
      SubPipelineSpec sub{.stage = "$lookup",
                          .db = options().db,
                          .collection = spec_.from,
                          .variables = std::move(variables)};
      MAYFLY_TRY(auto pipeline,
                 ParseSubPipeline(spec_.local.empty() ? spec_.pipeline->view() : stages.view(),
                                  *context_, sub));
      MAYFLY_TRY(OpenSubPipeline(*pipeline, *context_));
      source = std::move(pipeline);
    }
    std::string bytes;
    large_memory::Hold hold;
    BsonArrayBuilder array(bytes);
    while (true) {
      StreamDocument doc;
      MAYFLY_TRY(Check());
      MAYFLY_TRY(StreamState state, source->Next(&doc));
      if (state != StreamState::kAdvanced) break;
      array.Append(doc.doc);
      if (bytes.size() > options().memory_limit) return TooMuch();
      MAYFLY_TRY(hold.Set(bytes.capacity()));
    }
    array.Done();
    hold.Release();
    Keep(std::move(bytes), std::move(key));
    return Ok();
  }

  /// Reads the foreign collection into memory when there is no index to ask and it fits.
  Result<bool> Hashed() {
    if (tried_hash_) return hashed_ != nullptr;
    tried_hash_ = true;
    if (context_->env->HasIndexOn(options().db, spec_.from, spec_.foreign)) return false;
    MAYFLY_TRY(auto source,
               context_->env->OpenSource(*context_->op, options().db, spec_.from, SourceRequest{}));
    auto table = std::make_unique<HashedCollection>(spec_.foreign);
    while (true) {
      StreamDocument doc;
      MAYFLY_TRY(Check());
      MAYFLY_TRY(StreamState state, source->Next(&doc));
      if (state != StreamState::kAdvanced) break;
      table->Add(doc.doc);
      // Then it asks the collection for each document.
      if (table->memory() > options().memory_limit || !table->hold.Set(table->memory()))
        return false;
    }
    hashed_ = std::move(table);
    return true;
  }

  Result<void> FindHashed(const StreamDocument& in, const BsonDocument& filter, std::string key) {
    Value local = ReadFieldPath(in.doc.AsValue(), spec_.local_path);
    MAYFLY_TRY(MatchPtr match, ParseMatch(filter));
    std::string bytes;
    BsonArrayBuilder array(bytes);
    large_memory::Hold hold;
    MAYFLY_TRY(hashed_->ForEachCandidate(
        local.view(), [&] { return Check(); },
        [&](BsonView doc) -> Result<void> {
          MAYFLY_TRY(bool matched, match->Matches(doc));
          if (matched) array.Append(doc);
          if (bytes.size() > options().memory_limit) return TooMuch();
          return hold.Set(bytes.capacity());
        }));
    array.Done();
    hold.Release();
    Keep(std::move(bytes), std::move(key));
    return Ok();
  }

  /// The array found for the local key `key`: the next document often has the same one.
  void Keep(std::string array, std::string key) {
    found_ = Value::Array(std::move(array));
    found_key_ = std::move(key);
    have_found_ = true;
  }

  Error TooMuch() const {
    return LocationError(4568, "Total size of documents in " + spec_.from +
                                   " matching pipeline's $lookup stage exceeds " +
                                   std::to_string(options().memory_limit) + " bytes");
  }

  LookupSpec spec_;
  bool tried_hash_ = false;
  std::unique_ptr<HashedCollection> hashed_;
  Value found_;
  std::string found_key_, buffer_;
  bool have_found_ = false;
  int64_t docs_examined_ = 0, keys_examined_ = 0;  ///< of the foreign collection
};

}  // namespace

Result<void> ParseLookupStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return Bad("the $lookup stage specification must be an object, but found " + TypeText(spec));
  LookupSpec lookup;
  bool has_from = false, has_let = false;
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "pipeline") {
      MAYFLY_TRY(CheckStageArray(e.value, "pipeline"));
      lookup.pipeline = BsonDocument(e.value.Document());
      continue;
    }
    if (e.name == "let") {
      if (!e.value.IsDocument())
        return Bad("$lookup argument 'let: " + ValueText(e.value) +
                   "' must be an object, is type " + TypeText(e.value));
      has_let = true;
      for (const BsonElement& v : e.value.Document()) {
        MAYFLY_TRY(CheckVariableName(v.name));
        MAYFLY_TRY(ExpressionPtr x, ParseExpression(v.value, p.scope));
        lookup.let.emplace_back(v.name, std::move(x));
      }
      continue;
    }
    bool known =
        e.name == "from" || e.name == "as" || e.name == "localField" || e.name == "foreignField";
    if (!known) return Bad("unknown argument to $lookup: " + std::string(e.name));
    if (!e.value.IsString())
      return Bad("$lookup argument '" + std::string(e.name) + "' must be a string, found " +
                 ValueText(e.value) + ": " + TypeText(e.value));
    std::string text(e.value.String());
    if (e.name == "from") {
      if (text.empty())
        return Error{ErrorCode::kInvalidNamespace,
                     "Invalid namespace specified '" + p.context.options.db + ".'"};
      lookup.from = text;
      has_from = true;
    } else if (e.name == "as") {
      MAYFLY_TRY(lookup.as_path, ParseFieldPath(text));
      lookup.as = text;
    } else if (e.name == "localField") {
      MAYFLY_TRY(lookup.local_path, ParseFieldPath(text));
      lookup.local = text;
    } else {
      MAYFLY_TRY(ParseFieldPath(text));
      lookup.foreign = text;
    }
  }
  if (lookup.as.empty()) return Bad("must specify 'as' field for a $lookup");
  if (lookup.local.empty() != lookup.foreign.empty())
    return Bad(
        "$lookup requires both or neither of 'localField' and 'foreignField' to be specified");
  if (!lookup.pipeline && lookup.local.empty())
    return Bad(
        "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be "
        "specified");
  if (has_let && !lookup.pipeline)
    return Bad("$lookup with a 'let' argument must also specify 'pipeline'");
  if (!has_from && !lookup.pipeline)
    return Bad("missing 'from' option to $lookup stage specification: " + ValueText(spec));
  if (has_from) lookup.namespaces.insert(p.context.options.db + "." + lookup.from);
  if (lookup.pipeline) {
    // Checked now, with variables that have no values yet; parsed for each set of values when it
    // runs.
    SubPipelineSpec sub{.stage = "$lookup", .db = p.context.options.db, .collection = lookup.from};
    for (auto& [name, e] : lookup.let) sub.variables.emplace_back(name, Value());
    MAYFLY_TRY(auto checked, ParseSubPipeline(lookup.pipeline->view(), p.context, sub));
    lookup.namespaces.merge(checked->InvolvedNamespaces());
  }
  p.out.push_back(std::make_unique<LookupStage>(p.context, std::move(lookup)));
  return Ok();
}

}  // namespace mayfly
