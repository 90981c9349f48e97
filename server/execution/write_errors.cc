#include "protocol/error_labels.h"
#include "protocol/error_text.h"
#include "server/execution/write_ops.h"

namespace mayfly {

bool IsRetryable(const Error& e) {
  return e.code == ErrorCode::kWriteConflict || e.code == ErrorCode::kQueryPlanKilled;
}

bool EndsCommand(const Error& e) {
  // Errors that drivers retry must fail the whole command: drivers do not look for them in
  // `writeErrors`.
  return e.code == ErrorCode::kInterrupted || e.code == ErrorCode::kMaxTimeMSExpired ||
         IsRetryableWriteError(e.code);
}

void ErrorRoom::Fit(Error& e) {
  // Each part has a limit of its own, so that long details leave room for the messages.
  constexpr size_t kMaxBytes = 1 << 20;
  messages_ += e.message.size();
  details_ += e.details.size();
  // To assign an empty string would keep the room of the long one, for each of many errors.
  if (messages_ > kMaxBytes) std::exchange(e.message, {});
  if (details_ > kMaxBytes) std::exchange(e.details, {});
}

Result<void> WriteErrors::Add(size_t index, Error e) {
  room_.Fit(e);
  bytes_ += e.message.size() + e.details.size();
  errors_.emplace_back(static_cast<int32_t>(index), std::move(e));
  return hold_.Set(bytes_ + errors_.capacity() * sizeof errors_[0]);
}

void WriteErrors::AppendTo(BsonBuilder& reply) const {
  if (errors_.empty()) return;
  BsonArrayBuilder list = reply.OpenArray("writeErrors");
  for (const auto& [index, e] : errors_) {
    BsonBuilder b = list.OpenDocument();
    b.Append("index", index).Append("code", static_cast<int32_t>(e.code));
    b.Append("errmsg", ErrorText(e.message));
    if (!e.details.empty()) b.AppendAll(BsonView(e.details.data()));
  }
}

}  // namespace mayfly
