#!/usr/bin/env python3
"""scripts/lib/check_hashes.py finds tables of strings that use std::hash, and no other table."""

from cases import Cases

FAULTS = {
    "a map of views": "std::unordered_map<std::string_view, size_t> by_name_;",
    "a map of strings": "std::unordered_map<std::string, std::map<int, std::vector<int>>> by_name_;",
    "a map over two lines": "std::unordered_map<\n    std::string, int> by_name_;",
    "a set": "std::unordered_set<std::string> seen;",
    "a set of views": "std::unordered_set<std::string_view> seen;",
    "constant keys": "std::unordered_map<const std::string, int> seen;",
    "a multimap": "std::unordered_multimap<std::string, int> all;",
    "a flat set": "boost::unordered_flat_set<std::string_view> seen;",
    "std::hash by name": "std::unordered_set<std::string, std::hash<std::string>> seen;",
    "a reason that is none": "std::unordered_set<std::string> seen;  // by name",
}
CLEAN = {
    "the tables for it": "ClientStringMap<int> by_name_;\nClientViewSet seen;",
    "a hash of its own": "std::unordered_map<std::string, int, Hash, std::equal_to<>> by_name_;",
    "a set with a hash of its own": "boost::unordered_flat_set<std::string_view, SeededStringHash> cut;",
    "numbers": "std::unordered_map<uint32_t, std::string> by_id_;",
    "a reason": "std::unordered_set<std::string> seen;  // hashed: by names of operators",
    "a reason above": "// hashed: by names of operators\nauto* map = new std::unordered_map<std::string, int>;",
    "a comment": "// as std::unordered_set<std::string> has it",
}

cases = Cases("check_hashes.py")
cases.all(FAULTS, CLEAN, lambda text: {"table.h": "namespace mayfly {\n" + text + "\n}\n"})
cases.end()
