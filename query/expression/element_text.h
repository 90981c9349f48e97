#pragma once
#include <string>
#include <string_view>

#include "protocol/bson_view.h"

namespace mayfly::update {

/// Values the way MongoDB's update errors show them: `{ a: 1, b: "x" }`, `[ 1, 2 ]`,
/// `ObjectId('…')`. Long strings and deep or long containers are cut short with "...". For messages
/// only. Threads: any.
std::string ValueText(BsonValue v);
/// `a: 1`
std::string ElementText(std::string_view name, BsonValue v);
/// `{_id: 1}`, or `{no id}`: how a message names a document.
std::string IdText(BsonView doc);

}  // namespace mayfly::update
