#include <algorithm>

#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/match/match_internal.h"
#include "query/pipeline/stage.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

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

/// A foreign collection in memory, by the hash of every value at one path. It finds candidates:
/// equal values have equal hashes, and a filter decides.
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
  BsonView document(uint32_t i) const { return docs_[i].view(); }
  /// The candidates for `local` (an array stands for each of its elements), in the collection's
  /// order.
  template <class Check>
  Result<std::vector<uint32_t>> Candidates(BsonValue local, Check&& check) const {
    // Each value once: a document would be found by every one of a thousand equal elements.
    boost::container::small_vector<uint64_t, 8> hashes;
    if (local.IsArray()) {
      for (const BsonElement& e : local.Document()) {
        MAYFLY_TRY(check());
        hashes.push_back(Hash(e.value));  // bounded: by a document
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
    return found;
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

/// The foreign documents for one document, one after the other.
class Matches {
 public:
  virtual ~Matches() = default;
  /// Null at the end. Valid until the next call.
  virtual Result<std::optional<BsonView>> Next() = 0;
  virtual void Attach(Operation*, PipelineEnvironment*) {}
  virtual void SaveState() {}
  /// What it keeps between two calls.
  virtual void AddKept(large_memory::Kept* kept) const = 0;
};

class SourceMatches final : public Matches {
 public:
  /// `pipeline`: null, or what `source` is.
  SourceMatches(std::unique_ptr<DocumentSource> source, Pipeline* pipeline)
      : source_(std::move(source)), pipeline_(pipeline) {}
  Result<std::optional<BsonView>> Next() override {
    StreamDocument doc;
    MAYFLY_TRY(StreamState state, source_->Next(&doc));
    if (state != StreamState::kAdvanced) return std::optional<BsonView>();
    return std::optional<BsonView>(doc.doc);
  }
  void Attach(Operation* op, PipelineEnvironment* env) override {
    if (pipeline_)
      pipeline_->Attach(op, env);
    else
      source_->SetOperation(op);
  }
  void SaveState() override { source_->SaveState(); }
  void AddKept(large_memory::Kept* kept) const override { source_->AddKept(kept); }

 private:
  std::unique_ptr<DocumentSource> source_;
  Pipeline* pipeline_;
};

class HashedMatches final : public Matches {
 public:
  HashedMatches(const HashedCollection& collection, std::vector<uint32_t> candidates,
                MatchPtr match, Operation* op)
      : collection_(collection), candidates_(std::move(candidates)), match_(std::move(match)) {
    eval_.op = op;
  }
  Result<std::optional<BsonView>> Next() override {
    while (next_ < candidates_.size()) {
      const BsonView doc = collection_.document(candidates_[next_++]);
      MAYFLY_TRY(bool matched, match_->Matches(doc, &eval_));
      if (matched) return std::optional<BsonView>(doc);
    }
    return std::optional<BsonView>();
  }
  void Attach(Operation* op, PipelineEnvironment*) override { eval_.op = op; }
  void AddKept(large_memory::Kept* kept) const override {
    kept->bytes += candidates_.capacity() * sizeof(uint32_t);
  }

 private:
  const HashedCollection& collection_;
  EvalContext eval_;
  std::vector<uint32_t> candidates_;
  size_t next_ = 0;
  MatchPtr match_;
};

/// For each document: the foreign documents whose field equals the local one's, or what a pipeline
/// gives, or both. An $unwind of `as` behind it becomes part of it: the array is never made.
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
    if (unwind_) {
      BsonBuilder unwinding = sub.OpenDocument("unwinding");
      unwinding.Append("preserveNullAndEmptyArrays", unwind_->preserve);
      if (unwind_->index) unwinding.Append("includeArrayIndex", *unwind_->index);
    }
  }
  bool Absorb(const PipelineUnwind& unwind) {
    if (unwind_ || unwind.dotted() != spec_.as) return false;
    unwind_ = Unwinding{unwind.index(), {}, unwind.preserve()};
    if (unwind_->index) unwind_->index_path = unwind.index_path();
    return true;
  }
  /// May it change what is at `path`?
  bool Touches(std::string_view path) const {
    return PathsOverlap(path, spec_.as) ||
           (unwind_ && unwind_->index && PathsOverlap(path, *unwind_->index));
  }
  void OnAttach() override {
    if (matches_) matches_->Attach(context_->op, context_->env);
  }
  void SaveState() override {
    if (matches_) matches_->SaveState();
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
    if (unwind_) return NextUnwound(out);
    StreamDocument in;
    MAYFLY_TRY(StreamState state, Pull(&in));
    if (state != StreamState::kAdvanced) return state;
    const Examined examined(*this);
    MAYFLY_TRY(Find(in));
    buffer_.clear();
    BsonBuilder b(buffer_);
    SetPath(in.doc, spec_.as_path, found_.view(), b);
    b.Done();
    *out = {BsonView(buffer_.data()), in.metadata};
    return state;
  }
  void AddKeptByStage(large_memory::Kept* kept) const override {
    kept->bytes +=
        found_.view().size() + input_copy_.capacity() + buffer_.capacity() + kept_.capacity();
    if (matches_) matches_->AddKept(kept);
    if (hashed_) kept->Add(hashed_->memory(), hashed_->hold);
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

  /// Fills found_ with the array for one document. The same values are not looked up twice in a
  /// row.
  Result<void> Find(const StreamDocument& in) {
    std::string key;
    MAYFLY_TRY(std::unique_ptr<Matches> matches, Open(in, &key));
    if (!matches) return Ok();
    std::string bytes;
    large_memory::Hold hold;
    BsonArrayBuilder array(bytes);
    while (true) {
      MAYFLY_TRY(Check());
      MAYFLY_TRY(std::optional<BsonView> doc, matches->Next());
      if (!doc) break;
      array.Append(*doc);
      if (bytes.size() > options().memory_limit) return TooMuch();
      MAYFLY_TRY(hold.Set(bytes.capacity()));
    }
    array.Done();
    hold.Release();
    found_ = Value::Array(std::move(bytes));
    found_key_ = std::move(key);
    have_found_ = true;
    return Ok();
  }

  /// One document for each foreign document that matches the input. They are read on demand. A few
  /// are kept for the next document with the same values.
  Result<StreamState> NextUnwound(StreamDocument* out) {
    while (true) {
      MAYFLY_TRY(Check());
      if (unwinding_) {
        const Examined examined(*this);
        MAYFLY_TRY(std::optional<BsonView> doc, NextMatch());
        if (doc) {
          Emit(doc->AsValue(), position_++, out);
          return StreamState::kAdvanced;
        }
        unwinding_ = false;
        matches_.reset();
        if (position_ == 0 && unwind_->preserve) {
          Emit(BsonValue(), std::nullopt, out);
          return StreamState::kAdvanced;
        }
      }
      StreamDocument in;
      MAYFLY_TRY(StreamState state, Pull(&in));
      if (state != StreamState::kAdvanced) return state;
      std::string key;
      const Examined examined(*this);
      MAYFLY_TRY(matches_, Open(in, &key));
      if (matches_) {
        keeping_ = true;
        kept_.clear();
        found_key_ = std::move(key);
        kept_builder_.emplace(kept_);
      } else {
        next_found_ = found_.view().Document().begin();
      }
      input_copy_.assign(in.doc.data(), in.doc.size());
      has_metadata_ = in.metadata != nullptr;
      if (has_metadata_) metadata_ = *in.metadata;
      unwinding_ = true;
      position_ = 0;
    }
  }

  Result<std::optional<BsonView>> NextMatch() {
    if (!matches_) {
      if (next_found_ == std::default_sentinel) return std::optional<BsonView>();
      const BsonView doc = (*next_found_).value.Document();
      ++next_found_;
      return std::optional<BsonView>(doc);
    }
    MAYFLY_TRY(std::optional<BsonView> doc, matches_->Next());
    if (!keeping_) return doc;
    if (doc && kept_.size() + doc->size() <= kMaxKept) {
      kept_builder_->Append(*doc);
      return doc;
    }
    keeping_ = false;
    kept_builder_->Done();
    kept_builder_.reset();
    if (!doc) {
      found_ = Value::Array(std::move(kept_));
      have_found_ = true;
    }
    kept_.clear();
    return doc;
  }

  /// Hands out the document that came in with `value` at `as`; without `as` when that is missing.
  void Emit(BsonValue value, std::optional<int64_t> index, StreamDocument* out) {
    buffer_.clear();
    {
      BsonBuilder b(buffer_);
      SetPath(BsonView(input_copy_.data()), spec_.as_path, value, b);
    }
    if (unwind_->index) {
      std::string with_index;
      {
        const Value n = index ? Value::Int64(*index) : Value::Null();
        BsonBuilder b(with_index);
        SetPath(BsonView(buffer_.data()), unwind_->index_path, n.view(), b);
      }
      buffer_.swap(with_index);
    }
    *out = {BsonView(buffer_.data()), has_metadata_ ? &metadata_ : nullptr};
  }

  /// What to read for one document, and the values by which to recognise it again. Null if found_
  /// has it already.
  Result<std::unique_ptr<Matches>> Open(const StreamDocument& in, std::string* key_out) {
    EvalContext& ctx = Eval(in);
    std::vector<std::pair<std::string, Value>> variables;
    std::string& key = *key_out;
    BsonDocument filter;
    if (!spec_.local.empty()) {
      Value local = ReadFieldPath(in.doc.AsValue(), spec_.local_path);
      filter = EqualityFilter(local.view());
      key = filter.bytes();
    }
    if (!spec_.let.empty()) {
      const ParseWork work(context_->op);  // the pipeline that uses them holds them later
      for (auto& [name, e] : spec_.let) {
        MAYFLY_TRY(Value v, e->Evaluate(ctx));
        MAYFLY_TRY(CheckNesting(v.view()));
        // bounded: by the parse, together; large values count by themselves
        variables.emplace_back(name, std::move(v).Own());
        const BsonValue value = variables.back().second.view();
        MAYFLY_TRY(ParseWork::MadeVariable(name, value.size()));
        key += static_cast<char>(value.type());
        key += value.bytes();
      }
    }
    if (have_found_ && key == found_key_) return std::unique_ptr<Matches>();
    have_found_ = false;
    if (!context_->env || !context_->op)
      return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
    std::unique_ptr<DocumentSource> source;
    if (!spec_.pipeline) {
      MAYFLY_TRY(bool hashed, Hashed());
      if (hashed) return OpenHashed(in, filter);
      SourceRequest request;
      const ParseWork work(context_->op);
      MAYFLY_TRY(request.match, ParseMatch(filter));
      request.filter = std::move(filter);
      MAYFLY_TRY(source, context_->env->OpenSource(*context_->op, options().db, spec_.from,
                                                   std::move(request)));
      return std::unique_ptr<Matches>(std::make_unique<SourceMatches>(std::move(source), nullptr));
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
      Pipeline* attached = pipeline.get();
      return std::unique_ptr<Matches>(
          std::make_unique<SourceMatches>(std::move(pipeline), attached));
    }
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

  Result<std::unique_ptr<Matches>> OpenHashed(const StreamDocument& in,
                                              const BsonDocument& filter) {
    Value local = ReadFieldPath(in.doc.AsValue(), spec_.local_path);
    const ParseWork work(context_->op);
    MAYFLY_TRY(MatchPtr match, ParseMatch(filter));
    MAYFLY_TRY(std::vector<uint32_t> candidates,
               hashed_->Candidates(local.view(), [&] { return Check(); }));
    return std::unique_ptr<Matches>(std::make_unique<HashedMatches>(
        *hashed_, std::move(candidates), std::move(match), context_->op));
  }

  Error TooMuch() const {
    return LocationError(4568, "Total size of documents in " + spec_.from +
                                   " matching pipeline's $lookup stage exceeds " +
                                   std::to_string(options().memory_limit) + " bytes");
  }

  /// Counts what is examined in its scope.
  class Examined {
   public:
    explicit Examined(LookupStage& stage)
        : stage_(stage),
          docs_(stage.context_->op ? stage.context_->op->docs_examined : 0),
          keys_(stage.context_->op ? stage.context_->op->keys_examined : 0) {}
    ~Examined() {
      if (!stage_.context_->op) return;
      stage_.docs_examined_ += stage_.context_->op->docs_examined - docs_;
      stage_.keys_examined_ += stage_.context_->op->keys_examined - keys_;
    }
    Examined(const Examined&) = delete;
    Examined& operator=(const Examined&) = delete;

   private:
    LookupStage& stage_;
    const int64_t docs_, keys_;
  };
  struct Unwinding {
    std::optional<std::string> index;
    std::vector<std::string> index_path;
    bool preserve = false;
  };
  static constexpr size_t kMaxKept = size_t{1} << 20;

  LookupSpec spec_;
  std::optional<Unwinding> unwind_;
  // The document that is being unwound, and where it stands.
  bool unwinding_ = false, keeping_ = false, has_metadata_ = false;
  int64_t position_ = 0;
  std::string input_copy_, kept_;
  std::optional<BsonArrayBuilder> kept_builder_;
  DocumentMetadata metadata_;
  std::unique_ptr<Matches> matches_;  ///< null: next_found_ goes through found_
  BsonView::Iterator next_found_;
  bool tried_hash_ = false;
  std::unique_ptr<HashedCollection> hashed_;
  Value found_;
  std::string found_key_, buffer_;
  bool have_found_ = false;
  int64_t docs_examined_ = 0, keys_examined_ = 0;  ///< of the foreign collection
};

}  // namespace

bool AbsorbUnwind(PipelineStage& lookup, const PipelineUnwind& unwind) {
  auto* stage = dynamic_cast<LookupStage*>(&lookup);
  return stage && stage->Absorb(unwind);
}

std::optional<bool> LookupTouches(const PipelineStage& stage, std::string_view path) {
  auto* lookup = dynamic_cast<const LookupStage*>(&stage);
  return lookup ? std::optional(lookup->Touches(path)) : std::nullopt;
}

Result<void> ParseLookupStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return FailedToParse("the $lookup stage specification must be an object, but found " +
                         TypeText(spec));
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
        return FailedToParse("$lookup argument 'let: " + ValueText(e.value) +
                             "' must be an object, is type " + TypeText(e.value));
      has_let = true;
      MAYFLY_TRY(CheckOptionsOnce("$lookup.let", e.value));
      for (const BsonElement& v : e.value.Document()) {
        MAYFLY_TRY(CheckVariableName(v.name));
        MAYFLY_TRY(ExpressionPtr x, ParseExpression(v.value, p.scope));
        lookup.let.emplace_back(v.name, std::move(x));
      }
      continue;
    }
    bool known =
        e.name == "from" || e.name == "as" || e.name == "localField" || e.name == "foreignField";
    if (!known) return FailedToParse("unknown argument to $lookup: " + std::string(e.name));
    if (!e.value.IsString())
      return FailedToParse("$lookup argument '" + std::string(e.name) +
                           "' must be a string, found " + ValueText(e.value) + ": " +
                           TypeText(e.value));
    std::string text(e.value.String());
    if (e.name == "from") {
      if (text.empty())
        return Error{ErrorCode::kInvalidNamespace,
                     "Invalid namespace specified '" + p.context.options.db + ".'"};
      MAYFLY_TRY(ValidateNamespace(p.context.options.db, text));
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
  if (lookup.as.empty()) return FailedToParse("must specify 'as' field for a $lookup");
  if (lookup.local.empty() != lookup.foreign.empty())
    return FailedToParse(
        "$lookup requires both or neither of 'localField' and 'foreignField' to be specified");
  if (!lookup.pipeline && lookup.local.empty())
    return FailedToParse(
        "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be "
        "specified");
  if (has_let && !lookup.pipeline)
    return FailedToParse("$lookup with a 'let' argument must also specify 'pipeline'");
  if (!has_from && !lookup.pipeline)
    return FailedToParse("missing 'from' option to $lookup stage specification: " +
                         ValueText(spec));
  if (has_from) lookup.namespaces.insert(JoinNamespace(p.context.options.db, lookup.from));
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
