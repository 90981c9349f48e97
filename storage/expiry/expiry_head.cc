#include "storage/expiry/expiry_head.h"

#include "protocol/value.h"
#include "storage/expiry/record_date.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

void AppendDate(int64_t millis, bool descending, std::string& key) {
  EncodeKeyValue(Value::Date({millis}).view(), descending, key);
}

/// Everything earlier than `millis`. REQUIRES: not INT64_MIN.
ExpiryHead::Stretch Earlier(ExpiryHead::Order order, uint32_t id, int64_t millis) {
  ExpiryHead::Stretch s;
  s.millis = millis;
  s.begin = s.end = IdPrefix(id);
  switch (order) {
    case ExpiryHead::Order::kAscending:
      EncodeTypeClassBegin(BsonType::kDate, s.begin);
      AppendDate(millis, false, s.end);
      break;
    case ExpiryHead::Order::kDescending: {
      std::string first;
      EncodeTypeClassBegin(BsonType::kDate, first);
      AppendDate(millis - 1, true, s.begin);
      s.end.push_back(static_cast<char>(static_cast<uint8_t>(~first[0]) + 1));
      break;
    }
    case ExpiryHead::Order::kRecords:
    case ExpiryHead::Order::kBuckets: {
      // docs/expiry.md R6: what is before the epoch stays.
      const auto dates =
          order == ExpiryHead::Order::kRecords ? RecordDates::kId : RecordDates::kBuckets;
      AppendRecordDate(dates, 0, s.begin);
      AppendRecordDate(dates, millis, s.end);
      break;
    }
  }
  return s;
}

}  // namespace

void ExpiryHead::Publish(std::shared_ptr<const Stretch> s) {
  millis_.store(s ? s->millis : INT64_MIN, std::memory_order_relaxed);
  stretch_ = std::move(s);
}

void ExpiryHead::Raise(Order order, uint32_t id, int64_t millis, std::string_view entry,
                       uint64_t sequence, uint64_t epoch) {
  if (millis == INT64_MIN) return;
  Stretch s = Earlier(order, id, millis);
  if (!entry.empty()) {
    if (order == Order::kDescending)
      s.begin.assign(entry).push_back('\0');
    else
      s.end = entry;
  }
  s.sequence = sequence;
  s.epoch = epoch;
  std::lock_guard l(mutex_);
  // Existing knowledge that reaches as far stays: it is valid for older snapshots too.
  if (stretch_ && stretch_->epoch == epoch && stretch_->begin <= s.begin && stretch_->end >= s.end)
    return;
  order_ = order;
  id_ = id;
  Publish(std::make_shared<const Stretch>(std::move(s)));
}

void ExpiryHead::LowerTo(int64_t millis) {
  std::lock_guard l(mutex_);
  if (!stretch_ || millis > stretch_->millis) return;
  if (millis == INT64_MIN) return Publish(nullptr);
  Stretch s = Earlier(order_, id_, millis);
  s.sequence = stretch_->sequence;
  s.epoch = stretch_->epoch;
  Publish(std::make_shared<const Stretch>(std::move(s)));
}

void ExpiryHead::Forget() {
  std::lock_guard l(mutex_);
  Publish(nullptr);
}

}  // namespace mayfly
