"""The page's recipe for Sidekiq: places and tokens that all workers share, also when one is killed."""

import os
import shutil
import signal
import subprocess

import pytest
import redis

import swlimit
from docs.pages import blocks, page_named
from support.lacking import lacking
from support.waiting import eventually

MODEL = """
Sidekiq.configure_server { |config| config.average_scheduled_poll_interval = 1 }

class Answer
  sidekiq_options "retry" => false

  def ask_model(question)
    Process.kill(:KILL, Process.pid) if question == "kills"
    ask("RPUSH", "running", ask("INCR", "now"))
    sleep 0.01 until question != "long" || ask("EXISTS", "go") == 1
    sleep 0.3
    ask("DECR", "now")
    ask("RPUSH", "done", question)
    raise "broken" if question == "fails"
    [question, 50]
  end

  def ask(*words)
    Sidekiq.redis { |redis| redis.call(*words) }
  end
end
"""


def recipe():
    """The page's file, with a shorter time to live, a longer window and smaller estimates."""
    text, = (block.text for block in blocks(page_named("recipes.md")) if "sidekiq_options" in block.text)
    for old, new in [("TTL = 15", "TTL = 3"), ('"1m", "5s"', '"1h", "5m"'), ("ESTIMATE = 400", "ESTIMATE = 100")]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text + MODEL


@pytest.mark.long
def test_a_fleet(server, tmp_path):
    if not shutil.which("sidekiq"):
        lacking("Sidekiq: run CI=true scripts/setup long")
    (tmp_path / "jobs.rb").write_text(recipe())
    address = f"redis://127.0.0.1:{server.port}"
    environment = os.environ | {"REDIS_URL": address}
    workers = []

    def work():
        command = ["sidekiq", "--require", "./jobs.rb", "--concurrency", "4"]
        workers.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))
        return workers[-1]

    def ask(*questions):
        command = ["ruby", "-r", "./jobs.rb", "-e", "ARGV.each { |question| Answer.perform_async(question) }"]
        subprocess.run([*command, *questions], cwd=tmp_path, env=environment, check=True)

    with (open(tmp_path / "log", "w") as log, redis.Redis.from_url(address, decode_responses=True) as client,
          swlimit.Limiter(client, 1000, "1h", "5m", mode="direct", timeout=5.0) as tokens,
          swlimit.HoldLimiter(client, 2, "3s", timeout=5.0) as places):
        try:
            ask("kills")
            assert work().wait(60) == -signal.SIGKILL
            assert len(places.holders("{small}:places")) == 1
            work()
            ask("long")
            eventually(lambda: "swlimit.renew" in str(client.info("commandstats")).lower(), seconds=60)
            client.set("go", 1)
            asked = [*map(str, range(6)), "fails", "long"]
            ask(*asked[:-1])
            eventually(lambda: sorted(client.lrange("done", 0, -1)), asked, seconds=60)
            assert 1 <= max(map(int, client.lrange("running", 0, -1))) <= 2
            eventually(lambda: places.holders("{small}:places"), [])
            used = 1000 - tokens.peek("{small}:tokens").remaining
            assert used == 2 * 100 + 7 * 50, "of what was killed or failed, the estimate"
            with places.hold("{small}:places", 2):
                ask("waits")
                eventually(lambda: "waits" in str(client.zrange("schedule", 0, -1)))
            eventually(lambda: client.lrange("done", -1, -1), ["waits"], seconds=60)
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
