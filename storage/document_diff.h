#pragma once
#include <string>

#include "protocol/bson_view.h"

namespace mayfly {

/// Appends what makes `after` of `before`, as the oplog's `$v: 2` entries describe it (the `diff` document):
///
///   diff := {d: {name: false, …}, u: {name: value, …}, i: {name: value, …}, s<name>: diff | array_diff, …}
///   array_diff := {a: true, l: new length, u<index>: value, s<index>: diff | array_diff, …}
///
/// d: fields to remove, u: values to replace in place, i: fields to add at the end, in order; each part only if there is something in it.
/// Also where the diff is larger than `after`: change streams are to show an update as one, however small the document.
void AppendDocumentDiff(BsonView before, BsonView after, std::string& out);

}  // namespace mayfly
