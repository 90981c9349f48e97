#pragma once
#include <memory>
#include <string>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"

namespace mayfly {

/// A BSON value that evaluation passes around: borrowed from a document, a small scalar held
/// inline, or bytes it shares ownership of. Copying never copies document bytes. A borrowed Value
/// is valid while the document it came from is; Own() makes it independent. Threads: a Value is
/// used by one thread at a time; different Values may share owned bytes across threads.
class Value {
 public:
  Value() = default;  ///< missing
  Value(const Value& o) { *this = o; }
  Value(Value&& o) noexcept { *this = std::move(o); }
  Value& operator=(const Value& o) {
    owner_ = o.owner_;
    CopyBits(o);
    return *this;
  }
  Value& operator=(Value&& o) noexcept {
    owner_ = std::move(o.owner_);
    CopyBits(o);
    return *this;
  }

  /// Borrows: `v`'s bytes must outlive this Value (and its copies).
  static Value Borrow(BsonValue v) {
    Value r;
    r.type_ = v.type();
    r.size_ = v.size();
    r.ptr_ = v.data();
    return r;
  }
  /// Copies the bytes of `v`.
  static Value Copy(BsonValue v) { return Borrow(v).Own(); }
  static Value Null() { return Scalar(BsonType::kNull, nullptr, 0); }
  static Value Double(double v) { return Scalar(BsonType::kDouble, &v, sizeof v); }
  static Value Int32(int32_t v) { return Scalar(BsonType::kInt32, &v, sizeof v); }
  static Value Int64(int64_t v) { return Scalar(BsonType::kInt64, &v, sizeof v); }
  static Value Bool(bool v) { return Scalar(BsonType::kBool, &v, 1); }
  static Value Date(Instant v) { return Scalar(BsonType::kDate, &v.millis, 8); }
  static Value Timestamp(uint64_t v) { return Scalar(BsonType::kTimestamp, &v, 8); }
  static Value Decimal(Decimal128Bits v) { return Scalar(BsonType::kDecimal128, &v, 16); }
  static Value ObjectId(std::string_view oid12) {
    return Scalar(BsonType::kObjectId, oid12.data(), 12);
  }
  /// Copies the text; up to 11 bytes are held inline.
  static Value String(std::string_view s);
  /// Takes the bytes of a finished document or array.
  static Value Document(std::string bytes) { return Owned(BsonType::kDocument, std::move(bytes)); }
  static Value Array(std::string bytes) { return Owned(BsonType::kArray, std::move(bytes)); }
  /// Takes raw value bytes of any type.
  static Value Owned(BsonType type, std::string value_bytes);
  /// A value inside bytes that `owner` keeps alive.
  static Value Shared(BsonValue v, std::shared_ptr<const std::string> owner) {
    Value r = Borrow(v);
    r.owner_ = std::move(owner);
    return r;
  }

  /// `inner` lies inside this value's bytes (an element of an array, say): the result keeps them
  /// alive as this does.
  Value Member(BsonValue inner) const { return Shared(inner, owner_); }

  BsonType type() const { return type_; }
  bool missing() const { return type_ == BsonType::kMissing; }
  /// The view. Valid while this Value is neither moved nor destroyed (scalars live inline).
  BsonValue view() const { return {type_, data(), size_}; }
  BsonValue operator*() const { return view(); }
  const BsonValue* operator->() const = delete;  // write v.view().X(): the view is a temporary
  bool inline_scalar() const { return inlined_; }
  /// This value with bytes it (co-)owns; a no-op when it does already.
  Value Own() const&;
  Value Own() &&;
  bool owns() const { return inlined_ || owner_ || type_ == BsonType::kMissing; }

 private:
  static Value Scalar(BsonType type, const void* p, uint32_t n) {
    Value r;
    r.type_ = type;
    r.size_ = n;
    r.inlined_ = true;
    if (n) std::memcpy(r.inline_, p, n);
    return r;
  }
  void CopyBits(const Value& o) {
    type_ = o.type_;
    inlined_ = o.inlined_;
    size_ = o.size_;
    std::memcpy(inline_, o.inline_, sizeof inline_);
  }
  const char* data() const { return inlined_ ? inline_ : ptr_; }

  BsonType type_ = BsonType::kMissing;
  bool inlined_ = false;
  uint32_t size_ = 0;
  union {
    const char* ptr_ = nullptr;
    char inline_[16];
  };
  std::shared_ptr<const std::string> owner_;
};

}  // namespace mayfly
