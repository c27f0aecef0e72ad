"""A headless Chromium that opens pages as a person would."""

import os
import shutil

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from .lacking import lacking

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def start():
    """A driver of a browser with nobody's settings. Its `quit` ends both."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    driver = shutil.which("chromedriver")
    if not (program and driver):
        lacking("chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.add_argument("--headless")
    options.add_argument("--disable-dev-shm-usage")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # root has none
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, Service(driver))


def look_like(browser, width=1280, height=900, **features):
    """Show pages as on a screen of this size, to somebody with wishes such as `prefers_color_scheme="dark"`."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    wishes = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wishes})
