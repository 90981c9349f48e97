#include "protocol/database_name.h"
#include "query/expression/parse_work.h"
#include "query/match/match_expression.h"
#include "query/match/record_filter.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

/// As long as it is set it counts among the filters that live as long as something in the catalog.
class KeptFilter {
 public:
  KeptFilter(MatchPtr match, uint64_t bytes)
      : match_(std::move(match)), bytes_(static_cast<int64_t>(bytes)) {
    budget_.compiled_filter_bytes.fetch_add(bytes_, std::memory_order_relaxed);
  }
  KeptFilter(const KeptFilter&) = delete;
  ~KeptFilter() { budget_.compiled_filter_bytes.fetch_sub(bytes_, std::memory_order_relaxed); }
  const MatchExpression* match() const { return match_.get(); }

 private:
  MatchPtr match_;
  const int64_t bytes_;
  large_memory::Budget& budget_ = large_memory::ThreadBudget();
};

Result<std::shared_ptr<const MatchExpression>> ReadFilter(CommandContext& ctx, BsonView filter) {
  if (filter.size() > Profiler::kMaxFilterBytes)
    return Error{ErrorCode::kBSONObjectTooLarge,
                 "the profiler's filter has " + std::to_string(filter.size()) +
                     " bytes, more than the " + std::to_string(Profiler::kMaxFilterBytes) +
                     " it may have"};
  ParseWork work(&ctx.op);
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter));
  auto kept = std::make_shared<const KeptFilter>(std::move(match), work.bytes());
  MAYFLY_TRY(CheckRecordFilters());
  return std::shared_ptr<const MatchExpression>(kept, kept->match());
}

Result<void> RunProfile(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const BsonValue level_value = req.fields[0].value;
  if (!level_value.IsNumber())
    in.Fail(in.WrongType("profile", level_value.type(), "[long, int, decimal, double]"));
  const auto slow_ms = in.OptInt64("slowms");
  const auto sample_rate = in.OptDouble("sampleRate");
  const BsonValue filter = in.Any("filter");
  MAYFLY_TRY(in.Finish());
  if (sample_rate && !(*sample_rate >= 0 && *sample_rate <= 1))
    return Error{ErrorCode::kBadValue, "'sampleRate' must be between 0.0 and 1.0 inclusive"};

  Profiler& profiler = ctx.server.profiler();
  Profiler::Settings settings = profiler.Get(req.db);
  const Profiler::Settings was = settings;
  const int64_t was_slow = profiler.slow_ms;
  const double was_rate = profiler.sample_rate;
  bool change = false;
  if (filter.IsDocument()) {
    MAYFLY_TRY(settings.filter, ReadFilter(ctx, filter.Document()));
    settings.filter_source = BsonDocument(filter.Document());
    change = true;
  } else if (filter.IsString() && filter.String() == "unset") {
    settings.filter = nullptr;
    settings.filter_source = BsonDocument();
    change = true;
  } else if (!filter.missing()) {
    return Error{ErrorCode::kBadValue, "Expected an object, or the string 'unset'."};
  }
  const int64_t level = level_value.NumberAsInt64();
  if (level >= 0 && level <= 2) {
    if (level > 0 && IsConfigOrLocal(req.db))
      return Error{ErrorCode::kBadValue,
                   "cannot enable profiling on the " + std::string(req.db) + " database"};
    settings.level = static_cast<int>(level);
    change = true;
  }
  if (change) {
    MAYFLY_TRY(profiler.Set(req.db, std::move(settings)));
  }
  if (slow_ms) profiler.slow_ms = *slow_ms;
  if (sample_rate) profiler.sample_rate = *sample_rate;

  reply.Append("was", static_cast<int32_t>(was.level))
      .Append("slowms", static_cast<int32_t>(was_slow));
  reply.Append("sampleRate", was_rate);
  if (was.filter) {
    reply.Append("filter", was.filter_source);
    reply.Append("note",
                 "When a filter expression is set, slowms and sampleRate are not used for "
                 "profiling and slow-query log lines.");
  }
  if (change || slow_ms || sample_rate)
    ctx.data.log().Write(LogSeverity::kInfo, LogComponent::kCommand, 48742,
                         "Profiler settings changed", BuildBson([&](BsonBuilder& b) {
                           b.Append("db", req.db)
                               .Append("from", was.level)
                               .Append("to", static_cast<int32_t>(level));
                           b.Append("slowms", profiler.slow_ms.load())
                               .Append("sampleRate", profiler.sample_rate.load());
                         }));
  return Ok();
}

}  // namespace

void RegisterProfile(CommandRegistry& registry) {
  registry.Add(
      {.name = "profile",
       .flags = kSecondaryOk | kNoProfile | kWorker,
       .help = "The database profiler: level 0, 1, 2 or -1 to ask; slowms, sampleRate, filter.",
       .run = &RunProfile,
       .privileges = &privileges::Profile});
}

}  // namespace mayfly
