#include "protocol/error_labels.h"
#include "protocol/utf8.h"
#include "server/execution/write_ops.h"

namespace mayfly {

bool IsRetryable(const Error& e) {
  return e.code == ErrorCode::kWriteConflict || e.code == ErrorCode::kQueryPlanKilled;
}

bool EndsCommand(const Error& e) {
  // Of those that a driver retries it must see the command fail: in `writeErrors` it does not.
  return e.code == ErrorCode::kInterrupted || e.code == ErrorCode::kMaxTimeMSExpired ||
         IsRetryableWriteError(e.code);
}

void WriteErrors::Add(size_t index, Error e) {
  // Each has a limit of its own: long details leave room for what they explain.
  constexpr size_t kMostBytes = 1 << 20;
  messages_ += e.message.size();
  details_ += e.details.size();
  if (messages_ > kMostBytes) e.message = {};
  if (details_ > kMostBytes) e.details = {};
  errors_.emplace_back(static_cast<int32_t>(index), std::move(e));
}

void WriteErrors::AppendTo(BsonBuilder& reply) const {
  if (errors_.empty()) return;
  BsonArrayBuilder list = reply.OpenArray("writeErrors");
  for (const auto& [index, e] : errors_) {
    BsonBuilder b = list.OpenDocument();
    b.Append("index", index).Append("code", static_cast<int32_t>(e.code));
    b.Append("errmsg", IsUtf8(e.message) ? e.message : PrintableUtf8(e.message));
    if (!e.details.empty()) b.AppendAll(BsonView(e.details.data()));
  }
}

}  // namespace mayfly
