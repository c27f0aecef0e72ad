"""swlimitd for scenarios, asked over HTTP: does what the runner says, and judges nothing.

Each limiter is a daemon of its own. Who gives up closes its connection.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

DAEMON, DAEMONS, CALLS, OUT = sys.argv[1], {}, {}, threading.Lock()


def say(**words):
    with OUT:
        print(json.dumps(words), flush=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(asked):
    options, folder, port = dict(asked["options"]), tempfile.mkdtemp(prefix="scenario-"), free_port()
    quota = {name: options.pop(name) for name in ("limit", "window", "period", "ttl") if name in options}
    config = {"server": f"redis://{asked['addresses']['S']}", "grpc": {"address": f"127.0.0.1:{free_port()}"},
              "http": {"address": f"127.0.0.1:{port}"}, **options}
    with open(f"{folder}/c.yaml", "w") as file:
        json.dump(config, file)
    with open(f"{folder}/log", "wb") as log:
        process = subprocess.Popen([DAEMON, "--config", f"{folder}/c.yaml"], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log)
    DAEMONS[asked["client"]] = process, port, quota, folder
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.01)
            if process.poll() is not None:
                break
    raise RuntimeError(Path(f"{folder}/log").read_text()[-300:])


def call(asked):
    _, port, quota, _ = DAEMONS[asked["client"]]
    kind = "budget" if "period" in quota else asked["method"]
    body = {"key": asked["key"], **quota, **{name: asked[name] for name in ("cost", "timeout") if name in asked}}
    if kind == "hold":
        body |= {"ttl": "30s"}
    connection = CALLS[asked["id"]] = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", f"/v1/{kind}", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    found = json.loads(response.read())
    if response.status not in (200, 429):
        kinds = {503: "unavailable", 400: "invalid", 502: "module_missing" if "module" in str(found) else "refused"}
        return {"error": kinds.get(response.status, "refused"), "message": f"{response.status} {found}"}
    if found.get("retry_after") == -1:
        found["retry_after"] = "never"  # JSON has no infinity: -1 is documented
    return {"ok": {"remaining": None, "reset_after": None} | found}


def end(asked):
    if asked["client"] in DAEMONS:
        process, _, _, folder = DAEMONS.pop(asked["client"])
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder)


def health(asked):
    connection = HTTPConnection("127.0.0.1", DAEMONS[asked["client"]][1], timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    away = re.search(r"^swlimit_client_server_away\{[^}]*\} 1", text, re.M)
    return {"state": "unavailable" if away else "up", "reason": None}


def run(asked):
    try:
        do = asked["do"]
        found = call(asked) if do == "call" else {"ok": {"limiter": start, "health": health}.get(do, end)(asked)}
    except Exception as error:
        found = {"error": "cancelled" if asked["id"] in CALLS else "refused", "message": repr(error)}
    say(id=asked["id"], **found)


for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "hello":
        say(id=asked["id"], ok=["cancel"])
    elif asked["do"] == "statistics":
        say(id=asked["id"], error="none", message="no statistics of one limiter")
    elif asked["do"] == "cancel":
        CALLS[asked["call"]].sock.shutdown(socket.SHUT_RDWR)
    else:
        threading.Thread(target=run, args=(asked,), daemon=True).start()
for process, *_ in DAEMONS.values():
    process.terminate()
