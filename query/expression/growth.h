#pragma once
#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/large_memory.h"
#include "query/expression/operator.h"
#include "query/expression/pace.h"

namespace mayfly {

// All values whose size depends on an expression's input are built here: memory is charged before
// it is allocated, and long work checks regularly whether the operation must stop.
// scripts/lib/check_growth.py fails where an operator builds values by other means.

/// Charges values that are kept while others are evaluated: the arguments of a call, variables.
/// Large values are charged by themselves; this covers many small ones.
class Kept {
 public:
  explicit Kept(EvalContext& ctx) : charge_(ctx) {}
  /// Counts `v`; the caller keeps the value itself. Errors: ExceededMemoryLimit 146.
  Result<void> Add(const Value& v) {
    const size_t n = v.view().size();
    bytes_ += n;
    if (n < large_memory::kLarge && v.owns()) small_ += n;
    if (bytes_ < large_memory::kLarge) [[likely]]
      return Ok();
    return charge_.Set(small_);
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0, small_ = 0;
  Charge charge_;
};

/// Bytes that grow.
class GrowingBytes {
 public:
  explicit GrowingBytes(EvalContext& ctx) : pace_(ctx), charge_(ctx) {}
  /// To be called before `n` more bytes are appended. Errors: 13548 beyond kMaxValueBytes, 146, and
  /// those of an interrupt.
  Result<void> Room(size_t n) {
    if (n > bytes_.capacity() - bytes_.size()) [[unlikely]] {
      MAYFLY_TRY(Grow(n));
    }
    return pace_.Step(n);
  }
  /// Makes room itself. Errors: those of Room().
  Result<void> Append(std::string_view s) {
    MAYFLY_TRY(Room(s.size()));
    bytes_ += s;
    return Ok();
  }
  std::string& bytes() { return bytes_; }
  Pace& pace() { return pace_; }
  /// The bytes, which count by themselves from now on.
  std::string Take() {
    charge_.Release();
    return std::move(bytes_);
  }

 private:
  Result<void> Grow(size_t n);
  std::string bytes_;
  Pace pace_;
  Charge charge_;
};

/// The most bytes of a name, a type and end marks, beside a value's own bytes.
inline constexpr size_t kElementExtra = 32;

/// An array that grows.
class GrowingArray {
 public:
  explicit GrowingArray(EvalContext& ctx) : growth_(ctx), out_(growth_.bytes()) {}
  /// Copies `v`. REQUIRES: not missing. Errors, as of all here: those of GrowingBytes::Room.
  Result<void> Append(BsonValue v) {
    MAYFLY_TRY(growth_.Room(v.size() + kElementExtra));
    out_.Append(v);
    return Ok();
  }
  /// A missing value becomes null, so that the positions of others stay.
  Result<void> AppendOrNull(BsonValue v) {
    MAYFLY_TRY(growth_.Room(v.size() + kElementExtra));
    mayfly::AppendOrNull(out_, v);
    return Ok();
  }
  /// The text as an element of type string.
  Result<void> Append(std::string_view s) {
    MAYFLY_TRY(growth_.Room(s.size() + kElementExtra));
    out_.Append(s);
    return Ok();
  }
  /// Before anything is written by means of raw().
  Result<void> Room(size_t n) { return growth_.Room(n + kElementExtra); }
  BsonArrayBuilder& raw() { return out_; }
  size_t size() { return growth_.bytes().size(); }
  Value Finish() {
    out_.Done();
    return Value::Array(growth_.Take());
  }

 private:
  GrowingBytes growth_;
  BsonArrayBuilder out_;
};

/// A document that grows.
class GrowingDocument {
 public:
  explicit GrowingDocument(EvalContext& ctx) : growth_(ctx), out_(growth_.bytes()) {}
  /// Copies `v`; a missing value appends nothing. Errors: those of GrowingBytes::Room.
  Result<void> Append(std::string_view name, BsonValue v) {
    MAYFLY_TRY(growth_.Room(name.size() + v.size() + kElementExtra));
    out_.Append(name, v);
    return Ok();
  }
  Result<void> Room(size_t n) { return growth_.Room(n + kElementExtra); }
  BsonBuilder& raw() { return out_; }
  /// Ends the document and releases its charge: the value's holder counts it. Once only.
  Value Finish() {
    out_.Done();
    return Value::Document(growth_.Take());
  }

 private:
  GrowingBytes growth_;
  BsonBuilder out_;
};

/// A string that grows.
class GrowingString {
 public:
  explicit GrowingString(EvalContext& ctx) : growth_(ctx) { growth_.bytes().assign(4, '\0'); }
  Result<void> Append(std::string_view s) { return growth_.Append(s); }
  Result<void> Append(char c) { return growth_.Append({&c, 1}); }
  size_t size() { return growth_.bytes().size() - 4; }
  /// As GrowingDocument::Finish.
  Value Finish();

 private:
  GrowingBytes growth_;
};

/// The elements of an array in a vector, which is charged.
class ElementList {
 public:
  /// The elements point into `array`, whose bytes must outlive the list. REQUIRES: an array.
  /// Errors: ExceededMemoryLimit 146, those of an interrupt.
  static Result<ElementList> Of(EvalContext& ctx, BsonValue array) {
    ElementList list(ctx);
    MAYFLY_TRY(list.Add(array));
    return list;
  }
  explicit ElementList(EvalContext& ctx) : pace_(ctx), charge_(std::make_unique<Charge>(ctx)) {}
  /// Puts the elements of `array` behind those that are there.
  Result<void> Add(BsonValue array);
  std::vector<BsonValue>& values() { return values_; }
  const std::vector<BsonValue>& values() const { return values_; }

 private:
  std::vector<BsonValue> values_;
  Pace pace_;
  std::unique_ptr<Charge> charge_;
};

/// An array of `values`.
Result<Value> ArrayOf(EvalContext& ctx, std::span<const BsonValue> values);

/// The same for values, by `less`.
template <class Less>
Result<void> SortValues(EvalContext& ctx, std::vector<BsonValue>& values, Less less) {
  return SortItems(ctx, values, less, [](BsonValue v) { return size_t{v.size()}; });
}

/// Where `token` begins in `s`, from `from` on; npos. Takes time in proportion to the two lengths.
Result<size_t> FindText(Pace& pace, std::string_view s, std::string_view token, size_t from);

}  // namespace mayfly
