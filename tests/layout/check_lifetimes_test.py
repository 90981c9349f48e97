#!/usr/bin/env python3
"""scripts/lib/check_lifetimes.py finds what a cursor keeps of a request, however it is written and wherever it stands,
and nothing in what is well made."""

from cases import Cases

CURSORS = """
struct ServerCursor { virtual ~ServerCursor() = default; };
struct ClientCursor { std::unique_ptr<ServerCursor> cursor; };
"""


def cursor(member, before=""):
    return CURSORS + before + "class PipelineCursor final : public ServerCursor {\n  " + member + "\n};\n"


SOURCE = """
struct DocumentSource { virtual ~DocumentSource() = default; virtual void SaveState() {} };
class Stage : public DocumentSource {};
"""

FAULTS = {
    "a pointer": cursor("CommandContext* ctx_;"),
    "a pointer that is constant": cursor("const CommandContext* const ctx_ = nullptr;"),
    "a reference": cursor("Connection& connection_;"),
    "a reference that is set in braces": cursor("Connection& connection_{Mine()};"),
    "a pointer in a container": cursor("std::vector<UserAccess*> users_;"),
    "a wrapped reference": cursor("std::optional<std::reference_wrapper<RequestState>> state_;"),
    "several lines": cursor("const std::vector<\n      const UserAccess*> users_;"),
    "behind functions": cursor(
        "void Run() { if (x) { y(); } }\n  Result<void> Next(int n) override;\n  LoginState* login_;"
    ),
    "a member of a member": cursor("Environment env_;", "struct Environment { CommandContext* ctx; };\n"),
    "a member of what is owned": cursor(
        "std::unique_ptr<Environment> env_;", "struct Environment { CommandContext* ctx; };\n"
    ),
    "a class in the class": cursor("struct Inner { CommandContext* ctx; };\n  std::vector<Inner> all_;"),
    "a class of a stage": cursor(
        "std::vector<std::unique_ptr<Stage>> stages_;", "struct Stage { virtual ~Stage(); };\n"
    )
    + "class ClientsStage : public Stage {\n  UserAccess const* user_;\n};\n",
    "a base": cursor("Deep deep_;", "struct Base { Connection* connection; };\nstruct Deep : Base { int n; };\n"),
    "behind another name": cursor("EnvironmentPtr env_;", "struct Environment { CommandContext* ctx; };\n"
                                  "using EnvironmentPtr = std::shared_ptr<const Environment>;\n"),
    "a name for a pointer": cursor("ContextPtr ctx_;", "using ContextPtr = CommandContext*;\n"),
    "a name for a pointer, as C has it": cursor("ContextPtr ctx_;", "typedef const CommandContext* ContextPtr;\n"),
    "a span": cursor("std::span<const UserAccess> users_;"),
    "a pointer with its kind": cursor("class CommandContext* ctx_ = nullptr;"),
    "a reference with its kind": cursor("struct UserAccess& user_;"),
    "a struct without a name": cursor("struct {\n    CommandContext* ctx;\n  } of_;"),
    "behind a function on its line": cursor("void Run() { go(); } CommandContext* ctx_;"),
    "what has no name": cursor("decltype(Find()) found_;"),
    "a coroutine": cursor("Awaitable<void> running_;"),
    "a part of a user": cursor("const PrivilegeSet* privileges_;"),
    "a session": cursor("Session* session_;"),
    "a source that is not told to save its state": SOURCE
    + cursor("std::unique_ptr<Facets> stage_;", "struct Facets : public Stage {\n"
             "  struct Facet {\n    std::unique_ptr<Stage> stage;\n  };\n  std::vector<Facet> facets_;\n};\n")
    .replace("stage_;", "stage_;\n  void Park() override;"),
    "an operation that nobody sets again": cursor("Operation* op_;"),
    "what a transaction keeps": "class Transaction {\n  CommandContext& ctx_;\n};\n",
}

GOOD = {
    "a share": cursor("std::shared_ptr<const UserAccess> user_;"),
    "a weak one": cursor("std::weak_ptr<Connection> connection_;"),
    "a value": cursor("UserAccess user_;", "struct UserAccess { int n; };\n"),
    "parameters": cursor("Result<void> Run(CommandContext& ctx, Connection* c);\n  CommandContext* Of(int n) const;"),
    "a function's parameters": cursor("std::function<void(CommandContext&)> run_;"),
    "a variable of a function": cursor("void Run() {\n    CommandContext* ctx = Find();\n  }"),
    "an operation that is set again": cursor("void SetOperation(Operation* op) { op_ = op; }\n  Operation* op_;"),
    "a comment": cursor("int n_;  // CommandContext* was here"),
    "a shared session": cursor("std::shared_ptr<Session> session_;"),
    "a source that is told to save its state": SOURCE
    + cursor("std::unique_ptr<Facets> stage_;\n  void Park() override;", "struct Facets : public Stage {\n"
             "  void SaveState() override;\n"
             "  struct Facet {\n    std::unique_ptr<Stage> stage;\n  };\n  std::vector<Facet> facets_;\n};\n"),
    "what no cursor owns": CURSORS + "struct Local {\n  CommandContext* ctx;\n};\n",
    "what a cursor refers to": cursor("Server& server_;", "struct Server { Connection* first; };\n"),
    "the name of another class in another file": cursor("Environment env_;", "struct Environment { int n; };\n"),
}

OTHER = "namespace {\nstruct Environment { CommandContext* ctx; };\n}\n"
cases = Cases("check_lifetimes.py")
cases.all(FAULTS, GOOD, lambda text: {"cursor.h": text, "other.cc": OTHER}, lambda text: "cursor.h:")
cases.end()
