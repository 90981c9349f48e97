"""A mayflyd with access control and an audit log, for the runs that look at what it tells."""

import base64, json
import urllib.error, urllib.request
from pathlib import Path

from fault_test import Deadline
from own_server import OwnServer

OK, DENIED, WRONG = 0, 13, 18
PASSWORD = "root-3b1e9-password"


class AuditedServer(OwnServer):
    """`config`: the text of its configuration file, in which FOLDER stands for its own folder."""

    root_password, client_options = PASSWORD, {"retryWrites": False}

    def __init__(self, *extra, auth=True, config=None):
        self.config = config
        super().__init__(*extra, auth=auth)

    def prepare(self):
        self.audit_path = f"{self.folder}/data/audit/audit.json"
        if self.config:
            Path(f"{self.folder}/conf").write_text(self.config.replace("FOLDER", self.folder))
            self.extra += ["--config", f"{self.folder}/conf"]

    def events(self, atype=None, path=None):
        lines = Path(path or self.audit_path).read_text().splitlines()
        return [e for e in map(json.loads, lines) if atype in (None, e["atype"])]

    def params(self, atype):
        return [e["param"] for e in self.events(atype)]

    def metrics(self, user="root", password=PASSWORD):
        q = urllib.request.Request(f"http://127.0.0.1:{self.http}/metrics")
        if user:
            q.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
        try:
            with urllib.request.urlopen(q, timeout=Deadline().seconds) as r:
                return r.read().decode()
        except urllib.error.HTTPError as e:
            return f"{e.code} {e.read().decode()}"
