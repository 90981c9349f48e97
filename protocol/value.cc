#include "protocol/value.h"

#include "protocol/large_memory.h"

namespace mayfly {
namespace {

/// The bytes of a large value, which count as long as anybody shares them.
struct CountedBytes {
  explicit CountedBytes(std::string b) : bytes(std::move(b)) { (void)hold.Set(bytes.capacity()); }
  const std::string bytes;
  large_memory::Hold hold;
};

std::shared_ptr<const std::string> Share(std::string bytes) {
  if (bytes.size() < large_memory::kLarge) [[likely]]
    return std::make_shared<const std::string>(std::move(bytes));
  auto counted = std::make_shared<const CountedBytes>(std::move(bytes));
  const std::string* p = &counted->bytes;
  return {std::move(counted), p};
}

}  // namespace

Value Value::String(std::string_view s) {
  std::string bytes;
  bytes.reserve(s.size() + 5);
  int32_t n = static_cast<int32_t>(s.size() + 1);
  bytes.append(reinterpret_cast<const char*>(&n), 4).append(s).push_back('\0');
  return Owned(BsonType::kString, std::move(bytes));
}

Value Value::Owned(BsonType type, std::string value_bytes) {
  if (value_bytes.size() <= sizeof(inline_) && type != BsonType::kDocument &&
      type != BsonType::kArray)
    return Scalar(type, value_bytes.data(), static_cast<uint32_t>(value_bytes.size()));
  std::shared_ptr<const std::string> owner = Share(std::move(value_bytes));
  Value r;
  r.type_ = type;
  r.size_ = static_cast<uint32_t>(owner->size());
  r.ptr_ = owner->data();
  r.owner_ = std::move(owner);
  return r;
}

Value Value::Own() const& {
  if (owns()) return *this;
  return Owned(type_, std::string(ptr_, size_));
}

Value Value::Own() && {
  if (owns()) return std::move(*this);
  return Owned(type_, std::string(ptr_, size_));
}

}  // namespace mayfly
