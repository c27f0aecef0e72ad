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

DAEMON, DAEMONS, CALLS, OUT = sys.argv[1], {}, {}, threading.Lock()


def say(**words):
    with OUT:
        print(json.dumps(words), flush=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


QUOTA = ("kind", "limit", "window", "period", "ttl", "block_for", "warm_up", "cold")


def start(asked):
    options, folder, port = dict(asked["limiters"][0]), tempfile.mkdtemp(prefix="scenario-"), free_port()
    each = [{name: one[name] for name in QUOTA + ("on_failure",) if name in one} for one in asked["limiters"]]
    login = f"ann:{asked['secret']}@" if asked["secret"] else ""
    scheme, path = {"sentinel": ("redis-sentinel", "/main"), "cluster": ("redis-cluster", "")}.get(
        asked["topology"], ("redis", ""))
    places = asked["addresses"] if path or scheme == "redis-cluster" else asked["addresses"][:1]
    config = {"server": f"{scheme}://{login}{','.join(places)}{path}", "grpc": {"address": f"127.0.0.1:{free_port()}"},
              "http": {"address": f"127.0.0.1:{port}"},
              **{name: value for name, value in options.items() if name not in QUOTA}}
    with open(f"{folder}/c.yaml", "w") as file:
        json.dump(config, file)
    check_rules(folder, [one for one in each if "warm_up" in one])
    process = subprocess.Popen([DAEMON, "--config", f"{folder}/c.yaml"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    DAEMONS[asked["client"]] = process, port, each, folder
    threading.Thread(target=listen, args=(asked["client"], process), daemon=True).start()
    for _ in range(500):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.01)
            if process.poll() is not None:
                break
    raise ValueError("it refuses its configuration")


def check_rules(folder, limits):
    """What is wrong with a limit that requests bring is said to them; of a rule it is said when the daemon starts."""
    rates = [{"requests_per_unit": one["limit"], "window": one["window"], "warm_up": one["warm_up"],
              **{name: one[name] for name in one if name == "cold"}} for one in limits]
    for name, text in (("rules", {"domain": "d", "descriptors": [{"key": "k", "rate_limits": rates}]}),
                       ("check", {"server": "none", "limits": ["rules.yaml"]})):
        with open(f"{folder}/{name}.yaml", "w") as file:
            json.dump(text, file)
    words = [DAEMON, "--config", f"{folder}/check.yaml", "--check"]
    if rates and subprocess.run(words, capture_output=True).returncode:
        raise ValueError("it refuses its rules")


def listen(client, process):
    for line in process.stdout:
        say(log=re.sub(r"^\S+ +[A-Z]+ \S+: ", "", line.strip()), client=client)  # without time, level and crate


def call(asked):
    _, port, limiters, _ = DAEMONS[asked["client"]]
    options = {name: value for name, value in asked["options"].items() if name not in ("of", "cancellable", "times")}
    kind = "budget" if "period" in limiters[asked["limiter"]] else asked["method"]
    chosen = limiters if kind in ("allow_all", "admit") else [limiters[asked["limiter"]]]
    each = [{"key": key, **options, **{name: value for name, value in one.items() if name != "kind"}}
            for key, one in zip(asked["keys"], chosen)]
    for one in each:
        if "block_for" in one:
            one["block"] = one.pop("block_for")
    if kind == "hold":
        each[0].setdefault("ttl", "30s")
    if kind in ("refund", "block", "unblock"):
        each = [{"key": asked["keys"][0], **options}]
    if kind == "refund":
        each[0]["cost"] = each[0].pop("units")
    connection = CALLS[asked["id"]] = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", f"/v1/{kind}", json.dumps(each if kind in ("allow_all", "admit") else each[0]),
                       {"content-type": "application/json"})
    response = connection.getresponse()
    found = json.loads(response.read())
    if response.status not in (200, 429):
        kinds = {503: "unavailable", 400: "invalid", 502: "module_missing" if "module" in str(found) else "refused"}
        return {"error": kinds.get(response.status, "other"), "message": f"{response.status} {found}"}
    return {"ok": told(found)}


def told(found):
    if found.get("retry_after") == -1:
        found["retry_after"] = "never"  # JSON has no infinity: -1 is documented
    if "each" in found:
        return found | {"each": [told(one) for one in found["each"]]}
    return {"remaining": None, "reset_after": None, "value": found.get("refunded")} | found


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
    away = re.search(r"^swlimit_client_server_unavailable\{[^}]*\} 1", text, re.M)
    return {"state": "unavailable" if away else "up", "reason": None}


def run(asked):
    try:
        do = asked["do"]
        found = call(asked) if do == "call" else {"ok": {"limiters": start, "health": health}.get(do, end)(asked)}
    except Exception as error:
        kind = "invalid" if isinstance(error, ValueError) else "cancelled" if asked["id"] in CALLS else "refused"
        found = {"error": kind, "message": repr(error)}
    say(id=asked["id"], **found)


for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "hello":
        say(id=asked["id"], ok=["cancel", "cancel_refund", "sentinel", "cluster", "url", "logs", "partial", "ids",
                                "tracking"])
    elif asked["do"] == "statistics":
        say(id=asked["id"], error="none", message="no statistics of one limiter")
    elif asked["do"] == "cancel":
        CALLS[asked["call"]].sock.shutdown(socket.SHUT_RDWR)
    else:
        threading.Thread(target=run, args=(asked,), daemon=True).start()
for process, *_ in DAEMONS.values():
    process.terminate()
