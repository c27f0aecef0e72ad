"""Run scenarios with the clients of all languages: `python -m conformance.runner --help`, in tests/."""

import argparse
import asyncio
import sys
import time
import tomllib
from pathlib import Path

from conformance.play import Adapter, Failed, Play

HERE = Path(__file__).resolve().parent
AT_ONCE = 8
AGAIN = 6  # failures that a busy machine may cause


def scenarios(adapter=""):
    """All of them, by topic; of `NAME-fakes`, which has the limiters for tests, those that need no server."""
    topics = sorted((HERE / "scenarios").glob("*.toml"))
    found = [one for path in topics for one in tomllib.loads(path.read_text())["scenario"]]
    return [one for one in found if one.get("fakes") or not adapter.endswith("-fakes")]


def known():
    """By adapter and scenario: why it fails still, and who mends it."""
    found = tomllib.loads((HERE / "known.toml").read_text()).get("known", [])
    return {(one["adapter"], one["scenario"]): one for one in found}


async def run_steadily(name, words, chosen, **options):
    """As `run`. A few scenarios that fail beside others, and are not known to, are played again, one at a time."""
    found = await run(words, chosen, **options)
    failed = [one for one in chosen if found[one["name"]].startswith("failed") and (name, one["name"]) not in known()]
    for scenario in failed if len(failed) <= AGAIN else ():
        again = await run(words, [scenario], **options)
        if again[scenario["name"]] == "ok":
            found[scenario["name"]] = "ok, alone"
    return found


async def run(words, chosen, **options):
    """What each scenario says, with one adapter: by name `ok`, `not able: …` or `failed: …`."""
    adapter = await Adapter.start(words, **options)
    places = asyncio.Semaphore(AT_ONCE)

    async def outcome(scenario):
        if missing := {*scenario.get("needs", ())} - able:
            return f"not able: {', '.join(sorted(missing))}"
        async with places:
            try:
                await asyncio.wait_for(Play(scenario, adapter).run(), 60)
            except TimeoutError:
                return "failed: it takes a minute"
            except Failed as failed:
                return f"failed: {failed}"
        return "ok"

    able = {*(await adapter.ask("hello"))["ok"]}
    outcomes = await asyncio.gather(*map(outcome, chosen))
    found = {}
    for scenario, how in zip(chosen, outcomes):  # of a scenario that is repeated, the worst
        if found.get(scenario["name"], "ok") == "ok":
            found[scenario["name"]] = how
    if not await adapter.end():
        found["the adapter ends with its input"] = "failed: it goes on"
    return found


def judged(adapter, found):
    """What must not be: failures that are not known, and known ones that pass."""
    expected = known()
    for name, how in found.items():
        entry = expected.get((adapter, name))
        if how.startswith("failed") and not entry:
            yield f"{name}: {how}"
        elif how == "ok" and entry and not entry.get("unsteady"):
            yield f"{name} passes: it is no longer known to fail"


def table(results):
    """Scenarios by adapter: what each cell says, and why one is not run."""
    expected = known()

    def cell(adapter, scenario):
        word, _, why = results[adapter].get(scenario, "–").partition(": ")
        if word == "not able":
            return f"no {why}"
        return "known" if word == "failed" and (adapter, scenario) in expected else word

    names = [one["name"] for one in scenarios()]
    rows = [["", *results], *([name, *(cell(adapter, name) for adapter in results)] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(f"{text:{width}}" for text, width in zip(row, widths)).rstrip() for row in rows)


def main():
    from conformance.adapters import ADAPTERS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adapters", nargs="*", help=f"of {', '.join(ADAPTERS)}; default: all")
    parser.add_argument("--only", help="one scenario")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print steps and commands, with times")
    given = parser.parse_args()
    results, failures = {}, []
    for name in given.adapters or ADAPTERS:
        began = time.monotonic()
        words, options = ADAPTERS[name]()
        chosen = [one for one in scenarios(name) if given.only in (None, one["name"])] * given.repeat
        results[name] = asyncio.run(run_steadily(name, words, chosen, **options))
        failures += [f"{name}: {text}" for text in judged(name, results[name])]
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(table(results))
    print(*failures, sep="\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
