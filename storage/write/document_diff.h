#pragma once
#include <string>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

// clang-format off
/// Appends what makes `after` of `before`, as the oplog's `$v: 2` entries describe it (the `diff` document):
///
///   diff       := {d: {name: false, …}, u: {name: value, …}, i: {name: value, …}, s<name>: diff | array_diff, …}
///   array_diff := {a: true, l: new length, u<index>: value, s<index>: diff | array_diff, …}
///
/// d: fields to remove, u: values to replace in place, i: fields to add at the end, in order; each part only if there is
/// something in it. Also where the diff is larger than `after`: change streams are to show an update as one, however small the
/// document.
// clang-format on
void AppendDocumentDiff(BsonView before, BsonView after, std::string& out);

/// Appends `before` as changed by a diff. A field of `u` that is not there is added at the end, one
/// of `i` that is there moves to the end; an array grows with nulls up to the index of a `u`. A
/// value to which an `s` cannot be applied stays as it is: `before` may be newer than the diff (an
/// oplog replayed on its dump), and then a later entry has the value. Errors: FailedToParse 9 for
/// an invalid diff (or one with unknown part names); BSONObjectTooLarge 10334 as soon as the result
/// is larger than a document may be.
Result<void> ApplyDocumentDiff(BsonView before, BsonView diff, std::string& out);

}  // namespace mayfly
