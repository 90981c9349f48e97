#pragma once
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "protocol/instant.h"

namespace mayfly {

/// Element types of the BSON specification (bsonspec.org), by their byte. kMissing is the end
/// marker and stands for "no such field".
enum class BsonType : uint8_t {
  kMissing = 0x00,
  kDouble = 0x01,
  kString = 0x02,
  kDocument = 0x03,
  kArray = 0x04,
  kBinary = 0x05,
  kUndefined = 0x06,
  kObjectId = 0x07,
  kBool = 0x08,
  kDate = 0x09,
  kNull = 0x0A,
  kRegex = 0x0B,
  kDbPointer = 0x0C,
  kCode = 0x0D,
  kSymbol = 0x0E,
  kCodeWithScope = 0x0F,
  kInt32 = 0x10,
  kTimestamp = 0x11,
  kInt64 = 0x12,
  kDecimal128 = 0x13,
  kMaxKey = 0x7F,
  kMinKey = 0xFF,
};

/// The alias `$type` uses: "double", "string", "object", "array", "binData", … ("missing" for
/// kMissing).
std::string_view BsonTypeName(BsonType type);

inline constexpr int kMaxBsonDepth =
    180;  ///< nesting of documents and arrays, as MongoDB stores them
inline constexpr int kMaxBsonUserSize = 16 * 1024 * 1024;  ///< a user's document
inline constexpr int kMaxBsonInternalSize = kMaxBsonUserSize + 16 * 1024;

/// Little-endian loads and stores; BSON has no alignment.
template <class T>
inline T LoadLe(const char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
/// Writes the host's bytes as they are, so the host must be little-endian.
template <class T>
inline void StoreLe(char* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

class BsonView;

/// 16 bytes of IEEE 754-2008 decimal128 in BID encoding, low word first, as BSON stores it.
/// Arithmetic and comparison: protocol/decimal128.h.
struct Decimal128Bits {
  uint64_t low = 0, high = 0;
  bool operator==(const Decimal128Bits&) const = default;
};

/// A view of one BSON value: its type and the bytes of the value (without type byte and name).
/// Does not own the bytes. REQUIRES: the bytes came from a validated document (ValidateBson) or a
/// BsonBuilder; accessors do not check again. Cheap to copy. Threads: any, read-only.
class BsonValue {
 public:
  constexpr BsonValue() = default;
  constexpr BsonValue(BsonType type, const char* data, uint32_t size)
      : data_(data), size_(size), type_(type) {}

  constexpr BsonType type() const { return type_; }
  constexpr bool missing() const { return type_ == BsonType::kMissing; }
  constexpr explicit operator bool() const { return !missing(); }
  constexpr const char* data() const { return data_; }
  constexpr uint32_t size() const { return size_; }
  std::string_view bytes() const { return {data_, size_}; }

  bool Is(BsonType t) const { return type_ == t; }
  /// A date, a timestamp and a bool are no numbers.
  bool IsNumber() const {
    return type_ == BsonType::kInt32 || type_ == BsonType::kDouble || type_ == BsonType::kInt64 ||
           type_ == BsonType::kDecimal128;
  }
  bool IsString() const { return type_ == BsonType::kString; }
  bool IsDocument() const { return type_ == BsonType::kDocument; }
  bool IsArray() const { return type_ == BsonType::kArray; }
  bool IsDate() const { return type_ == BsonType::kDate; }
  bool IsNull() const { return type_ == BsonType::kNull; }
  /// null, undefined or missing
  bool IsNullish() const {
    return type_ == BsonType::kNull || type_ == BsonType::kUndefined || type_ == BsonType::kMissing;
  }

  // Typed access. REQUIRES: the type is the one named.
  double Double() const { return LoadLe<double>(data_); }
  int32_t Int32() const { return LoadLe<int32_t>(data_); }
  int64_t Int64() const { return LoadLe<int64_t>(data_); }
  bool Bool() const { return *data_ != 0; }
  Instant Date() const { return {LoadLe<int64_t>(data_)}; }
  uint64_t Timestamp() const { return LoadLe<uint64_t>(data_); }  ///< seconds << 32 | increment
  Decimal128Bits Decimal() const { return {LoadLe<uint64_t>(data_), LoadLe<uint64_t>(data_ + 8)}; }
  std::string_view ObjectId() const { return {data_, 12}; }
  /// String, code or symbol, without the terminating NUL.
  std::string_view String() const { return {data_ + 4, size_ - 5}; }
  inline BsonView Document() const;  ///< document or array
  uint8_t BinarySubtype() const { return static_cast<uint8_t>(data_[4]); }
  std::string_view BinaryData() const { return {data_ + 5, size_ - 5}; }
  std::string_view RegexPattern() const { return {data_}; }
  std::string_view RegexOptions() const { return {data_ + std::strlen(data_) + 1}; }
  std::string_view CodeWithScopeCode() const {
    return {data_ + 8, static_cast<size_t>(LoadLe<int32_t>(data_ + 4)) - 1};
  }
  /// The variables of a "code with scope", behind its total length and its code.
  inline BsonView CodeWithScopeScope() const;
  /// "database.collection" of a DBPointer (deprecated), without the terminating NUL.
  std::string_view DbPointerNamespace() const {
    return {data_ + 4, static_cast<size_t>(LoadLe<int32_t>(data_)) - 1};
  }
  std::string_view DbPointerId() const { return {data_ + size_ - 12, 12}; }

  /// Any number as a double (decimals rounded to nearest). 0 for other types.
  double NumberAsDouble() const;
  /// Any number truncated toward zero and clamped to int64; NaN is 0. 0 for other types.
  int64_t NumberAsInt64() const;
  /// The number as int64 if it has no fraction and fits, in `*out`. False otherwise and for other
  /// types.
  bool ExactInt64(int64_t* out) const;
  /// Truth as MongoDB sees it: false for missing, null, undefined, false and numeric zero.
  bool Truthy() const;

  /// The same type and the same bytes (stricter than Compare() == 0).
  bool BinaryEquals(BsonValue o) const { return type_ == o.type_ && bytes() == o.bytes(); }

 private:
  const char* data_ = nullptr;
  uint32_t size_ = 0;
  BsonType type_ = BsonType::kMissing;
};

/// One element of a document: name and value.
struct BsonElement {
  std::string_view name;
  BsonValue value;
};

/// Size in bytes of a value of `type` that starts at `p` in a validated document.
uint32_t BsonValueSize(BsonType type, const char* p);

/// A view of a BSON document or array. Does not own. REQUIRES: validated bytes. Threads: any.
class BsonView {
 public:
  /// The empty document.
  BsonView() : data_(kEmpty) {}
  explicit BsonView(const char* data) : data_(data) {}
  explicit BsonView(std::string_view bytes) : data_(bytes.data()) {}

  const char* data() const { return data_; }
  uint32_t size() const { return static_cast<uint32_t>(LoadLe<int32_t>(data_)); }
  std::string_view bytes() const { return {data_, size()}; }
  bool empty() const { return size() == 5; }
  std::string ToString() const { return std::string(bytes()); }  ///< owned copy of the bytes

  /// Over the elements in their order. Valid as long as the bytes are.
  class Iterator {
   public:
    using value_type = BsonElement;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    explicit Iterator(const char* p) : p_(p) { Load(); }
    const BsonElement& operator*() const { return e_; }
    const BsonElement* operator->() const { return &e_; }
    Iterator& operator++() {
      p_ = e_.value.data() + e_.value.size();
      Load();
      return *this;
    }
    Iterator operator++(int) {
      auto c = *this;
      ++*this;
      return c;
    }
    bool operator==(const Iterator& o) const { return p_ == o.p_; }
    bool operator==(std::default_sentinel_t) const { return e_.value.missing(); }
    /// Start of the element (its type byte) and one past its end.
    const char* begin() const { return p_; }
    const char* end() const { return e_.value.data() + e_.value.size(); }

   private:
    void Load() {
      auto type = static_cast<BsonType>(static_cast<uint8_t>(*p_));
      if (type == BsonType::kMissing) {
        e_ = {};
        return;
      }
      size_t n = std::strlen(p_ + 1);
      const char* v = p_ + 2 + n;
      e_ = {{p_ + 1, n}, BsonValue(type, v, BsonValueSize(type, v))};
    }
    const char* p_ = nullptr;
    BsonElement e_;
  };
  Iterator begin() const { return Iterator(data_ + 4); }
  std::default_sentinel_t end() const { return {}; }

  /// The first field with this exact name (dots are not a path); missing if there is none.
  BsonValue Find(std::string_view name) const;
  BsonValue operator[](std::string_view name) const { return Find(name); }
  bool Has(std::string_view name) const { return !Find(name).missing(); }
  /// The value at a dotted path through sub-documents only (array elements by number). Missing if
  /// none.
  BsonValue FindPath(std::string_view dotted) const;
  /// The first element; value missing when empty.
  BsonElement First() const { return *begin(); }
  /// How many elements (walks the document).
  int Count() const;

  /// As a value of type document (or array).
  BsonValue AsValue(BsonType type = BsonType::kDocument) const { return {type, data_, size()}; }

 private:
  static constexpr char kEmpty[5] = {5, 0, 0, 0, 0};
  const char* data_;
};

/// Here, because BsonView is complete only now.
inline BsonView BsonValue::Document() const { return BsonView(data_); }
inline BsonView BsonValue::CodeWithScopeScope() const {
  return BsonView(data_ + 8 + LoadLe<int32_t>(data_ + 4));
}

/// A document that owns its bytes. Moves are cheap; copies copy.
class BsonDocument {
 public:
  BsonDocument() : bytes_("\x05\0\0\0\0", 5) {}
  explicit BsonDocument(std::string bytes) : bytes_(std::move(bytes)) {}
  explicit BsonDocument(BsonView v) : bytes_(v.bytes()) {}
  BsonView view() const { return BsonView(bytes_.data()); }
  operator BsonView() const { return view(); }
  std::string& bytes() { return bytes_; }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace mayfly
