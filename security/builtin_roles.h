#pragma once
#include <string_view>
#include <vector>

#include "security/names.h"
#include "security/privilege.h"

namespace mayfly {

/// Whether MongoDB (or Mayfly, for `expiryAdmin`) defines this role in its database: read,
/// readWrite, dbAdmin, dbOwner and userAdmin in each, all others in `admin`.
bool IsBuiltinRole(const RoleName& name);
/// What it grants, as MongoDB's manual lists it, with those it is made of; one privilege a
/// resource. Empty when there is no such role.
std::vector<Privilege> BuiltinPrivileges(const RoleName& name);
/// Every built-in role of a database, by name.
std::vector<RoleName> BuiltinRoles(std::string_view db);

}  // namespace mayfly
