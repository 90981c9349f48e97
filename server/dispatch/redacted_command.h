#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/wire_message.h"

namespace mayfly {

/// The replacement for a secret.
inline constexpr std::string_view kRedacted = "xxx";

/// Whether a field of this name holds a password or a credential, in whatever command and however
/// deep; "a.b" is a path, of which any part may. Numbers and booleans under such a name are shown:
/// the order of an index, a projection.
bool IsSecretName(std::string_view field);

/// Whether documents of this collection have credentials: those of users, and the log of a set.
bool HoldsCredentials(std::string_view db, std::string_view collection);

/// What may be shown of one command: in logs, currentOp, the profiler, the audit log and messages.
/// Hidden are fields with secret names (IsSecretName), messages of logins, also of those within
/// `hello`, `explain` and applyOps; fields that createUser, updateUser and rotateCertificates do
/// not take, since one may be the password under a wrong name; and every document, array and text
/// of a command that names the collections of users (admin.system.users, admin.tempusers)
/// anywhere. Views into the command.
class ShownCommand {
 public:
  /// Looks through the first kMaxLook bytes for the collections of users, and at short fields
  /// behind them.
  explicit ShownCommand(BsonView body, const std::vector<OpMsg::Sequence>* sequences = nullptr);
  /// Whether it names the collections of users.
  bool of_users() const { return of_users_; }
  /// A top-level field as it may be shown; as long as the field.
  void Append(const BsonElement& field, BsonBuilder& out) const;
  /// One of the documents of its sequences.
  void AppendDocument(BsonView document, BsonArrayBuilder& out) const;
  static constexpr size_t kMaxLook = 256 * 1024;

 private:
  std::string_view command_;
  bool of_users_ = false;
};

/// A document of a command without its secrets, when only a part of the command is at hand.
BsonDocument RedactedCommand(BsonView command);
/// Whether the value of a field outside of a login is hidden.
bool IsHidden(const BsonElement& field);

/// The same as one line of text for a message, of at most about kShortCommand bytes: larger values
/// are named and omitted, so a command of 48 MB costs no more.
inline constexpr size_t kShortCommand = 1000;
std::string ShortCommandText(BsonView command);

}  // namespace mayfly
