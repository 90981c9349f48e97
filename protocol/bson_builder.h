#pragma once
#include <string>
#include <string_view>

#include "protocol/bson_view.h"

namespace mayfly {

/// The part of a name or another C string before its first NUL. Code that takes names from a client
/// must refuse such names before; where bson_check is on, a call of this function ends the process.
std::string_view TruncateAtNul(std::string_view text);

/// Writes `name` as a BSON C string: the one place where a name becomes bytes. After a NUL in it,
/// the reader would take the rest for types and lengths. For literals the compiler rules a NUL
/// out.
inline void AppendCString(std::string& out, std::string_view name) {
  if (!__builtin_constant_p(name.size()) && !name.empty() &&
      std::memchr(name.data(), 0, name.size()) != nullptr) [[unlikely]]
    name = TruncateAtNul(name);
  out.append(name).push_back('\0');
}

/// Writes one BSON document at the end of `out`, in place: replies are built directly in a
/// connection's write buffer. A builder for a sub-document writes into the same buffer; until its
/// Done() (or its destructor) the parent must not be used. Not thread-safe; does not own `out`.
class BsonBuilder {
 public:
  explicit BsonBuilder(std::string& out) : out_(&out), start_(out.size()) { out.append(4, '\0'); }
  BsonBuilder(BsonBuilder&& o) noexcept : out_(o.out_), start_(o.start_), done_(o.done_) {
    o.done_ = true;
  }
  BsonBuilder(const BsonBuilder&) = delete;
  BsonBuilder& operator=(const BsonBuilder&) = delete;
  /// If an allocation fails while the stack unwinds from an earlier failure, the process must not
  /// end: the document is lost then anyway.
  ~BsonBuilder() {
    if (done_) return;
    try {
      Done();
    } catch (...) {
    }
  }

  /// Ends the document: writes its end marker and its length. Further calls do nothing. A document
  /// of 2 GiB has no length that BSON can say, and readers trust lengths: it becomes an empty one.
  /// Code that may come near must stop before.
  void Done() {
    if (done_) return;
    done_ = true;
    if (out_->size() - start_ >= kMaxLength) [[unlikely]]
      out_->resize(start_ + sizeof(int32_t));
    out_->push_back('\0');
    StoreLe<int32_t>(out_->data() + start_, static_cast<int32_t>(out_->size() - start_));
  }
  /// Takes back everything written since construction, including the header.
  void Abandon() {
    out_->resize(start_);
    done_ = true;
  }

  BsonBuilder& Append(std::string_view name, BsonValue v) {  ///< a missing value appends nothing
    if (v.missing()) return *this;
    Header(v.type(), name);
    out_->append(v.data(), v.size());
    return *this;
  }
  /// Copies an element with its name; a missing value appends nothing.
  BsonBuilder& Append(const BsonElement& e) {
    // As it stands in a document, like most: its bytes are one piece, and its name has no NUL. A
    // text that is a value never stands directly before another value.
    if (e.name.data() + e.name.size() + 1 == e.value.data() &&
        static_cast<BsonType>(static_cast<uint8_t>(e.name.data()[-1])) == e.value.type() &&
        !e.value.missing()) [[likely]] {
      out_->append(e.name.data() - 1, e.name.size() + 2 + e.value.size());
      return *this;
    }
    return Append(e.name, e.value);
  }
  BsonBuilder& Append(std::string_view name, double v) { return Raw(BsonType::kDouble, name, v); }
  BsonBuilder& Append(std::string_view name, int32_t v) { return Raw(BsonType::kInt32, name, v); }
  BsonBuilder& Append(std::string_view name, int64_t v) { return Raw(BsonType::kInt64, name, v); }
  BsonBuilder& Append(std::string_view name, long long v) { return Append(name, int64_t{v}); }
  BsonBuilder& Append(std::string_view name, uint32_t v) { return Append(name, int64_t{v}); }
  /// BSON has no unsigned type: from 2^63 on the number becomes negative.
  BsonBuilder& Append(std::string_view name, uint64_t v) {
    return Append(name, static_cast<int64_t>(v));
  }
  /// An overload of its own, so that a bool does not become a number.
  BsonBuilder& Append(std::string_view name, bool v) {
    return Raw(BsonType::kBool, name, static_cast<char>(v));
  }
  /// As a date: milliseconds since 1970, UTC.
  BsonBuilder& Append(std::string_view name, Instant v) {
    return Raw(BsonType::kDate, name, v.millis);
  }
  /// Text up to the first NUL. Without this overload a literal would become a bool.
  BsonBuilder& Append(std::string_view name, const char* v) {
    return Append(name, std::string_view(v));
  }
  /// The whole text; a NUL inside it is kept.
  BsonBuilder& Append(std::string_view name, const std::string& v) {
    return Append(name, std::string_view(v));
  }
  /// Copies the text, which must be UTF-8: nothing checks it. A NUL inside it is kept.
  BsonBuilder& Append(std::string_view name, std::string_view v) {
    return AppendStringLike(BsonType::kString, name, v);
  }
  BsonBuilder& Append(std::string_view name, BsonView v) { return Append(name, v.AsValue()); }
  /// Copies the document's bytes as a sub-document.
  BsonBuilder& Append(std::string_view name, const BsonDocument& v) {
    return Append(name, v.view());
  }
  /// `v` must be an array's bytes already, its names "0", "1", …: nothing renames them.
  BsonBuilder& AppendArray(std::string_view name, BsonView v) {
    return Append(name, v.AsValue(BsonType::kArray));
  }
  /// An explicit null, where a missing value would append nothing.
  BsonBuilder& AppendNull(std::string_view name) {
    Header(BsonType::kNull, name);
    return *this;
  }
  /// `v` as BSON has it: seconds since 1970 in the upper 32 bits, an increment in the lower.
  BsonBuilder& AppendTimestamp(std::string_view name, uint64_t v) {
    return Raw(BsonType::kTimestamp, name, v);
  }
  /// The bits as they are; a NaN or a coefficient that is not canonical is kept.
  BsonBuilder& AppendDecimal(std::string_view name, Decimal128Bits v) {
    return Raw(BsonType::kDecimal128, name, v);
  }
  /// REQUIRES: at least 12 bytes; the first 12 are copied.
  BsonBuilder& AppendObjectId(std::string_view name, std::string_view oid12) {
    Header(BsonType::kObjectId, name);
    out_->append(oid12.data(), 12);
    return *this;
  }
  /// `data` without the length that subtype 2 repeats: whoever writes that subtype puts it there.
  BsonBuilder& AppendBinary(std::string_view name, uint8_t subtype, std::string_view data) {
    Header(BsonType::kBinary, name);
    int32_t n = static_cast<int32_t>(data.size());
    out_->append(reinterpret_cast<const char*>(&n), 4).push_back(static_cast<char>(subtype));
    out_->append(data);
    return *this;
  }
  /// Two C strings: neither may have a NUL inside. The options' letters must be sorted, as BSON
  /// wants them.
  BsonBuilder& AppendRegex(std::string_view name, std::string_view pattern,
                           std::string_view options) {
    Header(BsonType::kRegex, name);
    AppendCString(*out_, pattern);
    AppendCString(*out_, options);
    return *this;
  }
  /// `type`: string, code or symbol, which are the same on the wire.
  BsonBuilder& AppendStringLike(BsonType type, std::string_view name, std::string_view v) {
    Header(type, name);
    int32_t n = static_cast<int32_t>(v.size() + 1);
    out_->append(reinterpret_cast<const char*>(&n), 4).append(v).push_back('\0');
    return *this;
  }
  /// Every element of `v`, names kept.
  BsonBuilder& AppendAll(BsonView v) {
    out_->append(v.data() + 4, v.size() - 5);
    return *this;
  }
  /// A sub-document in the same buffer: this builder must not be used until that one is done.
  BsonBuilder OpenDocument(std::string_view name) {
    Header(BsonType::kDocument, name);
    return BsonBuilder(*out_);
  }
  /// The same for an array.
  inline class BsonArrayBuilder OpenArray(std::string_view name);

  /// Bytes this document has so far.
  size_t size() const { return out_->size() - start_; }
  std::string& buffer() { return *out_; }

 private:
  friend class BsonArrayBuilder;
  void Header(BsonType type, std::string_view name) {
    out_->push_back(static_cast<char>(type));
    AppendCString(*out_, name);
  }
  template <class T>
  BsonBuilder& Raw(BsonType type, std::string_view name, T v) {
    Header(type, name);
    out_->append(reinterpret_cast<const char*>(&v), sizeof v);
    return *this;
  }
  static constexpr size_t kMaxLength = 0x7fff'ffff;
  std::string* out_;
  size_t start_;
  bool done_ = false;
};

/// Writes one BSON array; it makes the names "0", "1", … itself.
class BsonArrayBuilder {
 public:
  explicit BsonArrayBuilder(std::string& out) : b_(out) {}
  /// A document: what the batches of replies are made of.
  BsonArrayBuilder& Append(BsonView v) {
    Header(BsonType::kDocument);
    b_.out_->append(v.data(), v.size());
    return *this;
  }
  /// Anything that BsonBuilder::Append takes. REQUIRES: not missing, or the names would have a gap.
  template <class T>
  BsonArrayBuilder& Append(T&& v) {
    b_.Append(NextName(), std::forward<T>(v));
    return *this;
  }
  /// A null element: what stands for a missing value.
  BsonArrayBuilder& AppendNull() {
    b_.AppendNull(NextName());
    return *this;
  }
  /// A sub-document, as BsonBuilder::OpenDocument.
  BsonBuilder OpenDocument() {
    Header(BsonType::kDocument);
    return BsonBuilder(*b_.out_);
  }
  /// An array within this one, which must not be used until the inner one is done.
  BsonArrayBuilder OpenArray() {
    Header(BsonType::kArray);
    return BsonArrayBuilder(*b_.out_);
  }
  /// The builder beneath, for the typed appenders; pass NextName() as the name.
  BsonBuilder& raw() { return b_; }
  /// The next element's name, valid until the one after it.
  std::string_view NextName() {
    if (n_++ != 0) CountUp();
    return {name_, digits_};
  }
  int count() const { return n_; }
  size_t size() const { return b_.size(); }
  void Done() { b_.Done(); }

 private:
  /// The number in `name_` and one. Adding to the last digit is enough nine times out of ten.
  void CountUp() {
    if (name_[digits_ - 1] != '9') [[likely]]
      ++name_[digits_ - 1];
    else
      Carry();
  }
  void Carry();
  /// An element's type and name: digits, which need no search for a NUL.
  void Header(BsonType type) {
    b_.out_->push_back(static_cast<char>(type));
    const std::string_view name = NextName();
    b_.out_->append(name.data(), name.size() + 1);
  }
  BsonBuilder b_;
  int n_ = 0;
  uint32_t digits_ = 1;
  char name_[12] = "0";  ///< of the last element, or of the first to come; zeros behind it
};

/// Here, because it needs the whole BsonArrayBuilder.
inline BsonArrayBuilder BsonBuilder::OpenArray(std::string_view name) {
  Header(BsonType::kArray, name);
  return BsonArrayBuilder(*out_);
}

/// `BuildBson([&](BsonBuilder& b) { b.Append("ok", 1.0); })`
template <class F>
BsonDocument BuildBson(F&& fill) {
  std::string bytes;
  BsonBuilder b(bytes);
  fill(b);
  b.Done();
  return BsonDocument(std::move(bytes));
}

}  // namespace mayfly
