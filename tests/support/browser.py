"""A headless Chromium, told what to do over a pipe (the protocol of its developer tools)."""

import itertools
import json
import os
import shutil
import signal
import subprocess

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def installed():
    """The browser on PATH, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser of its own. Use as a context manager."""

    def __init__(self, folder, width=1100, height=1000):
        self.folder, self.numbers, self.session = folder, itertools.count(1), None
        self.size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}

    def __enter__(self):
        theirs, ours = os.pipe()
        self.answers, their_answers = os.pipe()
        # It reads its file 3 and writes its file 4.
        script = f'exec "$@" 3<&{theirs} 4>&{their_answers}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "browser", installed(), "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={self.folder}"],
            pass_fds=(theirs, their_answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(theirs)
        os.close(their_answers)
        self.requests, self.answers = os.fdopen(ours, "wb"), os.fdopen(self.answers, "rb")
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.tell("Emulation.setDeviceMetricsOverride", **self.size)
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.requests.close()
        self.answers.close()

    def tell(self, method, **parameters):
        """The result of a command."""
        number = next(self.numbers)
        session = {"sessionId": self.session} if self.session else {}
        command = {"id": number, "method": method, "params": parameters} | session
        self.requests.write(json.dumps(command).encode() + b"\0")
        self.requests.flush()
        while True:
            told = json.loads(self._message())
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]

    def _message(self):
        message = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            message += byte
        return message

    def open(self, url):
        self.tell("Page.navigate", url=url)

    def run(self, script):
        """The value of a piece of JavaScript on the page."""
        told = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def dark(self):
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def names(self):
        """What a screen reader is told: the role and name of everything on the page."""
        nodes = self.tell("Accessibility.getFullAXTree")["nodes"]
        return {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]}
