"""Draw swlimitd-page.png, and -dark.png: the page of a swlimitd that has had visitors for five minutes.

    PYTHONPATH=tests .venv/bin/python -m support.picture

Or for as many seconds as the first argument says, as on a screen of the width that the second one says.
"""

import io
import math
import random
import sys
import time

from PIL import Image
from selenium.webdriver.common.by import By

from docs.pages import page_named

from .browser import look_like, start
from .daemon import DAEMON, Daemon
from .server import Binaries, Server

PICTURES = {"light": page_named("swlimitd-page.png"), "dark": page_named("swlimitd-page-dark.png")}
LIMITS = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 150}}
  - {key: address, rate_limits: [{window: 10s, requests_per_unit: 90}, {unit: hour, requests_per_unit: 20000}]}
  - {key: login, rate_limit: {window: 15m, requests_per_unit: 5, block: 1h, mode: direct}}
  - {key: search, rate_limit: {window: 30s, requests_per_unit: 900, mode: leased, on_failure: local}}
  - {key: account, rate_limit: {period: month, time_zone: Europe/Berlin, requests_per_unit: 10000}}
  - {key: upload, descriptors: [{key: request, rate_limit: {concurrency: 3, id: request, ttl: 1h}}]}
  - {key: export, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5, on_failure: allow}}
"""
VISITS = [("user", 3, 9), ("address", 5, 3), ("search", 4, 1), ("account", 1, 4), ("export", 0.3, 4)]
"""Keys, how many requests they have in a tenth of a second at most, about, and how many values."""
SHOWN = "{shop}|upload=u2|concurrency"


def visit(daemon, seconds):
    """Be the visitors of a shop, one of whom guesses passwords, and some of whom upload several files at once."""
    chance = random.Random(1)
    uploads = []
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        for key, often, values in VISITS:
            for _ in range(round(often * (1.5 + math.sin(at / 40)) * chance.random())):
                ask(daemon, (key, f"{key[0]}{chance.randrange(values)}"))
        if at % 90 > 60:
            ask(daemon, ("login", "203.0.113.9"))
        if at % 20 < 0.2:
            ask(daemon, ("newcomer", "unlimited"))
        if chance.random() < 0.05:
            uploads.append((("upload", f"u{chance.randrange(4)}"), ("request", f"{chance.getrandbits(32):08x}")))
            ask(daemon, *uploads[-1])
        if len(uploads) > 8:
            ask(daemon, *uploads.pop(0), hitsAddend=1, isNegativeHits=True)
        time.sleep(0.1)


def ask(daemon, *entries, **options):
    """Ask by a descriptor of these entries, with options of its own."""
    asked = options | {"entries": [{"key": key, "value": value} for key, value in entries]}
    daemon.json({"domain": "shop", "descriptors": [asked]})


def main(seconds=300, width=1100):
    assert DAEMON.exists(), "run make build-all"
    server = Server(Binaries.installed()).start()
    browser = start()
    try:
        with Daemon(LIMITS, server) as daemon:
            for _ in range(4):
                ask(daemon, ("login", "203.0.113.9"))
            visit(daemon, float(seconds))
            look_like(browser, int(width))
            browser.get(f"http://127.0.0.1:{daemon.http_port}/")
            browser.find_element(By.CSS_SELECTOR, "[data-range=five_minutes]").click()
            browser.find_element(By.ID, "key").send_keys(SHOWN)
            browser.find_element(By.CSS_SELECTOR, "#look-up button").click()
            browser.execute_async_script("setTimeout(arguments[0], 1000)")
            height = browser.execute_script("return document.body.scrollHeight")
            for scheme, path in PICTURES.items():
                look_like(browser, int(width), height, prefers_color_scheme=scheme)
                browser.execute_async_script("setTimeout(arguments[0], 100)")
                picture = Image.open(io.BytesIO(browser.get_screenshot_as_png()))
                picture.convert("RGB").quantize(128).save(path, optimize=True)
    finally:
        browser.quit()
        server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
