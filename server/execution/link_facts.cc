#include "server/execution/link_facts.h"

#include "protocol/cut_text.h"
#include "storage/read/cursors.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

constexpr size_t kMostLinks = 20, kMostText = 256;
/// From here on the difference is worth a warning, as in the link itself.
constexpr int64_t kClocksApartMillis = 1000;

void AppendText(BsonView d, std::string_view name, BsonBuilder& out) {
  const BsonValue v = d[name];
  if (!v.IsString()) return;
  const std::string_view text = CutUtf8(v.String(), kMostText);
  out.Append(name, text);
}

void AppendWholeNumber(BsonView d, std::string_view name, BsonBuilder& out) {
  if (const BsonValue v = d[name]; v.IsNumber()) out.Append(name, v.NumberAsInt64());
}

void AppendLink(BsonView link, Instant now, BsonBuilder& out) {
  out.Append("link", CutUtf8(link["_id"].String(), kMostText));
  AppendText(link, "phase", out);
  if (const BsonValue v = link["paused"]; v.Is(BsonType::kBool)) out.Append("paused", v.Bool());
  AppendWholeNumber(link, "lagMillis", out);
  if (const BsonValue at = link["updatedAt"]; at.IsDate()) {
    // Whoever may write there can give any date.
    int64_t ago = 0;
    if (__builtin_sub_overflow(now.millis, at.Date().millis, &ago))
      ago = at.Date().millis < 0 ? INT64_MAX : INT64_MIN;
    out.Append("seenMillisAgo", ago);
  }
  if (const BsonValue source = link["source"]; source.IsDocument())
    if (const BsonValue set = source.Document()["set"]; set.IsString())
      out.Append("source", CutUtf8(set.String(), kMostText));
  const BsonValue skew = link["clockSkewMillis"];
  const BsonValue apart = skew.IsDocument() ? skew.Document()["apart"] : BsonValue();
  if (!apart.IsNumber()) return;
  const int64_t ahead = apart.NumberAsInt64();
  out.Append("clockAheadMillis", ahead);
  if (ahead > kClocksApartMillis)
    out.Append("advice",
               "this cluster's clock is ahead of the source's: documents expire earlier "
               "here by as much; keep both in step (NTP)");
  else if (ahead < -kClocksApartMillis)
    out.Append("advice",
               "this cluster's clock is behind the source's: documents expire later here "
               "by as much; keep both in step (NTP)");
}

}  // namespace

Result<void> AppendLinks(Storage& storage, Operation& op, BsonBuilder& reply) {
  const CollectionInfoPtr coll = storage.catalog().Find(kLinkStatusDb, kLinkStatusCollection);
  if (!coll || coll->is_view()) return Ok();
  auto cursor = storage.ScanRecords(coll, {});
  BsonArrayBuilder list = reply.OpenArray("links");
  for (size_t n = 0; n < kMostLinks; ++n) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(const bool more, cursor->Next());
    if (!more) break;
    if (cursor->doc()["_id"].IsString()) {
      BsonBuilder d = list.OpenDocument();
      AppendLink(cursor->doc(), op.now, d);
    }
  }
  return Ok();
}

}  // namespace mayfly
