"""The page at `/`, as a browser shows it."""

import json
import re
import shlex
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from axe_core_python.selenium import Axe
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from support import browser as browsers
from support.waiting import eventually

# A browser computes more than all other tests of swlimitd together.
pytestmark = pytest.mark.long

SECONDS = 20
# In a rule's name, and in a key; as markup it would say so.
HOSTILE = "<img src=x onerror=\"document.title='run'\">&lt;'"
LIMITS = """
domain: d
descriptors:
  - {key: three, rate_limit: {unit: day, requests_per_unit: 3, block: 1s}}
  - {key: local, rate_limit: {unit: day, requests_per_unit: 2, mode: local}}
  - {key: direct, rate_limit: {unit: day, requests_per_unit: 3, mode: direct}}
  - {key: shadow, shadow_mode: true, rate_limit: {window: 90s, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: nothing, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: HOSTILE, rate_limit: {unit: day, requests_per_unit: 1}}
""".replace("HOSTILE", json.dumps(HOSTILE))
TOKEN = "correct-horse"
HOSTILE_DESCRIPTOR = RateLimitDescriptor(entries=[{"key": HOSTILE, "value": HOSTILE}])


@pytest.fixture
def server(start):
    """A server of one's own: who is denied most is remembered by it, whatever keys are flushed."""
    return start()


@pytest.fixture(scope="module")
def browser():
    driver = browsers.start()
    yield driver
    driver.quit()


class Page:
    """The page of a daemon, and what somebody sees and does there."""

    def __init__(self, browser, daemon, status="Running."):
        self.browser, self.daemon = browser, daemon
        browsers.look_like(browser)
        browser.get_log("browser")
        browser.get(f"http://127.0.0.1:{daemon.http_port}/")
        self.sees("status", status)

    def find(self, name):
        return self.browser.find_element(By.ID, name)

    def sees(self, name, text):
        """Wait until an element says this, a regular expression, with a space for every gap."""
        shown = None

        def is_there(_):
            nonlocal shown
            shown = " ".join(self.find(name).text.split())
            return re.search(text, shown)

        try:
            WebDriverWait(self.browser, SECONDS, 0.05).until(is_there)
        except Exception:
            pytest.fail(f"{name} says {shown!r}, not {text!r}", pytrace=False)

    def points_at(self, found):
        """Move the pointer to an element, which is found again where the page has been drawn again meanwhile."""
        waiting = WebDriverWait(self.browser, SECONDS, 0.05, [StaleElementReferenceException])
        waiting.until(lambda browser: ActionChains(browser).move_to_element(found()).perform() or True)

    def rows(self, name):
        return [[cell.text for cell in row.find_elements(By.XPATH, "*")]
                for row in self.find(name).find_elements(By.TAG_NAME, "tr")]

    def type(self, name, text):
        field = self.find(name)
        field.clear()
        field.send_keys(text)

    def press(self, form, word):
        self.find(form).find_element(By.XPATH, f".//button[text()='{word}']").click()

    def look_up(self, key):
        self.type("key", key)
        self.press("look-up", "Look up")
        self.sees("said", "(holds|no such key|needed|work)")


@pytest.fixture
def open_page(browser, start_daemon, server):
    def open_page(limits=LIMITS, server=server, status="Running.", **settings):
        # The page of a test before has asked a daemon that is gone: its messages are not this page's.
        browser.get("about:blank")
        browser.get_log("browser")
        return Page(browser, start_daemon(limits, server, **settings), status)
    return open_page


@pytest.fixture
def tokens(tmp_path):
    (tmp_path / "tokens").write_text(TOKEN + "\n")
    return {"api": {"tokens": str(tmp_path / "tokens")}}


def busy(page):
    """Decisions of every kind, and a key that is shown."""
    page.daemon.codes(HOSTILE_DESCRIPTOR)
    for _ in range(5):
        for key in ("three", "local", "shadow"):
            page.daemon.codes(f"{key}=ann")
    page.daemon.codes(HOSTILE_DESCRIPTOR)
    page.sees("top", "three=ann")
    page.look_up("{d}|three=ann|1d")


def test_counts_are_live(open_page, start):
    page = open_page(server=start())
    page.sees("by-rule-note", "No rule has decided")
    page.sees("top-note", "No key was denied")
    for _ in range(5):
        page.daemon.codes("three=ann")
    page.sees("by-rule", "three d 3 2 0")
    assert [page.find(name).text for name in ("granted", "denied", "shadowed")] == ["3", "2", "0"]
    label = page.find("decisions-chart").get_attribute("aria-label")
    assert label == "Granted 3 and denied 2 in the last hour"
    page.daemon.codes("local=ann")
    page.sees("by-rule", "local d 1 0")
    sources = {row[0].split("\n")[0]: row[1:] for row in page.rows("sources")}
    assert sources["local"] == ["1", "17 %"] and int(sources["server"][0]) >= 4
    assert sum(int(decisions) for decisions, _ in sources.values()) == 6
    assert re.fullmatch(r"[\d.]+ (µs|ms)", page.find("median").text)
    assert page.find("latency-chart").get_attribute("aria-label").startswith("6 requests in the last hour")
    assert page.find("failure").text == "0"
    assert [row[0] for row in page.rows("top")] == ["{d}|three=ann|1d"]
    drawn = page.browser.find_elements(By.CSS_SELECTOR, "#decisions-chart rect")
    assert {bar.get_attribute("class") for bar in drawn} == {"granted", "denied"}
    assert all(float(bar.get_attribute("height")) > 0 for bar in drawn)


def test_what_shadow_mode_does_not_deny_is_not_denied(open_page):
    page = open_page()
    for _ in range(4):
        assert page.daemon.codes("shadow=ann")[0] == "OK"
    page.sees("by-rule", "shadow d, in shadow mode: denies nothing 1 0 3")
    assert [page.find(name).text for name in ("granted", "denied", "shadowed")] == ["1", "0", "3"]
    assert bars(page, "shadowed") and not bars(page, "denied")


def test_everything_in_shadow_mode(open_page):
    page = open_page(status="Shadow mode", shadow_mode=True)
    for _ in range(5):
        assert page.daemon.codes("three=ann")[0] == "OK"
    page.sees("by-rule", "three d 3 0 2")
    assert page.find("denied").text == "0"


def test_an_hour_and_five_minutes(open_page):
    page = open_page()
    page.daemon.codes("three=ann")
    page.sees("decisions-scale", "Each bar is 1m.")
    choose = "//button[text()='Last {}']"
    page.browser.find_element(By.XPATH, choose.format("five minutes")).click()
    page.sees("decisions-scale", "Each bar is 5s.")
    assert page.find("decisions-chart").get_attribute("aria-label").endswith("in the last five minutes")
    axes = {axis.text for axis in page.browser.find_elements(By.CSS_SELECTOR, ".axis")}
    assert {axis.split()[0] for axis in axes} == {"5"}
    page.browser.find_element(By.XPATH, choose.format("hour")).click()
    page.sees("decisions-scale", "Each bar is 1m.")


def acquire(page, body):
    page.daemon.http("/v1/acquire", body, headers={"Content-Type": "application/json"})


def test_who_waits(open_page, server):
    page = open_page()
    assert page.find("waits").text == "0 requests wait for a turn now."
    waiting = {"key": "queue", "limit": 1, "window": "30s", "timeout": "1m"}
    waits = threading.Thread(target=acquire, args=(page, waiting))
    acquire(page, waiting)
    waits.start()
    page.sees("waiting", r"^queue 1 \d+ s$")
    page.sees("waits", "^1 request waits for a turn now. 1 request that could wait ended in the last hour: median")
    server.cli("DEL", "queue")
    waits.join()
    page.sees("waiting-note", "None.")
    assert page.find("latency-chart").get_attribute("aria-label") == "No requests in the last hour"


def test_rules_in_force(open_page):
    page = open_page()
    shown = {row[0].split("\n")[0]: row[1:] for row in page.rows("rules")}
    assert shown["three"] == ["3 per 1d, resolution 2h, blocks for 1s", "cached; on failure: error"]
    assert shown["local"] == ["2 per 1d, resolution 2h", "local; on failure: error"]
    assert shown["shadow"] == ["1 per 90s, resolution 7500ms", "cached; on failure: error\nshadow mode: denies nothing"]
    assert shown["free"] == ["unlimited", ""]
    assert shown["nothing"][0].endswith("limit 0: denies every request")
    page.daemon.write_limits("{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 7}}]}")
    page.sees("rules", "7 per 1d")
    assert [row[0] for row in page.rows("rules")] == ["k\nd"]


def test_names_are_never_markup(open_page):
    page = open_page()
    for _ in range(2):
        page.daemon.codes(HOSTILE_DESCRIPTOR)
    key = "{d}|" + "=".join([HOSTILE.replace("=", "%3D")] * 2) + "|1d"
    page.sees("top", re.escape(key))
    assert [HOSTILE, "d"] in [row[0].split("\n") for row in page.rows("by-rule")]
    page.find("top").find_element(By.TAG_NAME, "button").click()
    page.sees("said", "holds 1 unit of")
    assert page.find("held-key").text == key
    assert page.browser.title == "swlimitd"
    assert not page.browser.find_elements(By.CSS_SELECTOR, "img, main script")


def test_one_key(open_page, server):
    page = open_page()
    page.look_up("nobody")
    assert page.find("said").text == "There is no such key on the server."
    server.cli("SWLIMIT.ALLOW", "somebody", 10, "1h", "5m", "COST", 4)
    page.look_up("somebody")
    assert page.find("said").text == "The server holds 4 units of this key."
    facts = page.find("held-facts").text.split("\n")
    assert facts[:8] == ["units", "4", "window", "1h", "resolution", "5m", "blocked", "no"]
    page.press("block", "Block")
    page.sees("said", "Blocked until")
    page.sees("held-facts", "until")
    assert page.browser.switch_to.active_element.text == "Block"
    assert server.cli("SWLIMIT.ALLOW", "somebody", 10, "1h", "5m").split()[0] == "0"
    page.press("block", "Unblock")
    page.sees("said", "not blocked any more")
    assert server.cli("SWLIMIT.ALLOW", "somebody", 10, "1h", "5m").split()[0] == "1"
    page.type("duration", "soon")
    page.press("block", "Block")
    page.sees("said", "That did not work: .*a duration is written such as")


def test_who_holds_a_key(open_page, server):
    page = open_page()
    server.cli("SWLIMIT.HOLD", "jobs", 5, "10m", HOSTILE, "COST", 2)
    server.cli("SWLIMIT.HOLD", "jobs", 5, "10m", "second")
    page.look_up("jobs")
    assert page.find("said").text == "The server has 2 holds of this key."
    assert [row[:2] for row in page.rows("holders")] == [[HOSTILE, "2"], ["second", "1"]]
    page.press("holders", "Free")
    page.sees("said", "It is freed.")
    assert [row[0] for row in page.rows("holders")] == ["second"]
    assert server.cli("SWLIMIT.RELEASE", "jobs", HOSTILE) == "0"


def test_what_is_used_of_a_budget(open_page, server):
    page = open_page()
    server.cli("SWLIMIT.BUDGET", "plan", 10, (int(server.cli("TIME").split()[0]) + 3600) * 1000, "COST", 4)
    page.look_up("plan")
    assert page.find("said").text == "The server holds 4 units of this key."
    assert page.find("held-facts").text.split("\n")[:3] == ["units", "4", "until"]
    assert not page.find("block").is_displayed()


def test_keys_have_the_prefix(open_page, server):
    page = open_page(prefix="p:")
    page.look_up("p:ann")
    page.press("block", "Block")
    page.sees("said", "Blocked until")
    assert server.cli("EXISTS", "p:ann") == "1"
    page.look_up("ann")
    page.press("block", "Block")
    page.sees("said", "keys of swlimitd begin with p:")
    assert server.cli("EXISTS", "ann") == "0"


def test_keys_need_the_token(open_page, tokens, server):
    page = open_page(**tokens)
    server.cli("SWLIMIT.BLOCK", "somebody", "1h")
    for _ in range(4):
        page.daemon.codes("three=ann")
    page.sees("by-rule", "three")  # what names nobody is shown
    page.sees("top-note", "Keys need a token of the API.")
    assert page.rows("top") == []
    for wrong in ("", "wrong"):
        page.type("token", wrong)
        page.press("token-form", "Use")
        page.look_up("somebody")
        assert page.find("said").text == "A token is needed that is known here."
    status, _, text = page.daemon.http("/page/state")
    assert status == 200 and "ann" not in text

    page.type("token", TOKEN)
    page.press("token-form", "Use")
    page.sees("top", "three=ann")
    page.look_up("somebody")
    page.press("block", "Unblock")
    page.sees("said", "not blocked any more")
    assert server.cli("EXISTS", "somebody") == "0"
    page.press("block", "Block")
    page.sees("said", "Blocked until")

    page.type("token", "")
    page.press("token-form", "Use")
    page.press("block", "Unblock")
    page.sees("said", "A token is needed that is known here.")
    assert server.cli("EXISTS", "somebody") == "1"


def test_it_says_when_something_is_away(open_page, start):
    server = start()
    page = open_page(server=server)
    server.stop()
    page.sees("status", "The counting server is unavailable")
    page.daemon.stop()
    page.sees("status", r"swlimitd does not answer. What is shown is from \d")
    page.daemon.start()
    page.sees("status", "The counting server is unavailable")


def test_it_says_when_requests_fail(open_page, server, tokens):
    page = open_page(**tokens)
    server.cli("SET", "{d}|three=ann|1d", "other")
    with pytest.raises(grpc.RpcError):
        page.daemon.ask("three=ann")
    page.sees("status", r"^[\d.]+ requests per second fail: the server refuses commands$")  # errors may name keys
    page.type("token", TOKEN)
    page.press("token-form", "Use")
    page.sees("status", r"^[\d.]+ requests per second fail: WRONGTYPE .*")
    server.cli("DEL", "{d}|three=ann|1d")
    page.sees("status", "^Running.$")


def bars(page, kind):
    return page.browser.find_elements(By.CSS_SELECTOR, f"#decisions-chart .{kind}")


def test_outages_and_errors_are_drawn(open_page, start):
    server = start()
    page = open_page(server=server, timeout="50ms")
    assert page.find("errors").text == "0" and not bars(page, "errors") and not bars(page, "outage")
    server.stop()

    def fails():
        with pytest.raises(grpc.RpcError):
            page.daemon.ask("three=ann")
        return bars(page, "errors") and bars(page, "outage")

    eventually(fails)
    page.sees("errors", r"[1-9]")
    page.sees("status", rf"The counting server is unavailable. .*127.0.0.1:{server.port}.*: .+ Each limit decides")
    page.sees("about", rf"127.0.0.1:{server.port}\S* is unavailable since \d")
    label = page.find("decisions-chart").get_attribute("aria-label")
    assert re.search(r"[1-9]\d* without a decision; a counting server was unavailable", label)
    page.points_at(lambda: bars(page, "errors")[-1])
    page.sees("decisions-point", r"\d+:\d+.*, 1m: 0 granted \(0/s\), 0 denied \(0/s\), [1-9]\d* without a decision")
    server.start()
    page.sees("about", rf"127.0.0.1:{server.port}\S* is up, last reply after")
    page.sees("status", "^Running.$")
    assert bars(page, "outage")  # it goes on being seen


def test_a_refused_configuration(open_page, tokens):
    page = open_page(**tokens)
    page.sees("about", rf"^{socket.gethostname()}, up for \d+ s; .*; configuration [0-9a-f]{{16}} read \d+ s ago.$")
    assert not page.find("refused").is_displayed()
    page.daemon.write_limits("{domain: d, descriptors: [{key: wrong, rate_limit: {unit: minutes}}]}")
    page.sees("refused", r"^The configuration of \d.* is refused. The one in force was read at \d")  # no text of files
    page.type("token", TOKEN)
    page.press("token-form", "Use")
    page.sees("refused", r"is refused: .*limits.yaml:1:\d+: 'minutes' is not a unit of time. The one in force")
    assert [HOSTILE, "d"] in [row[0].split("\n") for row in page.rows("rules")]
    page.daemon.write_limits("{domain: d, descriptors: [{key: right, rate_limit: {unit: day, requests_per_unit: 7}}]}")
    page.sees("rules", "7 per 1d")
    assert not page.find("refused").is_displayed()


def test_unmatched_traffic(open_page):
    page = open_page()
    assert page.find("unmatched").text == "0" and page.find("unmatched-note").text == ""
    page.daemon.codes("nobody=x", "nobody=y")
    page.daemon.codes("three=x", domain="other")
    assert page.daemon.http("/auth")[0] == 200
    page.sees("unmatched", "4")
    assert page.find("unmatched-note").text == (
        "Granted because nothing limits them: 1 of an unknown domain, 2 without a rule, 1 without a policy.")


def test_keys_denied_here(open_page):
    """Known denials, of which the server never hears."""
    page = open_page()
    for _ in range(20):
        page.daemon.codes("three=ann")
    page.sees("here", r"\{d\}\|three=ann\|1d (17 0|\d+ \d+)$")

    def counts(name):
        return sum(int(cell) for row in page.rows(name) for cell in row[1:])

    eventually(lambda: counts("here"), 17)
    assert counts("top") < 17
    page.find("here").find_element(By.TAG_NAME, "button").click()
    page.sees("said", "holds 3 units")


def test_rates_and_axes(open_page):
    page = open_page()
    for _ in range(6):
        page.daemon.codes("three=ann")
    page.sees("by-rule", "three d 3 3 0 0.1/s")
    page.sees("granted", "3")
    marks = [mark.text for mark in page.browser.find_elements(By.CSS_SELECTOR, "#decisions-chart ~ .mark")]
    assert len(marks) == 3 and marks[0] == "0" and all(re.fullmatch(r"0\.0[1-5]\d*/s", rate) for rate in marks[1:])
    lines = [mark.text for mark in page.browser.find_elements(By.CSS_SELECTOR, "#latency-chart ~ .mark")]
    assert lines == ["100 µs", "1 ms", "10 ms", "100 ms"]
    page.points_at(lambda: bars(page, "granted")[-1])
    page.sees("decisions-point", r"[1-3] granted \(0\.0\d+/s\)")
    page.points_at(lambda: page.browser.find_elements(By.CSS_SELECTOR, "#latency-chart .ranged")[-1])
    page.sees("latency-point", r"[1-6] requests?, median .*s, 99 % faster than .*s")


def test_a_filter(open_page):
    descriptors = ", ".join(f"{{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 0}}}}"
                            for number in range(1000, 1300))
    page = open_page(f"{{domain: many, descriptors: [{descriptors}]}}")
    page.sees("rules-note", "And 100 more")
    assert len(page.rows("rules")) == 20  # folded
    page.find("rules-more").click()
    page.sees("rules-more", "Show the first 20 only")
    eventually(lambda: len(page.rows("rules")), 200)
    page.daemon.codes("k1299=a", "k1001=a", domain="many")
    page.type("filter", "K1299")  # which is none of the first 200
    page.sees("rules", "^k1299 many [^k]*$")
    page.sees("by-rule", "^k1299 many 0 1 0 [^k]*$")
    page.sees("here", r"k1299=a\S+ \d \d$")
    page.type("filter", "nothing")
    page.sees("rules-note", "There is no such rule.")
    page.sees("by-rule-note", "No such rule decided")
    assert page.rows("rules") == page.rows("by-rule") == page.rows("here") == []


def test_names_are_readable_on_a_phone(open_page):
    name = "name-of-a-rule-as-usual"
    page = open_page(f"{{domain: shop, descriptors: [{{key: {name}, rate_limit: {{unit: day}}}}]}}")
    browsers.look_like(page.browser, 360)
    page.daemon.codes(f"{name}=ann", domain="shop")
    page.sees("by-rule", name)
    for table in ("by-rule", "rules"):
        heading = page.find(table).find_element(By.CSS_SELECTOR, "th")
        lines = page.browser.execute_script("""
            const range = document.createRange();
            range.selectNodeContents(arguments[0].firstChild);
            return new Set([...range.getClientRects()].map((line) => line.top)).size""", heading)
        assert (heading.text.split("\n")[0], lines) == (name, 1)


def test_without_a_server(open_page):
    page = open_page("{domain: d, descriptors: []}", None)
    assert page.find("status").text == "Running, without a counting server."
    page.look_up("somebody")
    page.sees("said", "this needs a server|needs a server")


def test_it_can_be_paused(open_page):
    page = open_page()
    page.find("pause").click()
    page.sees("status", "Paused at")
    assert page.find("pause").get_attribute("aria-pressed") == "true"
    page.daemon.codes("three=ann")
    page.browser.execute_async_script("setTimeout(arguments[0], 2500)")  # longer than between two updates
    assert page.find("granted").text == "0"
    page.find("pause").click()
    page.sees("granted", "1")
    page.sees("status", "Running.")


def test_focus_stays_while_rows_change(open_page):
    page = open_page()
    for _ in range(5):
        page.daemon.codes("direct=first")
    page.sees("top", "direct=first")
    page.browser.execute_script("""
        [...document.querySelectorAll("#top button")].find((one) => one.textContent.includes("first")).focus()""")
    for _ in range(9):
        page.daemon.codes("direct=second")
    page.sees("top", "direct=second.*direct=first")
    assert page.browser.switch_to.active_element.text == "{d}|direct=first|1d"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_everybody_can_read_it(open_page, tokens, width, scheme):
    page = open_page(**tokens)
    browsers.look_like(page.browser, width, prefers_color_scheme=scheme)
    page.type("token", TOKEN)
    page.press("token-form", "Use")
    busy(page)
    found = Axe().run(page.browser)
    assert not found["violations"], json.dumps(found["violations"], indent=1)
    assert len(found["passes"]) > 25
    wide = page.browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    ground = page.find("said").find_element(By.XPATH, "//body").value_of_css_property("background-color")
    assert (min(map(int, re.findall(r"\d+", ground)[:3])) > 200) == (scheme == "light")


def test_tables_and_controls_have_names(open_page):
    page = open_page()
    busy(page)
    tables = page.browser.find_elements(By.TAG_NAME, "table")
    assert len(tables) == 7
    for table in tables:
        assert table.find_element(By.TAG_NAME, "caption").get_attribute("textContent")
        columns = table.find_elements(By.CSS_SELECTOR, "thead th")
        assert columns and all(column.get_attribute("scope") == "col" for column in columns)
        for row in table.find_elements(By.CSS_SELECTOR, "tbody tr"):
            cells = row.find_elements(By.XPATH, "*")
            assert cells[0].get_attribute("scope") == "row" and len(cells) == len(columns)
    controls = page.browser.find_elements(By.CSS_SELECTOR, "button, input, svg[role], section")
    assert all(control.accessible_name for control in controls if control.is_displayed())
    assert [heading.tag_name for heading in page.browser.find_elements(By.CSS_SELECTOR, "h1, h2, h3, h4")] == [
        "h1", "h2", "h2", "h3", "h4", "h2", "h2", "h2"]


def test_nothing_comes_from_elsewhere(open_page):
    page = open_page()
    busy(page)
    here = f"http://127.0.0.1:{page.daemon.http_port}/"
    loaded = page.browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert loaded and all(address.startswith(here) for address in loaded)
    assert [line["message"] for line in page.browser.get_log("browser")] == []
    for path in ("/", "/page/page.js", "/page/state"):
        status, headers, _ = page.daemon.http(path)
        assert status == 200 and headers["X-Content-Type-Options"] == "nosniff"
        policy = dict(shlex.split(part)[:2] for part in headers["Content-Security-Policy"].split(";"))
        assert (policy["default-src"], policy["script-src"], policy["frame-ancestors"]) == ("none", "self", "none")
    page.browser.execute_script("""
        const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        document.body.append(script);""")
    assert page.browser.title == "swlimitd"


ATTEMPTS = """
const [daemon, done] = arguments;
const block = '{"key": "k", "duration": 3600}', quota = '{"key": "k", "limit": 0, "window": "1d", "block": "1h"}';
const envoys = '{"domain": "d", "descriptors": [{"entries": [{"key": "three"}], "hits_addend": 9}]}';
const types = ["application/json", "text/plain", "application/x-www-form-urlencoded"];
const tried = [];
for (const [path, body] of [["/v1/block", block], ["/v1/allow", quota], ["/json", envoys]]) {
  tried.push(fetch(daemon + path, {method: "POST", body, mode: "no-cors"}));
  tried.push(navigator.sendBeacon(daemon + path, body));
  for (const type of types) {
    tried.push(fetch(daemon + path, {method: "POST", body, headers: {"Content-Type": type}}));
    tried.push(navigator.sendBeacon(daemon + path, new Blob([body], {type})));
  }
}
for (const tag of ["img", "script", "iframe"])
  tried.push(new Promise((ended) => {
    const part = document.createElement(tag);
    part.onload = part.onerror = ended;
    part.src = daemon + "/demo/" + tag;
    document.body.append(part);
  }));
tried.push(fetch(daemon + "/demo/fetch", {mode: "no-cors"}));
Promise.allSettled(tried).then((all) => done(all.map(({value}) => value?.status ?? 0)));
"""


@pytest.fixture
def others_page():
    """A page of somebody else: its port."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<body></body>")

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served.server_port
    served.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("settings", [{}, {"api": {"anybody": True}}], ids=["this machine", "anybody"])
def test_no_other_page_uses_anything_up(browser, start_daemon, server, others_page, host, settings):
    """Whatever a page somewhere has an operator's browser send here."""
    daemon = start_daemon(LIMITS, server, **settings)
    browser.get(f"http://{host}:{others_page}/")
    statuses = browser.execute_async_script(ATTEMPTS, f"http://127.0.0.1:{daemon.http_port}")
    assert not {200, 429} & set(statuses)
    requests = daemon.metrics("swlimitd_requests_total")
    assert {api for (api, result), count in requests.items() if count and result != "error"} == set()
    assert requests["demo", "error"] > 0  # it arrived
    assert server.cli("KEYS", "*") == ""


def test_a_page_whose_host_has_become_this_machine(browser, start_daemon, server):
    """To the browser it is of the same origin, as after DNS rebinding."""
    daemon = start_daemon(LIMITS, server)
    browser.get(f"http://other.localhost:{daemon.http_port}/")
    statuses = browser.execute_async_script(ATTEMPTS, "")
    assert 403 in statuses and not {200, 429} & set(statuses)
    assert server.cli("KEYS", "*") == ""
