#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// Reads the fields of a command (or of a document inside one) by name and type, keeping the first
/// error: read everything, then `MAYFLY_TRY(in.Finish())` once. After an error the getters answer
/// defaults.
///
///     ArgReader in(req);
///     std::string_view coll = in.Collection();
///     BsonView filter = in.DocumentOr("filter");
///     int64_t limit = in.NonNegativeOr("limit", 0);
///     MAYFLY_TRY(in.Finish());
///
/// Errors: TypeMismatch 14 "BSON field 'find.limit' is the wrong type 'string', expected types
/// '[long, int, decimal, double]'", MissingField 40414, unknown field 40415, a field that is there
/// twice 40413 (also one that nobody reads, if its name has no more than kShownName bytes),
/// BadValue 2 for a number out of range, InvalidNamespace 73. Fields that every command takes are
/// known. null and undefined count as absent for optional fields. Views are valid as long as the
/// request. One thread.
class ArgReader {
 public:
  explicit ArgReader(const CommandRequest& req);
  /// A document inside a command: `where` is its name in messages ("update.updates",
  /// "createIndexes.indexes").
  ArgReader(std::string_view where, BsonView doc);
  ArgReader(const ArgReader&) = delete;

  /// The command's first field as a collection name: a non-empty string without NUL. Errors:
  /// InvalidNamespace 73.
  std::string_view Collection();

  /// The plain ones are for required fields and answer an empty value after an error. The others
  /// accept an absent field: Or answers `fallback` then, Opt nothing.
  std::string_view String(std::string_view name);
  std::string_view StringOr(std::string_view name, std::string_view fallback = {}) {
    return OptString(name).value_or(fallback);
  }
  /// Nothing when absent or of another type.
  std::optional<std::string_view> OptString(std::string_view name) {
    if (!MayHave(name)) return std::nullopt;
    return FindString(name);
  }

  /// Likewise. An array is no document here; a view of an array has its elements under "0", "1" and
  /// so on.
  BsonView Document(std::string_view name);
  BsonView DocumentOr(std::string_view name, BsonView fallback = {}) {
    return OptDocument(name).value_or(fallback);
  }
  /// Nothing when absent or of another type.
  std::optional<BsonView> OptDocument(std::string_view name) {
    if (!MayHave(name)) return std::nullopt;
    return FindDocument(name);
  }
  /// Required: MissingField 40414 when absent.
  BsonView Array(std::string_view name);
  /// Nothing when absent or of another type.
  std::optional<BsonView> OptArray(std::string_view name) {
    if (!MayHave(name)) return std::nullopt;
    return FindArray(name);
  }
  /// An array or document sequence of documents, as CommandRequest::Documents.
  DocumentList Documents(std::string_view name);

  /// Any number; fractions are dropped, what exceeds int64 is clamped.
  int64_t Int64(std::string_view name);
  int64_t Int64Or(std::string_view name, int64_t fallback) {
    return OptInt64(name).value_or(fallback);
  }
  /// Nothing when absent or no number.
  std::optional<int64_t> OptInt64(std::string_view name) {
    if (!MayHave(name)) return std::nullopt;
    return FindInt64(name);
  }
  /// Location51024 when below 0.
  int64_t NonNegativeOr(std::string_view name, int64_t fallback) {
    return MayHave(name) ? FindNonNegative(name, fallback) : fallback;
  }
  std::optional<int64_t> OptInRange(std::string_view name, int64_t low,
                                    int64_t high);  ///< BadValue when outside
  std::optional<double> OptDouble(std::string_view name);

  /// true or false only.
  bool BoolOr(std::string_view name, bool fallback) { return OptBool(name).value_or(fallback); }
  /// true, false or a number (old clients send 1).
  bool LooseBoolOr(std::string_view name, bool fallback) {
    return MayHave(name) ? FindLooseBool(name, fallback) : fallback;
  }
  /// true or false; nothing when absent or of another type.
  std::optional<bool> OptBool(std::string_view name) {
    if (!MayHave(name)) return std::nullopt;
    return FindBool(name);
  }

  /// Any type; missing when absent. null is a value here.
  BsonValue Any(std::string_view name) { return MayHave(name) ? Take(name) : BsonValue(); }
  /// Accepted whatever it holds. Only for what has nothing to do here, with a comment `unused: why`
  /// (scripts/lib/check_arguments.py).
  void Ignore(std::string_view name) { Any(name); }
  /// Absent, or the error that this server does not have it: NotImplemented 238.
  void NotSupported(std::string_view name);
  /// `collation`, which may ask for the order that this server has: {} or {locale: "simple"}.
  /// Errors: TypeMismatch 14, BSON field missing 40414, NotImplemented 238 for any other locale.
  void SimpleCollation() {
    if (MayHave("collation")) CheckCollation();
  }

  /// Whether the field is there, also as null or as a document sequence. Does not count as reading
  /// it: Finish still finds it unknown.
  bool Has(std::string_view name) const;

  /// Keeps `error` if it is the first.
  void Fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  bool ok() const { return !error_; }
  /// The first error, else whether every field was known.
  Result<void> Finish();
  /// The first error only: for readers that take any field.
  Result<void> FinishLoose();
  /// Fields that nobody has read.
  std::vector<std::string> Unread() const;

  const std::string& where() const { return where_; }
  /// TypeMismatch 14 in MongoDB's words. `expected`: one type's name, or several as "[int, long]".
  Error WrongType(std::string_view name, BsonType got, std::string_view expected) const;

 private:
  bool MayHave(std::string_view name) const { return (names_ & NameBit(name)) != 0; }
  BsonValue Take(std::string_view name);         ///< marks it used; missing if absent
  BsonValue TakePresent(std::string_view name);  ///< the same; null counts as absent
  // The common part of readers of the same types, if the name may exist.
  std::optional<std::string_view> FindString(std::string_view name);
  std::optional<BsonView> FindDocument(std::string_view name);
  std::optional<BsonView> FindArray(std::string_view name);
  std::optional<int64_t> FindInt64(std::string_view name);
  int64_t FindNonNegative(std::string_view name, int64_t fallback);
  bool FindLooseBool(std::string_view name, bool fallback);
  std::optional<bool> FindBool(std::string_view name);
  void CheckCollation();
  BsonValue Require(std::string_view name);
  bool Expect(std::string_view name, BsonValue v, BsonType type);

  const CommandRequest* request_ = nullptr;
  CommandFields own_;
  const CommandFields* fields_;
  uint64_t names_ = 0;  ///< of the fields, by NameBit
  std::string where_;
  std::optional<Error> error_;
};

/// For commands that take no arguments of their own. Errors: as ArgReader::Finish.
Result<void> NoArguments(const CommandRequest& req);

/// True for a field that every command takes.
bool IsGenericField(std::string_view name);

/// Fields that a command, or a document of options inside one, may have at its top level: they are
/// looked at one by one on the thread that other clients wait for.
inline constexpr size_t kMaxCommandFields = 1000;
/// Bytes of each document that every command takes (lsid, readConcern, $clusterTime …).
inline constexpr size_t kMaxGenericBytes = 16 * 1024;
/// Bytes of a client's name that an error shows.
inline constexpr size_t kShownName = 128;
/// So much is read of a database's name, which may be as long as a message: more than any may have,
/// so that it is refused, and not more than errors, logs and counters can take.
inline constexpr size_t kMostOfDatabaseName = kShownName + 1;
/// `name`, cut to kShownName bytes.
std::string ShownName(std::string_view name);

/// Splits a body into fields and reads the generic ones: whoever decides about a command or runs it
/// reads what this has made. `db`: the database that the command is about, and a `$db` in the body
/// must be the same; empty: the body says it. Errors: a field that is there twice 40413,
/// TypeMismatch 14, BadValue 2, FailedToParse 9, InvalidNamespace 73 for another `$db`.
Result<void> ParseCommandFields(BsonView body, CommandRequest* request, std::string_view db = {});

/// "a, b or c" helpers of messages: the closest of `candidates` to `word` by edit distance; empty
/// if none is near.
std::string_view NearestName(std::string_view word,
                             const std::vector<std::string_view>& candidates);

}  // namespace mayfly
