#!/usr/bin/env python3
"""How members know one another, changed on a running set: from no access control to key files to certificates, from one
key to the next, and from one authority to the next, while clients go on writing.

The last line says "N passed, N failed". With the names of parts (functions) as arguments only those run.
"""

import os, subprocess, tempfile

import pymongo
from pymongo.errors import PyMongoError

from fault_test import BINARY, Checks, Deadline, certificate, discard, free_port, run_parts
from load import Writers
from replica_set import Member, ReplicaSet, code

check = Checks()
folder = tempfile.mkdtemp(prefix="mayfly-upgrade-")
OWN = f"{folder}/own"
OLD, NEW = "T2xkIGtleSBvZiB0aGUgbWVtYmVycyBvZiB0aGlzIHNldA==", "TmV3IGtleSBvZiB0aGUgbWVtYmVycyBvZiB0aGlzIHNldA=="
CLIENT = certificate(OWN, "client", "app")
CA = f"{OWN}/ca.pem"
TLS = dict(tls=True, tlsCAFile=CA, tlsCertificateKeyFile=CLIENT)
USER = dict(username="root", password="secret", authSource="admin")


def key_file(name, text):
    path = f"{folder}/{name}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write(text)
    return path


class Known(Member):
    """A member to which the test connects as it must by now."""

    def connect(self, **more):
        self.client.close()
        self.client = self.new_client(**more)


def make_set(*options, **login):
    s = ReplicaSet(0)
    for i in range(3):
        m = Known(f"{s.folder}/{i}", options)
        m.connect(**login)
        m.start()
        m.wait_up()
        s.members.append(m)
    return s


def uri(s, tls=False, user=True):
    who = "root:secret@" if user else ""
    more = "&authSource=admin" if user else ""
    if tls:
        more += f"&tls=true&tlsCAFile={CA}&tlsCertificateKeyFile={CLIENT}"
    return f"mongodb://{who}" + ",".join(m.host for m in s.members) + "/?replicaSet=rs0" + more


def restart(s, m, options, **login):
    """One member with other options, until it follows the set again."""
    m.stop()
    m.extra = list(options)
    if login:
        m.connect(**login)
    m.start()
    m.wait_up()
    s.in_place()


def roll(s, writers, options_of, **login):
    """All members with other options, one after another, the primary last; clients go on meanwhile."""
    primary = s.primary()
    for m in [*s.others(primary), primary]:
        restart(s, m, options_of(m), **login)
        writers.go_on(s, 3)


def finish(s, writers, what):
    writers.finish()
    refused = [e for e in writers.errors if (getattr(e, "details", None) or {}).get("code") in (13, 18, 204, 211)]
    check(not refused, f"{what}: no client was refused: {refused[:3]}")
    return writers.acknowledged


def all_there(s, acknowledged, what):
    kept = {d["_id"] for d in s.primary().client.test.kept.find({}, {"_id": 1})}
    lost = acknowledged - kept
    check(not lost, f"{what}: of {len(acknowledged)} acknowledged writes none is lost: {sorted(lost)[:3]}")
    check(s.same(), f"{what}: all members hold the same")


def may_read(port, **more):
    patience = Deadline().millis
    with pymongo.MongoClient("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=patience, **more) as c:
        return code(c.test.kept.find_one)


def upgrade():
    """No access control, transitionToAuth, keyFile, sendKeyFile, sendX509, x509."""
    s = make_set()
    try:
        s.initiate()
        s.all_vote()
        files = {m: certificate(OWN, "server", f"m{i}", "localhost", "127.0.0.1") for i, m in enumerate(s.members)}
        key = ("--keyFile", key_file("key", OLD))

        def tls(m, mode, auth):
            return (
                "--tlsMode",
                mode,
                "--tlsCertificateKeyFile",
                files[m],
                "--tlsCAFile",
                CA,
                "--clusterAuthMode",
                auth,
            )

        stranger = Writers(uri(s, user=False), 1, "stranger", retry=True)
        roll(s, stranger, lambda m: (*key, "--transitionToAuth"))
        s.primary().client.admin.command("createUser", "root", pwd="secret", roles=["root"])
        user = Writers(uri(s), 1, "user", retry=True)
        user.go_on(s, 3)
        check(all(may_read(m.port) == 0 for m in s.members), "transitionToAuth: clients need no login yet")
        acknowledged = finish(s, stranger, "transitionToAuth")

        roll(s, user, lambda m: key, **USER)
        check([may_read(m.port) for m in s.members] == [13] * 3, "keyFile: clients must log in")
        s.primary().client.admin.command("ping")
        shown = s.primary().client.admin.command("ping")["$clusterTime"]["signature"]["keyId"]
        check(shown > 0, "times are signed by now")

        roll(s, user, lambda m: (*key, *tls(m, "allowTLS", "sendKeyFile")))
        early = code(lambda: s.members[0].client.admin.command("setParameter", 1, clusterAuthMode="sendX509"))
        check(early == 2, f"no certificates while members are dialled without TLS: {early}")
        for m in s.members:
            m.client.admin.command("setParameter", 1, tlsMode="preferTLS", clusterAuthMode="sendX509")
            user.go_on(s, 3)
        early = code(lambda: s.members[0].client.admin.command("setParameter", 1, clusterAuthMode="sendKeyFile"))
        check(early == 2, f"there is no way back at run time: {early}")
        secure = Writers(uri(s, tls=True), 1, "secure", retry=True)
        secure.go_on(s, 3)
        acknowledged |= finish(s, user, "sendX509")
        for m in s.members:
            m.client.admin.command("setParameter", 1, tlsMode="requireTLS", clusterAuthMode="x509")
            m.connect(**USER, **TLS)
            secure.go_on(s, 3)
        modes = [m.client.admin.command("getParameter", 1, clusterAuthMode=1)["clusterAuthMode"] for m in s.members]
        check(modes == ["x509"] * 3, f"all have arrived: {modes}")
        # As the configuration files are to say by now: there is no key file any more.
        roll(s, secure, lambda m: tls(m, "requireTLS", "x509"))
        acknowledged |= finish(s, secure, "x509")
        check([may_read(m.port, **TLS) for m in s.members] == [13] * 3, "a certificate of a client is no login")
        all_there(s, acknowledged, "in the end")
        strangers(s, files, key, tls)
    finally:
        s.close()


def strangers(s, files, key, tls):
    """Whoever comes to a set of x509 members with something else."""
    m = s.others(s.primary())[0]
    primary_log = f"{s.primary().folder}/log"
    good, right = m.extra, files[m]
    other = certificate(OWN, "server", "other", "localhost", "127.0.0.1", ORGANISATION="Others")
    for what, extra, reason in (
        ("a key file", (*key, *tls(m, "requireTLS", "sendKeyFile")), "certificates only"),
        (
            "a certificate of others",
            ("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", other, "--tlsCAFile", CA)
            + ("--clusterAuthMode", "x509", "--setParameter", f"tlsX509ClusterAuthDNOverride=O=Mayfly,OU=members"),
            "is not a member's",
        ),
    ):
        m.stop()
        m.extra = list(extra)
        m.start()
        s.wait(lambda: reason in open(primary_log, errors="replace").read(), f"the primary to refuse {what}")
        check(True, f"a member with {what} is refused, and the log says why")
        m.stop()
    # A client with a member's certificate is neither a member nor a user.
    by_member = dict(tls=True, tlsCAFile=CA, tlsCertificateKeyFile=right, authMechanism="MONGODB-X509")
    refused = may_read(s.primary().port, **by_member)
    check(refused == 18, f"a login by the certificate of a member: {refused}")
    name = "CN=x,OU=members,O=Mayfly"
    made = code(lambda: s.primary().client["$external"].command("createUser", name, roles=[]))
    check(made == 2, f"a user with the name of a member: {made}")
    m.extra = good
    m.start()
    m.wait_up()
    check(s.same(), "with its own certificate it is taken back")


def begin(s, **connection):
    """Makes the members a set with a first user, as whom the test is connected to each from then on."""
    s.members[0].client.admin.command("replSetInitiate", s.config())
    s.in_place()
    s.primary().client.admin.command("createUser", "root", pwd="secret", roles=["root"])
    for m in s.members:
        m.connect(**USER, **connection)


def rotation():
    """The key of the members is replaced, by way of files with both."""
    one, both, two = (
        key_file("one", OLD),
        key_file("both", f"- {OLD}\n- '{NEW}'\n"),
        key_file("two", NEW),
    )
    s = make_set("--keyFile", one)
    try:
        begin(s)
        s.all_vote()
        writers = Writers(uri(s), 1, "writer", retry=True)
        roll(s, writers, lambda m: ("--keyFile", both))
        roll(s, writers, lambda m: ("--keyFile", two))
        acknowledged = finish(s, writers, "rotation")
        all_there(s, acknowledged, "rotation")
        m = s.others(s.primary())[0]
        m.stop()
        m.extra = ["--keyFile", one]
        m.start()
        log = f"{s.primary().folder}/log"
        s.wait(lambda: "different key files" in open(log, errors="replace").read(), "the old key to be refused")
        check(True, "the old key is worth nothing any more")
    finally:
        s.close()


def allowlist():
    """Members are let in from the addresses that the list names, with the right key as well."""
    key = ("--keyFile", key_file("listed", OLD))
    s = make_set(*key)
    try:
        begin(s)
        s.all_vote()
        away = s.others(s.primary())[0]
        log = f"{s.primary().folder}/log"
        for list_, lets_in in (
            (("--clusterIpSourceAllowlist", "192.0.2.0/24"), False),
            (("--clusterIpSourceAllowlist", "192.0.2.0/24, 127.0.0.0/8"), True),
            (("--clusterIpSourceAllowlist", "192.0.2.0/24", "--clusterIpSourceAllowlist", "127.0.0.1"), True),
        ):
            seen = os.path.getsize(log)

            def said():
                with open(log, errors="replace") as f:
                    f.seek(seen)
                    return "see clusterIpSourceAllowlist" in f.read()

            away.stop()
            away.extra = [*key, *list_]
            away.start()
            away.wait_up()
            if lets_in:
                s.in_place()
                s.settled()
                check(not said(), f"{list_[1::2]}: the others are let in")
            else:
                s.wait(said, "the primary to be refused")
                check(True, f"{list_[1::2]}: the others are not, and the primary's log says why")
                check(away.client.admin.command("ping")["ok"] == 1, "clients are")
        check(s.same(), "all members hold the same")
    finally:
        s.close()


def new_certificates():
    """The certificates of a set, and then the authority itself, are replaced by rotateCertificates alone; in between
    there are files that are wrong."""
    following, hosts = f"{folder}/following", ("localhost", "127.0.0.1")
    next_client = certificate(following, "client", "app")

    def text(path):
        with open(path) as f:
            return f.read()

    def put(path, content):
        with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(content)
        os.replace(path + ".new", path)

    both = text(CA) + text(f"{following}/ca.pem")
    put(f"{folder}/both.pem", both)
    old_client = TLS | dict(tlsCAFile=f"{folder}/both.pem")
    new_client = old_client | dict(tlsCertificateKeyFile=next_client)
    authority_file = f"{folder}/authorities.pem"
    put(authority_file, text(CA))
    s = ReplicaSet(0)
    try:
        for i in range(3):
            file = f"{folder}/rotated{i}.pem"
            put(file, text(certificate(OWN, "server", f"first{i}", *hosts)))
            options = ("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", file, "--tlsCAFile", authority_file)
            m = Known(f"{s.folder}/{i}", (*options, "--clusterAuthMode", "x509"))
            m.file = file
            m.connect(**TLS)
            m.start()
            m.wait_up()
            s.members.append(m)
        begin(s, **old_client)
        s.all_vote()

        def writers_by(client, name):
            secure = uri(s).replace("&authSource", f"&tls=true&tlsCAFile={client['tlsCAFile']}&authSource")
            secure += f"&tlsCertificateKeyFile={client['tlsCertificateKeyFile']}"
            return Writers(secure, 1, name, retry=True)

        writers = writers_by(old_client, "old")
        wrong_key = text(certificate(OWN, "client", "unlike")).split("-----BEGIN PRIVATE KEY")[1]
        past = text(certificate(OWN, "server", "past", *hosts, UNTIL="20210101000000Z"))

        def rotated(what, name=None, authority=OWN):
            """All members have read their files again, and know one another by them: one that starts anew is let in and
            lets the others in."""
            for i, m in enumerate(s.members):
                good = text(m.file)
                if name:
                    good = text(certificate(authority, "server", f"{name}{i}", *hosts))
                no_key, start = good.split("-----BEGIN PRIVATE KEY")[0], "-----BEGIN PRIVATE KEY"
                for bad in ("", "nonsense", good[: len(good) // 3], no_key, no_key + start + wrong_key, past):
                    put(m.file, bad)
                    got = code(lambda: m.client.admin.command("rotateCertificates", 1))
                    check(got == 72, f"{what}: a file that is wrong: {got}")
                put(m.file, good)
                got = code(lambda: m.client.admin.command("rotateCertificates", 1, message=what))
                check(got == 0, f"{what}: member {i} has read its files again: {got}")
                writers.go_on(s, 3)
            again = s.others(s.primary())[0]
            seen = len(text(f"{again.folder}/log"))
            restart(s, again, again.extra)
            writers.go_on(s, 3)
            if name:
                others = [f"CN={name}{i}," for i, m in enumerate(s.members) if m is not again]
                s.wait(lambda: all(o in text(f"{again.folder}/log")[seen:] for o in others), f"{what}: links with them")
                check(True, f"{what}: its links with the others are made with the new files")

        rotated("new certificates", "second")
        put(authority_file, both)
        rotated("a second authority")
        acknowledged = finish(s, writers, "new certificates")
        writers = writers_by(new_client, "new")
        writers.go_on(s, 3)
        rotated("certificates of the second authority", "third", following)
        put(authority_file, text(f"{following}/ca.pem"))
        for m in s.members:
            m.client.admin.command("rotateCertificates", 1)
            m.connect(**USER, **new_client)
        rotated("the second authority alone", "fourth", following)
        acknowledged |= finish(s, writers, "another authority")
        refused = may_read(s.primary().port, **old_client)
        check(refused not in (0, 13), f"a certificate of the first authority is worth nothing any more: {refused}")
        all_there(s, acknowledged, "another authority")
    finally:
        s.close()


CONFIG = """\
net:
  tls:
    mode: requireTLS
    certificateKeyFile: {file}
    CAFile: {ca}
    allowConnectionsWithoutCertificates: true
    clusterAuthX509:
      {rule}
security:
  clusterAuthMode: x509
"""


def by_configuration_file():
    """Sets whose configuration files say by what members know one another, and what the files refuse."""

    def configured(name, file, rule):
        path = f"{folder}/{name}.conf"
        with open(path, "w") as f:
            f.write(CONFIG.format(file=file, ca=CA, rule=rule))
        return ["--config", path]

    hosts = ("localhost", "127.0.0.1")
    for name, rule, environment in (
        ("by-extension", "extensionValue: blue", dict(MEMBERSHIP="blue")),
        ("by-attributes", "attributes: O=Blue", dict(ORGANISATION="Blue")),
    ):
        right = configured(name, certificate(OWN, "server", name, *hosts, **environment), rule)
        # It says the same of itself, so that it starts, and the others see by its certificate what it is.
        other = dict(MEMBERSHIP="red") if "extension" in name else dict(ORGANISATION="Red")
        unlike = rule.replace("blue", "red").replace("Blue", "Red")
        stranger = configured("no-" + name, certificate(OWN, "server", "no-" + name, *hosts, **other), unlike)
        s = make_set(*right, **TLS)
        try:
            begin(s, **TLS)
            parsed = s.primary().client.admin.command("getCmdLineOpts")["parsed"]["net"]["tls"]["clusterAuthX509"]
            check(parsed == dict([rule.split(": ")]), f"{name}: the file is understood: {parsed}")
            s.primary().client.test.kept.insert_many([{"_id": i} for i in range(100)])
            check(s.same(), f"{name}: members know one another")
            m = s.others(s.primary())[0]
            m.stop()
            m.extra = list(stranger)
            m.start()
            log = f"{s.primary().folder}/log"
            refused = lambda: "is not a member's" in open(log, errors="replace").read()
            s.wait(refused, f"{name}: the others to refuse it")
            check(True, f"{name}: a certificate without it is no member's")
        finally:
            s.close()
    own = certificate(OWN, "server", "plain-member", *hosts)
    both = "attributes: O=Mayfly\n      extensionValue: blue"
    for what, rule in (("both at once", both), ("what its own file does not have", "extensionValue: blue")):
        file = configured("wrong", own, rule)
        options = ["--dbpath", f"{folder}/never", "--port", str(free_port()), "--httpPort", "0", "--nounixsocket"]
        p = subprocess.run(
            [BINARY, *file, "--replSet", "rs0", *options], capture_output=True, text=True, timeout=Deadline().seconds
        )
        said = p.stdout + p.stderr
        check(p.returncode not in (0, -6) and "clusterAuthX509" in said, f"{what} is refused: {said[-300:]}")


def roles_in_certificates():
    """A certificate grants roles by itself; what is offered can be chosen."""
    file = certificate(OWN, "client", "reader", "read.test", "no-such-role.admin")
    server = certificate(OWN, "server", "single", "localhost", "127.0.0.1")
    options = ("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", server, "--tlsCAFile", CA, "--auth")
    place = f"{folder}/single"
    by_certificate = dict(
        tls=True, tlsCAFile=CA, tlsCertificateKeyFile=file, authMechanism="MONGODB-X509", maxPoolSize=1
    )

    def serve(*more):
        m = Known(place, (*options, *more))
        m.connect(**TLS)
        m.start(replica_set=False)
        m.wait_up()
        return m

    m = serve()
    try:
        m.client.admin.command("createUser", "root", pwd="secret", roles=["root"])
        m.connect(**TLS, **USER)
        offered = m.client.admin.command("getParameter", 1, authenticationMechanisms=1)["authenticationMechanisms"]
        check(offered == ["SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509"], f"offered with TLS: {offered}")
        with pymongo.MongoClient("127.0.0.1", m.port, directConnection=True, **by_certificate) as c:
            check(code(c.test.things.find_one) == 0, "a certificate with roles reads, and nobody has stored it")
            check(code(lambda: c.test.things.insert_one({})) == 13, "and does no more than its roles")
            info = c.admin.command("connectionStatus")["authInfo"]
            check(
                info["authenticatedUsers"] == [{"user": "CN=reader,OU=clients,O=Mayfly", "db": "$external"}]
                and {"role": "read", "db": "test"} in info["authenticatedUserRoles"],
                f"connectionStatus shows who it is: {info}",
            )
            m.client.admin.command("createRole", "no-such-role", roles=["readWriteAnyDatabase"], privileges=[])
            check(code(lambda: c.test.things.insert_one({})) == 0, "a role that is made counts at once")
            m.client.admin.command("dropRole", "no-such-role")
            check(code(lambda: c.test.things.insert_one({})) == 13, "as does its end")
        m.stop()
        m = serve("--setParameter", "allowRolesFromX509Certificates=false")
        refused = may_read(m.port, **by_certificate)
        check(refused == 18, f"roles of certificates can be switched off: {refused}")
        m.stop()
        m = serve("--setParameter", "authenticationMechanisms=SCRAM-SHA-256")
        refused = may_read(m.port, **by_certificate)
        check(refused == 334, f"what is not offered is refused: {refused}")
        m.stop()
        m = serve("--setParameter", "enforceUserClusterSeparation=false")
        m.connect(**TLS, **USER)
        m.client["$external"].command(
            "createUser", "CN=single,OU=members,O=Mayfly", roles=[{"role": "root", "db": "admin"}]
        )
        member = by_certificate | dict(tlsCertificateKeyFile=server)
        check(may_read(m.port, **member) == 0, "a member's certificate is a user's only where that is asked for")
    finally:
        if m.running():
            m.kill()


PARTS = (upgrade, rotation, allowlist, new_certificates, by_configuration_file, roles_in_certificates)
try:
    run_parts("upgrade_auth", PARTS, check)
finally:
    discard(folder)
