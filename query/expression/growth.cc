#include "query/expression/growth.h"

#include "query/expression/value_account.h"
#include "storage/operation.h"

namespace mayfly {
namespace {

/// A value may be a little larger than kMaxValueBytes: its last element is put in whole.
constexpr size_t kSlack = 64 << 10;

/// The account of the operation that this thread works for. An operation stays on its thread until
/// it is done, or begins again; threads that help it have an AccountScope.
struct ThreadAccount {
  uint64_t operation = 0;
  std::shared_ptr<ValueAccount> account;
};
thread_local ThreadAccount of_thread;

const std::shared_ptr<ValueAccount>& AccountOf(uint64_t operation) {
  if (!of_thread.account || of_thread.operation != operation)
    of_thread = {operation, std::make_shared<ValueAccount>()};
  return of_thread.account;
}

Error TooMuch() {
  return Error{
      ErrorCode::kExceededMemoryLimit,
      "The values of the expressions of one operation use more than the " +
          std::to_string(kMaxOperationValues >> 20) +
          " MB they may have together: make arrays and strings smaller, or work on them in "
          "several stages"};
}

/// A value that is charged to an operation as long as anybody shares it. To the process it is
/// charged by itself.
struct Charged {
  Charged(Value v, std::shared_ptr<ValueAccount> a)
      : value(std::move(v)), account(std::move(a)), bytes(value.view().size()) {
    account->used.fetch_add(bytes, std::memory_order_relaxed);
  }
  ~Charged() { account->used.fetch_sub(bytes, std::memory_order_relaxed); }
  Charged(const Charged&) = delete;
  Charged& operator=(const Charged&) = delete;
  const Value value;
  const std::shared_ptr<ValueAccount> account;
  const int64_t bytes;
};

}  // namespace

std::shared_ptr<ValueAccount> AccountOfOperation(uint64_t operation) {
  return AccountOf(operation);
}
AccountScope::AccountScope(uint64_t operation, std::shared_ptr<ValueAccount> account) {
  of_thread = {operation, std::move(account)};
}
AccountScope::~AccountScope() { of_thread = {}; }

Result<void> Pace::Look() {
  left_ = kBetween;
  return op_ ? op_->CheckInterruptNow() : Result<void>(Ok());
}

Result<void> CheckAfterLarge(EvalContext& ctx) {
  return ctx.op ? ctx.op->CheckInterruptNow() : Result<void>(Ok());
}

Result<void> Charge::Change(size_t bytes) {
  const bool more = bytes > held_;
  if (!account_) account_ = AccountOf(op_ ? op_->id : 0);
  const int64_t change = static_cast<int64_t>(bytes) - static_cast<int64_t>(held_);
  const int64_t used = account_->used.fetch_add(change, std::memory_order_relaxed) + change;
  held_ = bytes;
  MAYFLY_TRY(hold_.Set(bytes));
  if (!more || used <= kMaxOperationValues) return Ok();
  return TooMuch();
}

void Charge::Release() {
  if (held_ != 0) account_->used.fetch_sub(static_cast<int64_t>(held_), std::memory_order_relaxed);
  held_ = 0;
  hold_.Release();
}

Result<void> GrowingBytes::Grow(size_t n) {
  const size_t wanted = bytes_.size() + n;
  if (wanted > kMaxValueBytes + kSlack) return ValueTooLarge(wanted);
  const size_t capacity =
      std::max(std::min(2 * bytes_.capacity(), kMaxValueBytes + kSlack), wanted);
  // Both exist while the bytes move.
  MAYFLY_TRY(charge_.Set(bytes_.capacity() + capacity));
  bytes_.reserve(capacity);
  return charge_.Set(bytes_.capacity());
}

Value GrowingString::Finish() {
  std::string bytes = growth_.Take();
  bytes.push_back('\0');
  StoreLe<int32_t>(bytes.data(), static_cast<int32_t>(bytes.size() - 4));
  return Value::Owned(BsonType::kString, std::move(bytes));
}

Result<void> ElementList::Add(BsonValue array) {
  size_t n = 0;
  for (const BsonElement& e : array.Document()) {
    ++n;
    MAYFLY_TRY(pace_.Step(e.name.size()));
  }
  const size_t wanted = values_.size() + n;
  if (wanted > values_.capacity()) {
    const size_t capacity = std::max(wanted, 2 * values_.capacity());
    MAYFLY_TRY(charge_->Set((values_.capacity() + capacity) * sizeof(BsonValue)));
    values_.reserve(capacity);
    MAYFLY_TRY(charge_->Set(capacity * sizeof(BsonValue)));
  }
  for (const BsonElement& e : array.Document()) {
    values_.push_back(e.value);
    MAYFLY_TRY(pace_.Step(e.name.size()));
  }
  return Ok();
}

Result<Value> ArrayOf(EvalContext& ctx, std::span<const BsonValue> values) {
  GrowingArray out(ctx);
  for (BsonValue v : values) {
    MAYFLY_TRY(out.Append(v));
  }
  return out.Finish();
}

Result<size_t> FindText(Pace& pace, std::string_view s, std::string_view token, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (token.empty()) return from;
  // In pieces that overlap by a token's length, each a few tokens long: then the preparation of a
  // search costs no more than the search.
  const size_t piece = std::max<size_t>(64 << 10, 2 * token.size());
  while (s.size() - from >= token.size()) {
    const size_t n = std::min(s.size() - from, piece + token.size() - 1);
    const void* found = ::memmem(s.data() + from, n, token.data(), token.size());
    if (found) {
      const size_t at = static_cast<size_t>(static_cast<const char*>(found) - s.data());
      MAYFLY_TRY(pace.Step(at - from));
      return at;
    }
    MAYFLY_TRY(pace.Step(n));
    from += n - (token.size() - 1);
  }
  return std::string_view::npos;
}

Result<Value> MadeLarge(EvalContext& ctx, Value v) {
  const size_t n = v.view().size();
  if (n > 2 * kMaxValueBytes) return ValueTooLarge(n);
  MAYFLY_TRY(large_memory::Check(n));
  // This took long, and one expression may contain thousands of them.
  if (ctx.op) {
    MAYFLY_TRY(ctx.op->CheckInterruptNow());
  }
  if (!v.owns()) return v;
  const BsonValue view = v.view();
  auto charged = std::make_shared<Charged>(std::move(v), AccountOf(ctx.op ? ctx.op->id : 0));
  if (charged->account->used.load(std::memory_order_relaxed) > kMaxOperationValues)
    return TooMuch();
  // The value manages what it points to; this only keeps it and its charge.
  static const std::string nothing;
  return Value::Shared(view, {std::move(charged), &nothing});
}

}  // namespace mayfly
