#pragma once
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "link/cluster.h"
#include "link/operations.h"
#include "protocol/bson_builder.h"

namespace mayfly {

/// The error of a failed statement, with its position in its command.
struct LinkFailure {
  size_t index = 0;
  Error error;
};

/// A document as an update's value (`name`: "u" or "updateMods"). With a top-level field like `$a`,
/// a plain replacement would be taken for operators, or refused.
void AppendReplacement(BsonView document, std::string_view name, BsonBuilder& out);

/// Writes a link's operations to its target in their order, many in a command. Threads: one.
class TargetWriter {
 public:
  /// `runner`: the process that holds the link's lease. Once another one holds it, nothing more is
  /// written: this one's data may be outdated by then.
  TargetWriter(Cluster& target, std::string link_name, std::string runner)
      : target_(target), link_name_(std::move(link_name)), runner_(std::move(runner)) {}

  /// Applies all of them, then sets the fields of `state` in the link's own document, in the same
  /// command where the target can; without an error both are there. A document that the target
  /// refuses (a validator, a unique index) is counted and named in kLinkDatabase.refused, and the
  /// others are written. Errors: LockBusy 46 when another process has the lease; what concerns more
  /// than a document. Then some may have been applied, and all can be applied again.
  ClusterResult<void> Apply(const std::vector<LinkOperation>& operations, BsonView state,
                            LinkCounters* counters);
  /// What the target can, and how it is written there. To be set before the first operation.
  struct Manner {
    /// With links in both directions: the dates of documents are in this field. Then all is written
    /// in transactions, which the other link tells from writes of clients (see Echoes).
    std::string version_field;
    bool mayfly = false;      ///< it knows Mayfly's own options
    bool tombstones = false;  ///< it remembers deletes, and shows them
  };
  Manner manner;
  /// Of a command that writes documents: all is taken as the source has it.
  void AppendAsItIs(BsonBuilder& out) const;
  /// Whether the target, as it is now, has neither a version as new nor a later delete of it.
  ClusterResult<bool> IsWanted(const LinkOperation& op);
  /// A change of a collection. It is no error if it already exists, or is already gone; one that
  /// the target refuses is counted and recorded like a document.
  /// `replaces`: indexes that createIndexes makes take the place of others of their names, as when
  /// the source turned one into a unique one.
  ClusterResult<void> Run(std::string_view db, BsonView command, LinkCounters* counters,
                          bool replaces = false);
  /// LockBusy unless this process has the lease.
  ClusterResult<void> CheckLease();
  /// Counts what the target cannot take, and names it as Name does.
  ClusterResult<void> Refused(std::string_view ns, BsonValue id, const Error& why,
                              LinkCounters* counters);
  /// Names a document (or a collection: `ns` is its database) among those that the target refused.
  ClusterResult<void> Name(std::string_view ns, BsonValue id, const Error& why);
  /// Sets fields of the link's own document. Errors: LockBusy 46 when another process has it.
  ClusterResult<void> SaveState(BsonView state);
  /// Notes that the link carries this collection or view ("db.name"), in kLinkDatabase.carried:
  /// after lost history, only this shows which ones the source no longer has. Once for each.
  ClusterResult<void> Carry(std::string_view ns);
  /// Those noted, by this process or an earlier one.
  ClusterResult<std::vector<std::string>> Carried();
  /// Notes that the copy of that id has the whole collection, and which ones it has.
  ClusterResult<void> NoteCopied(std::string_view ns, std::string_view copy);
  ClusterResult<std::vector<std::string>> Copied(std::string_view copy);

 private:
  ClusterResult<void> RunNow(std::string_view db, BsonView command, LinkCounters* counters,
                             bool replaces);
  /// A statement on the link's own documents: how many it found. Errors: also those of the
  /// statement.
  ClusterResult<int64_t> WriteOwn(BsonView command);
  /// For the other link: changes of these collections until UnmarkDefinition are this one's.
  ClusterResult<void> MarkDefinition(std::string_view db, BsonView command);
  ClusterResult<void> UnmarkDefinition();
  ClusterResult<void> WriteLease(BsonView update);
  ClusterResult<void> NoteInCarried(std::string_view ns, std::string_view field,
                                    std::string_view value);
  /// The names of the rows of kLinkDatabase.carried that match `field`.
  ClusterResult<std::vector<std::string>> ReadCarried(std::string_view field, BsonView wanted);
  ClusterResult<void> ForgetCarried(std::string_view db, BsonView command);
  /// Drops those with the names of the indexes that a createIndexes makes.
  ClusterResult<void> DropNamesakes(std::string_view db, BsonView create_indexes);
  /// A command of `n` operations.
  struct Bulk {
    BsonDocument command;
    size_t n = 0;
    bool with_state = false;  ///< it saves the state, too
  };
  /// Operations by their place in a list.
  using Places = std::set<size_t>;
  /// `together`: for a transaction, in which many deletes can be one statement. `most`: operations
  /// of it at most, of which those in `left_out` are none of the command.
  Bulk MakeBulk(const std::vector<LinkOperation>& operations, size_t from, BsonView state,
                bool together, size_t most, const Places& left_out) const;
  /// A delete of the other side's is none of this side's, with which its documents are compared.
  bool LeavesNoTombstone() const { return manner.tombstones; }
  void AppendOperation(const LinkOperation& op, int32_t ns, BsonBuilder& out) const;
  /// As one transaction, at most so many: how many are settled; nullopt: not in this way, and
  /// nothing was written.
  ClusterResult<std::optional<size_t>> ApplyTogether(const std::vector<LinkOperation>& operations,
                                                     size_t from, size_t most, BsonView state,
                                                     LinkCounters* counters, bool* saved);
  /// Those of `n` Puts from `from` on that the target has as new, or has deleted later.
  ClusterResult<Places> NotWanted(const std::vector<LinkOperation>& operations, size_t from,
                                  size_t n);
  /// What tombstones say of operations: the version, or a later one, was removed; or an earlier
  /// one was deleted.
  struct Removals {
    Places removed, earlier;
  };
  /// Adds to `*out` what tombstones since `floor` (ms since 1970) say of the missing ones.
  ClusterResult<void> FindRemovals(const std::vector<LinkOperation>& operations,
                                   const Places& missing, int64_t floor, Removals* out);
  /// Removes from `*missing` what the target has, and adds to `*as_new` what it has as new.
  ClusterResult<void> FindThere(const std::vector<LinkOperation>& operations, Places* missing,
                                Places* as_new);
  /// Looks at old tombstones before a transaction begins: there may be so many that none lives
  /// long enough. In it, only those since then are looked at.
  ClusterResult<void> LookBack(const std::vector<LinkOperation>& operations, size_t from, size_t n);
  /// `saved`: set when `state` is there, too.
  ClusterResult<size_t> ApplyBulk(const std::vector<LinkOperation>& operations, size_t from,
                                  BsonView state, LinkCounters* counters, bool* saved);
  ClusterResult<size_t> ApplyRun(const std::vector<LinkOperation>& operations, size_t from,
                                 LinkCounters* counters);
  /// The result of a command of `n` operations from `from` on: how many are settled.
  ClusterResult<size_t> Settle(const std::vector<LinkOperation>& operations, size_t from, size_t n,
                               const LinkFailure* failed, LinkCounters* counters);
  void Count(const LinkOperation& op, LinkCounters* counters) const;

  Cluster& target_;
  const std::string link_name_, runner_;
  std::set<std::string, std::less<>> carried_;  ///< noted by this process
  /// Collections that no transaction of the target takes, such as capped ones.
  std::set<std::string, std::less<>> outside_;
  /// LookBack's result for the operations from `from` up to `to`.
  struct {
    size_t from = 0, to = 0;
    int64_t recent = INT64_MIN;  ///< tombstones before it are in `found`
    Removals found;
  } back_;
  int alone_ = 0;            ///< so many more times not in transactions
  int64_t definitions_ = 0;  ///< changes of definitions that were marked
  bool marked_ = true;       ///< a definition may be marked, perhaps by an earlier process
  bool together_ = true;     ///< the target has transactions
  bool bulk_ = true;         ///< the target has the command bulkWrite
  bool inserts_ = true;      ///< a copy inserts its documents, until one exists already
};

}  // namespace mayfly
