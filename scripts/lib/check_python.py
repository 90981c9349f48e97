#!/usr/bin/env python3
"""Python scripts that would only fail when the line is reached, as merges leave them behind. Prints each place.

scripts/lib/check_python.py FILE…

- a file that does not compile
- a name that is read and bound nowhere: not in its function, around it or in its module, and no builtin
- a name that is imported from another of the files, which does not bind it
- a function or class that is defined twice in one place

Modules are found by name among the files: in the folder of the importing file, else any of that name. A file that
imports `*` from a module that is not among them is not asked for unbound names.
"""

import ast
import builtins
import sys
import symtable
from pathlib import Path

ALWAYS = set(dir(builtins)) | {"__file__", "__name__", "__doc__", "__builtins__", "__annotations__", "__path__"}


def scopes(table):
    yield table
    for child in table.get_children():
        yield from scopes(child)


class Module:
    def __init__(self, path):
        self.path, text = path, Path(path).read_text()
        self.tree = ast.parse(text, path)
        self.table = symtable.symtable(text, path, "exec")
        bound = lambda s: s.is_assigned() or s.is_imported() or s.is_namespace()
        self.bound = {s.get_name() for s in self.table.get_symbols() if bound(s)}
        for scope in scopes(self.table):  # `global x` in a function
            self.bound |= {s.get_name() for s in scope.get_symbols() if s.is_declared_global() and bound(s)}
        self.imports = [n for n in ast.walk(self.tree) if isinstance(n, ast.ImportFrom) and n.module]
        self.stars = [n.module for n in self.imports if n.names[0].name == "*"]

    def sources(self, name, modules):
        """What an import of the module `name` may mean."""
        all_of = modules.get(name.split(".")[-1], [])
        return [m for m in all_of if Path(m.path).parent == Path(self.path).parent] or all_of

    def unbound(self, modules):
        """Names that are read and bound nowhere."""
        known = self.bound | ALWAYS
        for star in self.stars:
            sources = self.sources(star, modules)
            if not sources:
                return set()
            known = known.union(*(m.bound for m in sources))
        read = set()
        for scope in scopes(self.table):
            for s in scope.get_symbols():
                if s.is_referenced() and (s.is_global() or scope is self.table):
                    read.add(s.get_name())
        return read - known


def twice(body):
    """Functions and classes that a later one of the same block replaces; what decorators make of them is theirs."""
    seen = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.decorator_list:
            if node.name in seen:
                yield node.name, seen[node.name], node.lineno
            seen[node.name] = node.lineno


def faults(m, modules):
    names = m.unbound(modules)
    for node in ast.walk(m.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            yield node.lineno, f"{node.id} is bound nowhere"
            names.discard(node.id)
        body = getattr(node, "body", None)
        for name, first, line in twice(body) if isinstance(body, list) else ():
            yield line, f"{name} is defined in line {first} too"
    for node in m.imports:
        sources = m.sources(node.module, modules)
        for a in node.names if sources else ():
            if a.name != "*" and not any(a.name in s.bound or s.stars for s in sources):
                yield node.lineno, f"{sources[0].path} has no {a.name}"


def main():
    files, modules, found = [], {}, []
    for path in sys.argv[1:]:
        try:
            files.append(Module(path))
        except (SyntaxError, ValueError) as e:
            found.append(f"{path}: does not compile: {e}")
    for m in files:
        modules.setdefault(Path(m.path).stem, []).append(m)
    for m in files:
        found += [f"{m.path}:{line}: {what}" for line, what in sorted(faults(m, modules))]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


main()
