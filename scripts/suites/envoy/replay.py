"""Ask swlimitd what the tests of envoyproxy/ratelimit ask, as its environment variables and files make it."""

import itertools
import json
import re
import shutil
import subprocess
import time
from collections import Counter
from contextlib import contextmanager

import grpc
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suites.envoy import cases
from support.control_plane import ControlPlane
from support.daemon import Daemon, FromEnvironment, descriptor
from support.server import ROOT, free_port
from support.waiting import eventually

REPOSITORY, COMMIT = "https://github.com/envoyproxy/ratelimit", "f2fb15770f7fd1c88ca6c3a1b58ee513917ace96"
RUNTIME = "test/integration/runtime/current/ratelimit"


def checkout(repository, commit, *paths):
    """A folder with a repository at a commit, of which only `paths` are checked out if there are any."""
    folder = ROOT / ".cache/suites" / repository.split("/", 3)[3].replace("/", "-")
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--filter=blob:none", "--no-checkout", repository, folder],
                       check=True)
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", commit, "--", *(paths or ["."])], check=True)
    return folder


def texts(paths):
    """Files of the checkout, each under a name of its own."""
    folder = checkout(REPOSITORY, COMMIT)
    return {f"{number}-{path.rsplit('/', 1)[1]}": (folder / path).read_text() for number, path in enumerate(paths)}


def made(*descriptors):
    return {"made.yaml": json.dumps({"domain": "d", "descriptors": descriptors})}  # JSON is YAML


def checked(files):
    """Whether files load: `--check` takes what starts."""
    daemon = Daemon()
    try:
        for name, text in files.items():
            (daemon.folder / name).write_text(text)
        daemon.write_settings(limits=list(files))
        return daemon.run("--check")[0] == 0
    finally:
        shutil.rmtree(daemon.folder)


def unit_of(limit):
    return RateLimitResponse.RateLimit.Unit.Name(limit.unit)


def status_told(status):
    """One status as the tables write it."""
    name = RateLimitResponse.Code.Name(status.code)
    if status.HasField("current_limit"):
        limit = status.current_limit
        return f"{name} {status.limit_remaining}/{limit.requests_per_unit} {unit_of(limit)}"
    return f"{name} unlimited" if status.limit_remaining == 2**32 - 1 else name


def told(reply):
    """A reply as the tables write it."""
    return f"{RateLimitResponse.Code.Name(reply.overall_code)} [{'; '.join(map(status_told, reply.statuses))}]"


def found(daemon, domain, words, override=None):
    """The limit that a descriptor finds, its name, and the name that its metrics have."""
    before = daemon.metrics("swlimitd_hits_total")
    missing = daemon.metrics("swlimitd_unmatched_total")["domain",]
    reply = daemon.ask(descriptor(words, limit=override), hits=1, domain=domain)
    status, after = reply.statuses[0], daemon.metrics("swlimitd_hits_total")
    if daemon.metrics("swlimitd_unmatched_total")["domain",] > missing:
        return cases.NO_DOMAIN
    seen = []
    if status.HasField("current_limit"):
        limit = status.current_limit
        seen = [f"{limit.requests_per_unit} {unit_of(limit)}", limit.name]
    elif status.limit_remaining == 2**32 - 1:
        seen = ["unlimited"]
    seen += [".".join(labels) for labels, value in after.items() if value > before.get(labels, 0)]
    if reply.HasField("dynamic_metadata"):
        metadata = json_format.MessageToDict(reply.dynamic_metadata).get("metadata")
        seen += [re.sub('[" ]', "", json.dumps(metadata))[1:-1]] if metadata else []
    return " ".join(filter(None, seen)) or cases.NONE


class Replay:
    """All cases, on one server, each with keys of its own."""

    def __init__(self, book, server):
        self.compare, self.server = book.compare, server
        self.numbers = map(str, itertools.count())

    @contextmanager
    def started(self, files, **variables):
        """swlimitd with these files and variables, on an empty server."""
        self.server.cli("FLUSHALL")
        with FromEnvironment(files, self.server, **variables) as daemon:
            yield daemon

    def files(self):
        for paths, loads in cases.FILES:
            self.compare("files that load or are refused", " + ".join(paths), loads, checked(texts(paths)))

    def rules(self):
        area = "the limit that is found, and its name in metrics"
        for name, paths, domain, asked in cases.RULES:
            with self.started(texts(paths), RESPONSE_DYNAMIC_METADATA="true") as daemon:
                for words, limit in asked:
                    self.compare(area, f"{name}: {words}", limit, found(daemon, domain, words))
        for name, descriptors, asked in cases.INLINE_RULES:
            with self.started(made(*descriptors)) as daemon:
                for words, limit in asked:
                    self.compare(area, f"{name}: {words}", limit, found(daemon, "d", words))
        with self.started(texts(["test/config/basic_config.yaml"])) as daemon:
            for words, limit, expected in cases.OVERRIDES:
                self.compare(area, f"TestConfigLimitOverride: {words}", expected,
                             found(daemon, "test-domain", words, limit))

    def rows(self):
        """The integration test that all of its kinds of servers and settings go through, and those of files."""
        area, folder = "requests in a row", f"{RUNTIME}/config"
        files = texts([f"{folder}/{name}.yaml" for name in ("another", "basic", "share_threshold")])
        for name, suffix, variables in (
                ("testBasicBaseConfig", "", {}),
                ("testBasicBaseConfig, a prefix", "", {"CACHE_KEY_PREFIX": "prefix:"}),
                ("testBasicBaseConfig, a local cache", "_local", {"LOCAL_CACHE_SIZE_IN_BYTES": "1000"})):
            with self.started(files, **variables) as daemon:
                self.row(area, name, suffix, daemon)
        with self.started(files) as daemon:
            self.shared(area, daemon)
            reload = daemon.config / "reload.yaml"
            text, = texts([f"{RUNTIME}/reload.yaml"]).values()
            asked = "key1=foo"
            seen = [told(daemon.ask("block=foo", hits=1, domain="reload"))]
            for change in (lambda: reload.write_text(text), reload.unlink):
                loaded = daemon.metrics("swlimitd_configurations_total")["valid",]
                change()
                eventually(lambda loaded=loaded: daemon.metrics("swlimitd_configurations_total")["valid",] > loaded)
                seen.append(told(daemon.ask(asked, hits=1, domain="reload")))
            self.compare(area, "testConfigReload", ["OK [OK]", "OK [OK 49/50 SECOND]", "OK [OK]"], seen)

    def row(self, area, name, suffix, daemon):
        self.compare(area, f"{name}: no such domain", "OK [OK]", told(daemon.ask("hello=world", hits=1, domain="foo")))
        self.compare(area, f"{name}: the first request", "OK [OK 49/50 SECOND]",
                     told(daemon.ask(f"key1{suffix}=foo", hits=1, domain="basic")))

        def repeated(times, *keys):
            value = next(self.numbers)
            return [told(daemon.ask(*(f"{key}{suffix}={value}" for key in keys), hits=1, domain="another"))
                    for _ in range(times)]

        self.compare(area, f"{name}: 25 requests, 20 allowed",
                     [f"OK [OK {19 - number}/20 MINUTE]" for number in range(20)]
                     + ["OVER_LIMIT [OVER_LIMIT 0/20 MINUTE]"] * 5, repeated(25, "key2"))
        over, locally = self.denials(daemon, f"key2{suffix}")
        self.compare(area, f"{name}: over_limit", 5, over)
        self.compare(area, f"{name}: over_limit_with_local_cache", bool(suffix), locally > 0)
        seen = repeated(15, "key2", "key3")
        granted = [f"OK [OK {19 - number}/20 MINUTE; OK {9 - number}/10 HOUR]" for number in range(10)]
        self.compare(area, f"{name}: two limits, both allow", granted, seen[:10])
        self.compare(area, f"{name}: two limits, one denies",
                     [f"OVER_LIMIT [OK {19 - number}/20 MINUTE; OVER_LIMIT 0/10 HOUR]" for number in range(10, 15)],
                     seen[10:])
        self.compare(area, f"{name}: two limits, one denies, codes", ["OVER_LIMIT [OK; OVER_LIMIT]"] * 5,
                     [re.sub(r" \d+/\d+ [A-Z]+", "", one) for one in seen[10:]])
        first = daemon.ask(f"key4{suffix}=durTest", hits=1, domain="another").statuses[0].duration_until_reset
        time.sleep(2)
        second = daemon.ask(f"key4{suffix}=durTest", hits=1, domain="another").statuses[0].duration_until_reset
        self.compare(area, f"{name}: DurationUntilReset", "less after 2 s",
                     "less after 2 s" if second.seconds < first.seconds else "not less after 2 s")

    @staticmethod
    def denials(daemon, rule):
        """How many a rule denied, and how many of them near the request."""
        counts = {labels: value for labels, value in daemon.metrics("swlimitd_decisions_total").items()
                  if labels[1] == rule and labels[2] == "denied"}
        return (sum(counts.values()), sum(value for labels, value in counts.items() if labels[3] == "cache"))

    def shared(self, area, daemon):
        domain = "share-threshold-test"
        seen = [daemon.codes("files=files/a.pdf", hits=1, domain=domain)[0] for _ in range(10)]
        self.compare(area, "TestShareThreshold: shared", [*["OK"] * 10, "OVER_LIMIT [OVER_LIMIT 0/10 HOUR]"],
                     [*seen, told(daemon.ask("files=files/b.csv", hits=1, domain=domain))])
        self.compare(area, "TestShareThreshold: not shared", ["OK [OK 9/10 HOUR]"] * 10,
                     [told(daemon.ask(f"files_no_share=files_no_share/{number}", hits=1, domain=domain))
                      for number in range(10)])

    def modes(self):
        area = "shadow and quota modes, metadata, headers"
        for name, variables, keys, used_up, codes in cases.MODES:
            with self.started(made(*cases.MODE_RULES), **variables) as daemon:
                self.use_up(daemon, used_up)
                self.compare(area, name, tuple(codes), daemon.codes(*(f"{key}=x" for key in keys), hits=1))
        for name, keys, used_up, metadata in cases.METADATA_CASES:
            with self.started(made(*cases.METADATA_RULES), **cases.METADATA) as daemon:
                self.use_up(daemon, used_up)
                reply = daemon.ask(*(f"{key}=x" for key in keys), hits=1)
                self.compare(area, name, metadata, json_format.MessageToDict(reply.dynamic_metadata)["metadata"])
        custom = {f"LIMIT_{name}_HEADER": f"A-Ratelimit-{name.title()}" for name in ("LIMIT", "REMAINING", "RESET")}
        for name, prefix, variables in (("TestServiceWithCustomRatelimitHeaders", "A-Ratelimit", custom),
                                        ("TestServiceWithDefaultRatelimitHeaders", "RateLimit", {})):
            with self.started(made(cases.rule(10, key="foo")), LIMIT_RESPONSE_HEADERS_ENABLED="true",
                              **variables) as daemon:
                daemon.ask("foo=bar", hits=10)
                reply = daemon.ask("foo=bar", "hello=world", hits=1)
                headers = {header.key: header.value for header in reply.response_headers_to_add}
                reset = int(headers.pop(f"{prefix}-Reset"))
                self.compare(area, f"{name}: Limit, Remaining", {f"{prefix}-Limit": "10", f"{prefix}-Remaining": "0"},
                             {key: value for key, value in headers.items() if key != "Retry-After"})
                self.compare(area, f"{name}: other headers", [], [key for key in headers if key == "Retry-After"])
                self.compare(area, f"{name}: Reset", "within the minute",
                             "within the minute" if reset <= 60 else "later than a minute")
        with self.started(made(cases.rule(10, key="foo"), {"key": "baz", "rate_limit": {"unlimited": True}})) as daemon:
            self.compare(area, "TestUnlimited", "OK [OK 9/10 MINUTE; OK; OK unlimited]",
                         told(daemon.ask("foo=bar", "hello=world", "baz=qux", hits=1)))

    @staticmethod
    def use_up(daemon, keys):
        for key in keys:
            while daemon.ask(f"{key}=x", hits=1).statuses[0].limit_remaining:
                pass

    def counted(self):
        for name, limit, before, hits, answer, counts in cases.COUNTED:
            with self.started(made(cases.rule(limit, "hour", key="key"))) as daemon:
                for _ in range(before):
                    daemon.ask("key=x", hits=1)
                counted = self.counts(daemon)
                case = f"{name}: {hits} hits after {before} of {limit}"
                self.compare("hits", case, answer, status_told(daemon.ask("key=x", hits=hits).statuses[0]))
                now = self.counts(daemon)
                self.compare("metrics of hits", f"{case}: all, over, near, within", counts,
                             tuple(int(after - before) for before, after in zip(counted, now)))
        with self.started(made(cases.rule(10, "hour", key="a"), cases.rule(10, "day", key="b"))) as daemon:
            for key in ("a", "b"):
                daemon.ask(f"{key}=x", hits=10)
                daemon.ask(f"{key}=x", hits=1)
            self.compare("hits", "TestRedis: a look at a limit that is over, and a hit of another that is over",
                         "OVER_LIMIT [OVER_LIMIT 0/10 HOUR; OVER_LIMIT 0/10 DAY]",
                         told(daemon.ask(descriptor("a=x", hits=0), descriptor("b=x", hits=1))))
            self.compare("hits", "TestRedis: none matches, and one that is over",
                         "OVER_LIMIT [OK; OVER_LIMIT 0/10 HOUR]",
                         told(daemon.ask(descriptor("c=x", hits=0), descriptor("a=x", hits=1))))
        with self.started(made(cases.rule(15, "hour", key="a"), cases.rule(14, "hour", key="b"))) as daemon:
            daemon.ask("a=x", "b=x", hits=10)
            for (first, second), answer in cases.STEPS:
                reply = daemon.ask(descriptor("a=x", hits=first), descriptor("b=x", hits=second))
                self.compare("hits", f"TestOverLimitWithStopCacheKeyIncrementWhenOverlimitConfig: {first}, {second}",
                             answer, told(reply))

    @staticmethod
    def counts(daemon):
        """Hits in all, and decisions over, near and within the limit."""
        decisions = Counter()
        for (_, rule, decision, _), value in daemon.metrics("swlimitd_decisions_total").items():
            if rule == "key":
                decisions[decision] += value
        hits, near = (daemon.metrics(f"swlimitd_{name}_total")["d", "key"] for name in ("hits", "near_limit"))
        return hits, decisions["denied"], near, decisions["granted"]

    def scripts(self):
        area = "its scripts, as its Envoy asks"
        files = texts(["examples/ratelimit/config/config.yaml", "examples/ratelimit/config/example.yaml"])
        for name, asked in cases.SCRIPTS:
            with self.started(files) as daemon:
                for number, (descriptors, code) in enumerate(asked, 1):
                    self.compare(area, f"{name}: request {number}: {descriptors}", code,
                                 daemon.codes(*descriptors, hits=1, domain="rl")[0])
                if name.startswith("value-included"):
                    self.compare(area, f"{name}: metrics", 1, self.denials(daemon, "unspec_unspecified_value")[0])
        for name, services, codes in cases.TOKEN_SCRIPTS:
            with self.started(files, RESPONSE_DYNAMIC_METADATA="true") as daemon:
                for number, code in enumerate(codes, 1):
                    reply = daemon.ask(*(descriptor(f"service={one}", hits=0) for one in services), domain="rl")
                    self.compare(area, f"{name}: request {number}", code, told(reply).split()[0])
                    if reply.overall_code == 1:
                        metadata = json_format.MessageToDict(reply.dynamic_metadata)["metadata"]
                        daemon.ask(f"service={metadata['service_with_quota']['name']}", hits=1, domain="rl")

    def errors(self):
        area = "errors, health, JSON"
        with self.started(made(cases.rule(1, "hour", key="one"))) as daemon:
            for name, words, domain, text in (
                    ("TestEmptyDomain", ["a=b"], "", "rate limit domain must not be empty"),
                    ("TestEmptyDescriptors", [], "d", "rate limit descriptor list must not be empty")):
                error = self.error(daemon, *words, domain=domain)
                self.compare(area, f"{name}: an error", True, bool(error))
                self.compare(area, f"{name}: its text", text, error)
            asked = json.dumps({"domain": "d", "descriptors": [{"entries": [{"key": "one", "value": "x"}]}]})
            for body, status, code in (("", 400, None), ("}", 400, None), ('{"domain": "d"}', 400, None),
                                       (asked, 200, "OK"), (asked, 429, "OVER_LIMIT")):
                answered, reply = daemon.json(body)
                seen = (answered, reply.get("overallCode") if isinstance(reply, dict) else None)
                self.compare(area, f"TestJsonHandler: {body[:20]}", (status, code), seen)
            self.compare(area, "TestHealthCheck", (200, "SERVING"), self.health(daemon))
        with FromEnvironment(made(cases.rule(1, key="one")), self.server,
                             REDIS_URL=f"127.0.0.1:{free_port()}") as daemon:
            self.compare(area, "TestCacheError: an error", True, bool(self.error(daemon, "one=x", domain="d")))
            self.compare(area, "TestHealthCheck, TestGrpcHealthCheck: Redis is away", (500, "NOT_SERVING"),
                         self.health(daemon))
        self.compare(area, "TestInitialLoadError: files that are wrong at the start", "runs, and answers errors",
                     "runs" if checked({"wrong": "domain: ["}) else "ends")

    def resources(self):
        with self.discovering() as (daemon, control_plane):
            for name, resources, limits in cases.RESOURCES:
                control_plane.publish(*resources)
                lines = daemon.get("/rlconfig")[1].splitlines()
                seen = sorted(re.sub(r": (\d+) per (\w+).*", r" \1 \2", line) for line in lines)
                self.compare("resources of a control plane", name, limits, seen)

    @contextmanager
    def discovering(self):
        """swlimitd with a control plane."""
        with ControlPlane() as control_plane, self.started(
                {}, CONFIG_TYPE="GRPC_XDS_SOTW", FORCE_START_WITHOUT_INITIAL_CONFIG="true",
                CONFIG_GRPC_XDS_SERVER_URL=f"127.0.0.1:{control_plane.port}") as daemon:
            yield daemon, control_plane

    @staticmethod
    def error(daemon, *words, domain):
        try:
            daemon.ask(*words, hits=1, domain=domain)
        except grpc.RpcError as error:
            return error.details()

    @staticmethod
    def health(daemon):
        """What is answered over HTTP and over gRPC."""
        with daemon.channel() as channel:
            asked = health_pb2.HealthCheckRequest(service="ratelimit")
            status = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10).status
        return daemon.get("/healthcheck")[0], health_pb2.HealthCheckResponse.ServingStatus.Name(status)
