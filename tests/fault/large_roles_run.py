#!/usr/bin/env python3
"""Users whose roles have many privileges, on a real server with access control.
  grown    the owner of one database grows roles that a user of another one has: they take neither roles nor
           restrictions away; the log, usersInfo and connectionStatus show which do not count
  memory   what such users take: memory, and the processor's time of a login and after a change
The last line says "N passed, N failed". MAYFLY_SEED, MAYFLYD.
"""

import os
from functools import partial

from fault_test import Checks, figure, log_in, memory_kb, processor_seconds, run_parts, until
from guarded_server import PASSWORD, GuardedServer, code

check = Checks(quiet=True)
Server = partial(GuardedServer, check)
UNAUTHORIZED = 13


def grow(db, role, count):
    privileges = [{"resource": {"db": db.name, "collection": f"{role}{n}"}, "actions": ["find"]} for n in range(count)]
    check(code(db, {"grantPrivilegesToRole": role, "privileges": privileges}) == 0, f"{role} grows")


def grown():
    """Roles of his that a user of another database has: they take neither roles nor restrictions away."""
    with Server() as server:
        shop, admin = server.root.shop, server.root.admin
        find = [{"resource": {"db": "shop", "collection": "c"}, "actions": ["find"]}]
        here, elsewhere = ([{"clientSource": [address]}] for address in ("127.0.0.1", "10.9.9.9"))
        vault = {"createRole": "vault", "privileges": find, "roles": [], "authenticationRestrictions": here}
        shop.command(vault)
        admin.command({"createRole": "clerk", "privileges": [], "roles": [{"role": "vault", "db": "shop"}]})
        victim = server.user("victim", [{"role": "clerk", "db": "admin"}])
        owner = server.user("owner", ["dbOwner"], "mine")
        for role in ("!a", "!b"):
            owner.mine.command({"createRole": role, "privileges": [], "roles": []})
            owner.shop.command({"grantRolesToUser": "victim", "roles": [{"role": role, "db": "mine"}]})
        check(code(victim.shop, {"find": "c"}) == 0, "before")
        for role in ("!a", "!b"):
            grow(owner.mine, role, 10_000)
        check(code(victim.shop, {"find": "c"}) == 0, "the user's own role counts, though others are large")
        seen = victim.admin.command({"connectionStatus": 1, "showPrivileges": True})["authInfo"]
        left_out = seen["authenticatedUserRolesLeftOut"]
        check([r["db"] for r in left_out] == ["mine"], f"what is left out is the owner's: {left_out}")
        info = shop.command({"usersInfo": {"user": "victim", "db": "shop"}, "showPrivileges": True})["users"][0]
        check(info["rolesLeftOut"] == left_out, f"as usersInfo shows it: {info['rolesLeftOut']}")
        check({"role": "vault", "db": "shop"} in info["inheritedRoles"], "with the nested role")
        log = server.folder.name + "/data.log"
        told = lambda: [line for line in open(log, errors="replace") if "9000140" in line]
        check(until(lambda: told() and "@mine" in told()[0]), f"the log tells of it: {told()[:1]}")
        log_in(server.proc.port, "victim", PASSWORD, "shop").sock.close()
        shop.command({"updateRole": "vault", "authenticationRestrictions": elsewhere})
        check(code(victim.shop, {"find": "c"}) == UNAUTHORIZED, "a restriction of a nested role counts")
        new = server.client("victim", "shop")
        check(code(new.shop, {"find": "c"}) == 18, "at a login as well")
        for client in (victim, owner, new):
            client.close()


def memory():
    """20,000 privileges, as many as may be: shared by all users with the same roles."""
    users, before = 5, os.environ.get("MALLOC_CONF")
    os.environ["MALLOC_CONF"] = "dirty_decay_ms:0,muzzy_decay_ms:0"  # what is freed goes back at once
    try:
        with Server() as server:
            admin, pid, port = server.root.admin, server.proc.pid, server.proc.port

            def measured(what, names, step):
                began, had = processor_seconds(pid), memory_kb(pid)
                kept = [step(name) for name in names]
                each = (memory_kb(pid) - had) / len(names)
                ms = (processor_seconds(pid) - began) * 1000 / len(names)
                figure(f"{what}: the processor's time", ms)
                figure(f"{what}: memory", each, "KB")
                return kept, ms, each

            def enter(name):
                return log_in(port, name, PASSWORD)

            for role, count in (("r0", 10_000), ("r1", 9_990)):
                admin.command({"createRole": role, "privileges": [], "roles": []})
                grow(admin, role, count)
            for n in range(users):
                admin.command({"createRole": f"own{n}", "privileges": [], "roles": []})
                large = {"first": ["r0", "r1", f"own{n}"], "same": ["r0", "r1", "own0"]}
                for name, roles in {"small": ["readWrite"], **large}.items():
                    admin.command({"createUser": f"{name}{n}", "pwd": PASSWORD, "roles": roles})
            kinds = {kind: [f"{kind}{n}" for n in range(users)] for kind in ("small", "first", "same")}
            enter("small0").sock.close()
            small, small_ms, small_kb = measured("a login with a built-in role", kinds["small"], enter)
            first, most_ms, most_kb = measured(
                "a login with 20,000 privileges that nobody else has", kinds["first"], enter
            )
            # Before they were shared and counted, it took 4,200.
            check(most_kb < 4000, f"{most_kb} KB for each large set of roles")
            same, ms, kb = measured("a login with 20,000 privileges that others have as well", kinds["same"], enter)
            # Before, each took as much as the first. Bounds are of what others take in this run: machines differ.
            check(kb < 10 * max(small_kb, 15), f"{kb} KB for each further user with the same roles, not {small_kb}")
            check(ms < 5 * small_ms, f"{ms} ms for each further user with the same roles, not {small_ms}")
            check(ms < most_ms / 5, f"{ms} ms for each further user with the same roles, after {most_ms}")
            admin.command({"createRole": "changed", "privileges": [], "roles": []})
            asked = lambda client: client.command("admin", {"connectionStatus": 1})
            what = "the first command of users with the same roles after a change of roles"
            _, shared_ms, _ = measured(what, same, asked)
            check(shared_ms < most_ms / 2, f"{shared_ms} ms for each of {users} that share roles, after {most_ms}")
            # The first of these has the roles of those.
            _, ms, _ = measured("the first command after a change of roles", first[1:], asked)
            check(ms < 2 * most_ms, f"{ms} ms to work out roles once more, after {most_ms}")
            admin.command({"createUser": "changed", "pwd": PASSWORD, "roles": []})
            _, ms, _ = measured("the first command after a change of users", first, asked)
            check(ms < most_ms / 5, f"{ms} ms after a change of users, which works out no roles, after {most_ms}")
            for client in small + first + same:
                client.sock.close()
    finally:
        os.environ.pop("MALLOC_CONF") if before is None else os.environ.update(MALLOC_CONF=before)


run_parts("large roles", [grown, memory], check)
