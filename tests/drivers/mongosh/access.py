"""mongosh with a login and TLS on its command line, as people type it; a password that it asks for; and access.js."""

import os, pty, re, select, subprocess, sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parents[1] / "golden"))
from waits import Deadline

root = urlsplit(os.environ["ROOT_LOGIN"])
user, password = root.username, unquote(root.password)
host = root.netloc.rpartition("@")[2].split(",")[0]
shell = ["node", os.environ["NODE_MODULES"] + "/mongosh/bin/mongosh.js", "--quiet", f"mongodb://{host}/access_mongosh"]
tls = ["--tls", "--tlsCAFile", os.environ["TLS_CA_FILE"]]
login = ["-u", user, "-p", password, "--authenticationDatabase", "admin"]
results = []


def check(ok, what):
    results.append(bool(ok))
    if not ok:
        print(f"FAIL {what}")


def run(*arguments):
    out = subprocess.run([*shell, *arguments], capture_output=True, text=True, timeout=Deadline(120).seconds)
    return out.returncode, out.stdout + out.stderr


def typed(answers, *arguments):
    """What mongosh prints on a terminal at which somebody answers: (text to wait for, line to type)."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(shell[0], [*shell, *arguments])
    text, waiting, deadline = "", list(answers), Deadline(90)
    while deadline.holds():
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            came = os.read(terminal, 4096)
        except OSError:
            break
        if not came:
            break
        text += came.decode(errors="replace")
        if waiting and waiting[0][0] in text:
            os.write(terminal, waiting.pop(0)[1].encode() + b"\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


status, text = run(*tls, *login, "--file", str(here / "access.js"))
print(text)
counted = re.search(r"mongosh: (\d+) passed, (\d+) failed", text)
check(counted and counted[2] == "0", "access.js")

eval_ = ["--eval", "print('who: ' + EJSON.stringify(db.runCommand({connectionStatus: 1}).authInfo.authenticatedUsers))"]
own = '[{"user":"root","db":"admin"}]'
status, text = run(*tls, *login, *eval_)
check(status == 0 and own in text, f"a login on the command line: {text}")
status, text = run(*tls, *login, "--eval", "show dbs")
check(status == 0 and "admin" in text and "other" in text, f"show dbs: {text}")
status, text = run(*tls, *login, "--eval", "use other", "--eval", "show collections")
check(status == 0 and "things" in text, f"use and show collections: {text}")
for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
    status, text = run(*tls, *login, "--authenticationMechanism", mechanism, *eval_)
    check(status == 0 and own in text, f"by {mechanism}: {text}")
status, text = run(*tls, "-u", user, "-p", "wrong", "--authenticationDatabase", "admin", *eval_)
check(status != 0 and "Authentication failed" in text and "who:" not in text, f"a wrong password: {text}")
status, text = run(*tls, *eval_, "--eval", "db.things.findOne()")
check(status != 0 and "who: []" in text and "requires authentication" in text, f"without a login: {text}")
external = ["--authenticationMechanism", "MONGODB-X509", "--authenticationDatabase", "$external"]
status, text = run(*tls, "--tlsCertificateKeyFile", os.environ["TLS_CLIENT_FILE"], *external, *eval_)
check(status == 0 and '"user":"CN=app,OU=clients,O=Mayfly","db":"$external"' in text, f"by certificate: {text}")
text = typed([("Enter password", password)], *tls, *login[:2], *login[4:], *eval_)
check(own in text and password not in text, f"mongosh asks for the password: {text}")
make = "db.createUser({user: 'asked', pwd: passwordPrompt(), roles: []}); print('made')"
text = typed([("Enter password", "typed in")], *tls, *login, "--eval", make)
check("made" in text and "typed in" not in text, f"passwordPrompt: {text}")
made = ["-u", "asked", "-p", "typed in", "--authenticationDatabase", "access_mongosh"]
status, text = run(*tls, *made, *eval_)
check(status == 0 and '"user":"asked"' in text, f"the user whose password was typed: {text}")

passed = sum(results) + (int(counted[1]) if counted else 0)
failed = len(results) - sum(results) + (int(counted[2]) if counted else 0)
print(f"mongosh: {passed} passed, {failed} failed")
sys.exit(failed > 0)
