#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/secret_names.h"
#include "protocol/wire_message.h"
#include "storage/catalog/catalog.h"

namespace mayfly {

/// Whether documents of this collection have credentials: those of users, and the log of a set.
bool HoldsCredentials(std::string_view db, std::string_view collection);

/// UUIDs of the collections of users, by which commands can name them as well.
std::vector<Uuid> CredentialUuids(Catalog& catalog);

/// What is known of a command besides its body.
struct CommandLook {
  const std::vector<OpMsg::Sequence>* sequences = nullptr;
  std::span<const Uuid> uuids = {};  ///< CredentialUuids
  /// It reads or writes a collection of users, whatever it names: a cursor's, or by way of a view.
  bool of_users = false;
  /// The body has all of its fields; else what is left out may name the collections of users.
  bool whole = true;
};

/// What may be shown of one command: in logs, currentOp, the profiler, the audit log and messages.
/// Every place that shows a command or a part of one asks this class. Hidden are fields with secret
/// names (IsSecretName), messages of logins, also of those within `hello`, `explain` and applyOps;
/// fields that commands for users and rotateCertificates do not take, since one may be the password
/// under a wrong name; and every document, array, text and number with an unknown purpose of a
/// command that names the collections of users (admin.system.users, admin.tempusers) anywhere, or
/// may do so where it cannot be looked at. Views into the command.
class ShownCommand {
 public:
  /// Looks at kMaxLook letters of names and fields of each field, of twice as many in all; long
  /// texts cost nothing.
  explicit ShownCommand(BsonView body, const CommandLook& look = {});
  /// Whether it names the collections of users: then its error's message is not shown either.
  bool of_users() const { return of_users_; }
  /// Whether it is a login or for users, by the rules of which it is shown.
  bool takes_secrets() const;
  /// A top-level field as it may be shown; as long as the field.
  void Append(const BsonElement& field, BsonBuilder& out) const;
  /// One of the documents of its sequence `name`.
  void AppendDocument(std::string_view name, BsonView document, BsonArrayBuilder& out) const;
  /// The message of the error that the command ended with, or kRedacted: one that quotes a field
  /// with a secret name, and any of a command that names such a field, since the message of an
  /// expression quotes values without names. Not of logins and commands for users, which quote
  /// none. `body`: of the command. A view into `error`.
  std::string_view Message(BsonView body, const Error& error) const;
  static constexpr size_t kMaxLook = 1024 * 1024;

 private:
  std::string_view command_;
  bool of_users_ = false;
};

/// A document of a command without its secrets, when only a part of the command is at hand.
BsonDocument RedactedCommand(BsonView command, const CommandLook& look = {});
/// The same for whoever has looked at it already: `shown` is of this command.
BsonDocument RedactedCommand(BsonView command, const ShownCommand& shown);
/// What may be shown of the definition of a collection or an index (options, a view's pipeline, a
/// validator, the filter of an index): of one that is made on the collections of users only names.
/// `view_on`: of a view; else empty.
BsonDocument ShownDefinition(std::string_view db, std::string_view collection,
                             std::string_view view_on, BsonView definition);
/// Whether all of a definition with this field alone is shown (of one on the collections of users:
/// if it is no name). Makes no copy, however long it is.
bool ShowsWhole(std::string_view db, std::string_view collection, const BsonElement& field);
/// Whether a field, at whatever depth of a command, is not shown at all where the command is shown
/// as text: what has a secret name, logins, and commands for users, which have rules of their own.
bool IsHiddenAsText(const BsonElement& field);
/// What may be shown of the customData of a user, as everywhere where the command is shown.
BsonDocument ShownCustomData(BsonView data);
/// Whether the value of a field outside of a login is hidden.
bool IsHidden(const BsonElement& field);

/// The same as one line of text for a message, of at most about kShortCommand bytes: larger values
/// are named and omitted, so a command of 48 MB costs no more.
inline constexpr size_t kShortCommand = 1000;
std::string ShortCommandText(BsonView command);

/// Whether a namespace is that of a collection of users.
bool NamesUsersCollection(std::string_view ns);

}  // namespace mayfly
