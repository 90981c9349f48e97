#!/usr/bin/env python3
"""The first user of a member, and connections whose client has logged out: a member makes the user of
--initialRootUser when it leads, and nobody is faster; who logs out counts as one that has not logged in. The last line
says "N passed, N failed".
"""

import os, tempfile
from pathlib import Path

from pymongo.errors import OperationFailure

from fault_test import Checks, Client, log_in, run_parts, until
from own_server import OwnServer

check = Checks()
PASSWORD = "canary-5b02a-password"


class Server(OwnServer):
    check, root_password = check, PASSWORD


class Member(Server):
    def prepare(self):
        if BY_ITSELF in self.extra:
            self.extra[self.extra.index(BY_ITSELF)] = f"--initialMembers=127.0.0.1:{self.port}"


BY_ITSELF = "initiates itself"


def first_user_of_a_member():
    for by_itself in (True, False):
        first_user(by_itself)


def first_user(by_itself):
    with tempfile.TemporaryDirectory(prefix="mayfly-first-") as folder:
        for name, text in (("password", PASSWORD), ("key", "k" * 64)):
            Path(folder, name).write_text(text)
            os.chmod(f"{folder}/{name}", 0o600)
        options = ("--replSet", "rs0", "--keyFile", f"{folder}/key")
        options += ("--initialRootUser", "root", "--initialRootPasswordFile", f"{folder}/password")
        s = Member(*options, *([BY_ITSELF] if by_itself else []))
        try:
            tried, nobody = set(), Client("127.0.0.1", s.port)
            if not by_itself:
                one = {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{s.port}"}]}
                check(nobody.command("admin", {"replSetInitiate": one})["ok"] == 1, "anybody here initiates the set")

            def made():
                r = nobody.command("admin", {"createUser": "other", "pwd": "x", "roles": ["root"]})
                tried.add(r.get("code", 0))
                try:
                    return s.connect("root", PASSWORD).admin.command("ping")
                except OperationFailure:
                    return None

            check(until(made, 60), "the first user is made")
            check(0 not in tried, f"and no other before: {tried}")
        finally:
            s.end()


def logged_out():
    s = Server("--setParameter", "maxConnectionsBeforeLogin=20")
    try:
        root = s.first_user()
        root.admin.command("createUser", "u", pwd="u", roles=[])
        kept, refused = [], False
        try:
            for _ in range(25):
                kept.append(log_in(s.port, "u", "u"))
                kept[-1].command("admin", {"logout": 1})
        except (OSError, EOFError, AssertionError):
            refused = True
        check(refused and len(kept) <= 21, f"they count as those that have not logged in: {len(kept)}")
        for c in kept:
            c.sock.close()
    finally:
        s.end()


if __name__ == "__main__":
    run_parts("first_user", [first_user_of_a_member, logged_out], check)
