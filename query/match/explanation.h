#pragma once
#include <string_view>

#include "protocol/bson_builder.h"
#include "query/expression/parse_work.h"

namespace mayfly::match {

/// The room that an explanation has, for all of its documents together. One thread.
class ExplanationRoom {
 public:
  explicit ExplanationRoom(size_t bytes) : left_(bytes) {}
  ExplanationRoom(const ExplanationRoom&) = delete;
  /// Whether `bytes` more have room; else the explanation is cut, and nothing has any more.
  bool Take(size_t bytes) {
    if (bytes > left_) cut_ = true;
    if (cut_) return false;
    left_ -= bytes;
    return true;
  }
  /// The same for a part of the filter that is copied to be asked alone, and is not shown.
  bool TakeCopy(size_t bytes) {
    if (bytes > copies_left_) cut_ = true;
    if (cut_) return false;
    copies_left_ -= bytes;
    return true;
  }
  size_t left() const { return left_; }
  bool cut() const { return cut_; }
  void Cut() { cut_ = true; }
  /// In loops over a client's data: whether to go on. The operation may have to stop.
  bool GoOn() {
    if (!cut_ && !ParseWork::Step()) cut_ = true;
    return !cut_;
  }

 private:
  size_t left_;
  size_t copies_left_ = size_t{64} << 20;
  bool cut_ = false;
};

class ExplanationList;

/// A BsonBuilder that appends only what has room: however long the values of a document are, and
/// however many ways lead to them, no more is copied. Used like one.
class ExplanationBuilder {
 public:
  ExplanationBuilder(BsonBuilder builder, ExplanationRoom& room)
      : b_(std::move(builder)), room_(room) {}
  /// A missing value appends nothing.
  ExplanationBuilder& Append(std::string_view name, BsonValue v) {
    if (!v.missing() && Take(name, v.size())) b_.Append(name, v);
    return *this;
  }
  /// A text.
  ExplanationBuilder& Append(std::string_view name, std::string_view v) {
    if (Take(name, v.size() + 5)) b_.Append(name, v);
    return *this;
  }
  /// Without this overload a literal would become a bool, or be ambiguous.
  ExplanationBuilder& Append(std::string_view name, const char* v) {
    return Append(name, std::string_view(v));
  }
  /// A document.
  ExplanationBuilder& Append(std::string_view name, BsonView v) {
    return Append(name, v.AsValue());
  }
  /// A number.
  ExplanationBuilder& Append(std::string_view name, int32_t v) {
    if (Take(name, sizeof v)) b_.Append(name, v);
    return *this;
  }
  /// As BsonBuilder's: this one must not be used until the inner one is done.
  ExplanationBuilder OpenDocument(std::string_view name) {
    return {b_.OpenDocument(NameOf(name)), room_};
  }
  /// The same for an array.
  inline ExplanationList OpenArray(std::string_view name);
  ExplanationRoom& room() { return room_; }

 private:
  friend class ExplanationList;
  static constexpr size_t kHeader = 2;  ///< an element's type, and the end of its name
  static constexpr size_t kFrame = 5;   ///< a document's length and end
  bool Take(std::string_view name, size_t bytes) {
    return room_.Take(kHeader + name.size() + bytes);
  }
  /// A document that there is no room for is still opened, under no name: whoever fills it finds no
  /// room either, and the explanation is not shown.
  std::string_view NameOf(std::string_view name) {
    return Take(name, kFrame) ? name : std::string_view();
  }
  BsonBuilder b_;
  ExplanationRoom& room_;
};

/// The same for an array.
class ExplanationList {
 public:
  ExplanationList(BsonArrayBuilder builder, ExplanationRoom& room)
      : b_(std::move(builder)), room_(room) {}
  /// REQUIRES: not missing.
  void Append(BsonValue v) {
    if (Take(v.size())) b_.Append(v);
  }
  /// A text.
  void Append(std::string_view v) {
    if (Take(v.size() + 5)) b_.Append(v);
  }
  /// A number.
  void Append(int32_t v) {
    if (Take(sizeof v)) b_.Append(v);
  }
  /// A document in the array, which must not be used until that is done.
  ExplanationBuilder OpenDocument() {
    Take(ExplanationBuilder::kFrame);
    return {b_.OpenDocument(), room_};
  }
  ExplanationRoom& room() { return room_; }

 private:
  static constexpr size_t kName = 7;  ///< digits
  bool Take(size_t bytes) { return room_.Take(ExplanationBuilder::kHeader + kName + bytes); }
  BsonArrayBuilder b_;
  ExplanationRoom& room_;
};

/// Here, because it needs the whole ExplanationList.
inline ExplanationList ExplanationBuilder::OpenArray(std::string_view name) {
  return {b_.OpenArray(NameOf(name)), room_};
}

/// The `schemaRulesNotSatisfied` of `value` under a JSON schema, one entry per rule.
void ExplainSchema(BsonView schema, BsonValue value, ExplanationList& rules);

}  // namespace mayfly::match
