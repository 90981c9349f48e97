#!/usr/bin/env python3
"""scripts/lib/check_unity.py finds what keeps sources from being compiled as one, or changes what they say, and nothing
in what may stand in several."""

from cases import Cases


def unnamed(text, inside="mayfly"):
    return f"namespace {inside} {{\nnamespace {{\n{text}\n}}  // namespace\n}}\n"


# What: the files by their names, and what of them is to be named.
FAULTS = {
    "a constant": ({"query/a/x.cc": unnamed("constexpr int kOps[] = {1};"),
                    "query/b/y.cc": unnamed("constexpr int kOps[] = {2};")}, "kOps"),
    "functions that would be overloads of each other": (
        {"ttl/x.cc": unnamed("Error Bad(std::string_view s) { return {}; }"),
         "ttl/y.cc": unnamed("Error Bad(const char* s) { return {}; }")}, "Bad"),
    "a type and a function": ({"ttl/x.cc": unnamed("class Kept {};"), "ttl/y.cc": unnamed("int Kept() { return 1; }")},
                              "Kept"),
    "an alias": ({"ttl/x.cc": unnamed("using Kind = int;"), "ttl/y.cc": unnamed("using Kind = long;")}, "Kind"),
    "an enumerator that stands for itself": ({"ttl/x.cc": unnamed("enum : int { kList = 1 };"),
                                              "ttl/y.cc": unnamed("enum : int { kList = 2 };")}, "kList"),
    "static functions": ({"ttl/x.cc": "static int One() { return 1; }\n",
                          "ttl/y.cc": unnamed("int One() { return 2; }")}, "One"),
    "one of a header of this library": ({"query/x.h": "namespace mayfly {\nint Made(int n);\n}\n",
                                         "query/y.cc": unnamed("int Made(long n) { return 1; }")}, "Made"),
    "one of a header of a lower library": ({"storage/x.h": "namespace mayfly {\nclass Pace {};\n}\n",
                                            "query/y.cc": unnamed("struct Pace {};")}, "Pace"),
    "two tests": ({"tests/unit/ttl/x_test.cc": "namespace {\nint Doc() { return 1; }\n}\n",
                   "tests/unit/ttl/y_test.cc": "namespace {\nint Doc() { return 2; }\n}\n"}, "Doc"),
    "a directive": ({"ttl/x.cc": "namespace mayfly {\nusing namespace key;\n}\n"}, "using namespace key"),
    "a macro": ({"ttl/x.cc": "#include <x>\n#define ROW(x) x\n"}, "ROW"),
}
CLEAN = {
    "other libraries": {"ttl/x.cc": unnamed("int Bad() { return 1; }"),
                        "storage/y.cc": unnamed("int Bad() { return 2; }")},
    "a higher library's header": {"server/x.h": "namespace mayfly {\nclass Log {};\n}\n",
                                  "query/y.cc": unnamed("int Log() { return 1; }")},
    "another namespace": {"query/x.h": "namespace mayfly::privileges {\nvoid Find();\n}\n",
                          "query/y.cc": unnamed("void Find() {}")},
    "members, parameters and locals": {
        "ttl/x.cc": unnamed("struct A {\n  int size = 0;\n  static int Of(int n) { return n; }\n};"),
        "ttl/y.cc": unnamed("struct B {\n  int size = 1;\n  static int Of(int n) { int m = n; return m; }\n};")},
    "enumerators of a class": {"ttl/x.cc": unnamed("enum class A { kNone };"),
                               "ttl/y.cc": unnamed("enum class B { kNone };")},
    "overloads in one file": {"ttl/x.cc": unnamed("int F(int n) { return n; }\nint F(long n) { return 1; }")},
    "declared before it is defined": {"ttl/x.cc": unnamed("int F(int n);\nint G() { return F(1); }\nint F(int n) {}")},
    "a directive in a function": {"ttl/x.cc": "namespace mayfly {\nvoid F() {\n  using namespace key;\n}\n}\n"},
    "a macro that ends": {"ttl/x.cc": "#include <x>\n#define ROW(x) x\nint i = ROW(1);\n#undef ROW\n"},
    "a macro for a header": {"ttl/x.cc": "#define WIDTH 8\n#include <x>\n"},
}

cases = Cases("check_unity.py")
cases.all(
    FAULTS,
    {what: (files, None) for what, files in CLEAN.items()},
    lambda case: case[0],
    lambda case: case[1],
)
cases.end()
