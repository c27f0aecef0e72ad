/** Admissions of work that takes long: places, names, waits, and what is settled when. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { describe, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { admit, BudgetLimiter, HoldLimiter, Limiter, LostError, NotAdmittedError, spending } from "swlimit";
import { asModule, connect, eventually, key, port, sender, sent } from "./support.mjs";

/** A model: 2 streams at once, 3 requests and 1000 tokens an hour. */
function model(test, client, { ttl, ...options } = {}) {
  const all = { client, timeout: 20_000, ...options };
  const streams = new HoldLimiter({ ...all, limit: 2, prefix: "streams:", ...(ttl && { ttl }) });
  const requests = new Limiter({ ...all, limit: 3, window: "1h", prefix: "requests:" });
  const tokens = new Limiter({ ...all, limit: 1000, window: "1h", prefix: "tokens:" });
  test.after(() => Promise.all([streams, requests, tokens].map((one) => one.close())));
  const k = `{${key()}}`;
  const parts = (cost) => [
    { limiter: streams, key: k, name: "streams" },
    { limiter: requests, key: k, name: "requests" },
    { limiter: tokens, key: k, name: "tokens", cost },
  ];
  const counted = async () => [3 - (await requests.peek(k)).remaining, 1000 - (await tokens.peek(k)).remaining];
  const places = async () => (await streams.holders(k)).length;
  return { k, streams, requests, tokens, parts, counted, places };
}

/** A client that loses the first reply to the commands of this name. */
function losing(client, name) {
  const lossy = async (args) => {
    const reply = await client.sendCommand(args);
    if (asModule(args)[0] !== `SWLIMIT.${name}` || lossy.left === 0) return reply;
    lossy.left--;
    throw new Error("the connection is lost");
  };
  lossy.left = 1;
  return lossy;
}

test("places are released before the usage is known", async (test) => {
  const { parts, counted, places } = model(test, await connect(test));
  const admission = await admit(parts(500));
  assert.deepEqual([admission.granted, await places(), await counted()], [true, 1, [1, 500]]);
  await admission.release();
  assert.deepEqual([admission.hold.isLive, await places(), await counted()], [false, 0, [1, 500]]);
  assert.deepEqual(
    [await admission.settle({ tokens: 850 }), await counted()],
    [
      [0, 350],
      [1, 850],
    ],
  );
  assert.equal(await admission.settle({ tokens: 1 }), null);
});

test("what is known only afterwards costs 1 and is settled by the number", async (test) => {
  const { parts, counted } = model(test, await connect(test));
  const admission = await admit(parts(1));
  assert.deepEqual(
    [await admission.settle({ tokens: 17_380 }), await counted()],
    [
      [0, 17_379],
      [1, 1000],
    ],
  );
  const { deniedBy, retryAfter } = await admit(parts(1));
  assert.deepEqual([deniedBy.name, deniedBy.decision.retryAfter], ["tokens", retryAfter]);
});

test("each part has its own limit", async (test) => {
  const { parts } = model(test, await connect(test));
  const limited = (at, limit) => parts(1).map((part, i) => (i === at ? { ...part, limit } : part));
  for (const [at, name] of ["streams", "requests", "tokens"].entries()) {
    const { granted, deniedBy, never, each } = await admit(limited(at, 0));
    assert.deepEqual([granted, deniedBy.name, never, each[at].limit], [false, name, true, 0]);
  }
  const { each } = await admit(limited(1, 7));
  assert.deepEqual([each[1].limit, each[1].remaining], [7, 6]);
  await assert.rejects(admit(limited(1, -1)), RangeError);
});

test("the headers of a denial", async (test) => {
  const { parts } = model(test, await connect(test));
  await admit(parts(1000));
  const denied = await admit(parts(1));
  const { "Retry-After": seconds, "retry-after-ms": ms } = denied.headers();
  assert.deepEqual([ms, seconds], [String(denied.retryAfter), String(Math.ceil(denied.retryAfter / 1000))]);
  await admit(parts(0 + 1).slice(0, 1));
  const full = await admit(parts(1).slice(0, 1));
  assert.ok(full.retryAfter > 1000);
  assert.deepEqual([full.headers()["Retry-After"], full.headers()["retry-after-ms"]], ["1", "1000"]);
});

test("names and positions", async (test) => {
  const { parts, counted } = model(test, await connect(test));
  const admission = await admit(parts(10));
  await assert.rejects(admission.settle({ token: 1 }), /called token/);
  await assert.rejects(admission.settle({ streams: 1 }), /called streams/);
  await assert.rejects(admission.settle({ tokens: -1 }), /tokens must be an integer/);
  await assert.rejects(admission.settle(1, { tokens: 1 }), /not both/);
  await assert.rejects(admission.settle({ tokens: 1 }, 1), /not both/);
  await assert.rejects(admission.settle(1), /2 numbers/);
  assert.throws(() => admission.settleSoon({ token: 1 }), /called token/);
  assert.deepEqual(
    [await admission.settle({ tokens: undefined }), await counted()],
    [
      [0, 0],
      [1, 10],
    ],
  );
  const [place, ...others] = parts(1);
  await assert.rejects(admit([place, ...others.map((part) => ({ ...part, name: "one" }))]), /the same name/);
  await assert.rejects(admit([{ ...place, name: "" }]), /name/);
});

test("who waits is granted when there is room", async (test) => {
  const { parts, counted } = model(test, await connect(test));
  const [first] = await Promise.all([admit(parts(1)), admit(parts(1))]);
  const waiting = admit(parts(2), { wait: "1m" });
  await first.release();
  assert.deepEqual([(await waiting).granted, await counted()], [true, [3, 4]]);
});

test("who waits and is denied", async (test) => {
  const client = await connect(test);
  const { parts, counted, places, streams, k } = model(test, client);
  await admit(parts(1000));
  const words = sent(client);
  const asked = () => words.map(asModule).filter(([name]) => name === "SWLIMIT.ADMIT").length;
  assert.deepEqual([(await admit(parts(1001), { wait: "1h" })).never, asked()], [true, 1]);
  // The tokens come back after the wait, and places may do so at any moment.
  assert.deepEqual([(await admit(parts(1), { wait: "1m" })).granted, asked()], [false, 2]);
  await streams.hold(k);
  const place = parts(1).slice(0, 1);
  assert.deepEqual([(await admit(place, { wait: 150 })).granted, asked() > 3], [false, true]);
  const denied = await admit(place, { wait: "1h", deadline: 300 });
  assert.deepEqual([denied.granted, denied.each[0].source], [false, "server"]);
  const controller = new AbortController();
  const left = admit(place, { wait: "1h", signal: controller.signal });
  const before = asked();
  await eventually(() => asked() > before + 1);
  controller.abort(new Error("left"));
  await assert.rejects(left, /left/);
  await assert.rejects(admit(parts(1), { wait: "2h" }), /at most 1h/);
  assert.deepEqual([await counted(), await places()], [[1, 1000], 2]);
});

test("a reservation is for what is settled", async (test) => {
  const client = await connect(test);
  const { parts, places, requests } = model(test, client);
  await requests.peek("any"); // by then it knows whether there is a module
  const [place, ...counted] = parts(1);
  const words = sent(client);
  const isReserved = () => words.flat().some((word) => String(word).endsWith(":reserved"));
  const admission = await admit([place], { maxAge: "10m" });
  assert.deepEqual([isReserved(), await admission.settle({}), await places()], [false, [], 0]);
  await spending([place], {}, async () => {});
  await (await admit(counted)).settle({});
  assert.equal(isReserved(), false);
  await spending(counted, {}, async () => {});
  assert.equal(isReserved(), true);
});

describe("as long as a ttl", { concurrency: true }, () => {
  test("several places, each with its own loss", async (test) => {
    const client = await connect(test);
    const { k, streams, parts, places } = model(test, client, { ttl: "3s" });
    const jobs = new HoldLimiter({ client, limit: 1, timeout: 20_000, prefix: "jobs:", ttl: "3s" });
    const all = [{ limiter: jobs, key: k, name: "jobs" }, ...parts(1)];
    const admission = await admit(all);
    const [job, stream] = admission.holds;
    assert.deepEqual([job === admission.each[0], stream === admission.each[1]], [true, true]);
    const denied = await admit(all);
    assert.deepEqual([denied.granted, denied.holds, denied.deniedBy.name, await places()], [false, [], "jobs", 1]);
    await sender(client)("SWLIMIT.RELEASE", `jobs:${k}`, job.id);
    await eventually(() => job.signal.aborted, "its loss");
    assert.deepEqual([job.isLive, stream.isLive, stream.signal.aborted], [false, true, false]);
    assert.deepEqual([await admission.settle({ tokens: 5 }), await places(), await jobs.holders(k)], [[0, 4], 0, []]);
    await jobs.close();
    await streams.close();
  });

  test("without renewals after the longest age, a hold ends by its ttl, and its usage still counts", async (test) => {
    const { parts, counted, places } = model(test, await connect(test), { ttl: "3s" });
    const [spent, renewed] = await Promise.all([spending(parts(100), { maxAge: 1 }), admit(parts(100))]);
    const old = spent.admission;
    await eventually(() => old.hold.signal.aborted && spent.signal.aborted, "its end");
    assert.ok([old.hold, spent].every(({ signal }) => signal.reason instanceof LostError));
    await eventually(async () => (await places()) === 1, "the end of its place");
    assert.deepEqual([old.hold.isLive, renewed.hold.isLive], [false, true]);
    assert.deepEqual([await old.settle({ tokens: 60 }), await renewed.settle({ tokens: 60 })], [null, [0, -40]]);
    assert.deepEqual(await counted(), [2, 160]);
  });

  test("a holder that is killed leaves what it reserved, and its place after a ttl", async (test) => {
    const { k, parts, counted, places } = model(test, await connect(test));
    const program = `
    import { createClient } from "redis";
    import { HoldLimiter, Limiter, spending } from "swlimit";
    const client = await createClient({ socket: { port: ${port()} } }).connect();
    const streams = new HoldLimiter({ client, limit: 2, ttl: "3s", prefix: "streams:", timeout: 20_000 });
    const tokens = new Limiter({ client, limit: 1000, window: "1h", prefix: "tokens:", timeout: 20_000 });
    const parts = [{ limiter: streams, key: "${k}" }, { limiter: tokens, key: "${k}", cost: 500 }];
    await spending(parts, {}, () => {
      console.log("working");
      return new Promise((resolve) => setTimeout(resolve, 60_000));
    });`;
    const holder = spawn(process.execPath, ["--input-type=module", "--eval", program]);
    test.after(() => holder.kill("SIGKILL"));
    await once(holder.stdout, "data");
    assert.deepEqual([await places(), await counted()], [1, [0, 500]]);
    holder.kill("SIGKILL");
    const all = await Promise.all([1, 2].map(() => admit(parts(1), { wait: "1m" })));
    assert.deepEqual(
      [all.map(({ granted }) => granted), await counted()],
      [
        [true, true],
        [2, 502],
      ],
    );
  });

  test("an admission that nobody has any more is not renewed", async (test) => {
    const { k, parts, places } = model(test, await connect(test), { ttl: "3s" });
    const reservations = new HoldLimiter({ client: await connect(test), limit: 1, timeout: 20_000 });
    await admit(parts(1)).then((admission) => admission.release());
    const held = () => reservations.holders(`streams:${k}:reserved`);
    assert.deepEqual([await places(), (await held()).length], [0, 1]);
    setFlagsFromString("--expose-gc");
    const collect = runInNewContext("gc");
    await eventually(async () => {
      collect();
      return (await held()).length === 0;
    });
    await reservations.close();
  });
});

for (const name of ["ADMIT", "SETTLE"]) {
  test(`through a lost reply to ${name}`, async (test) => {
    const lossy = losing(await connect(test), name);
    const { requests, parts, counted, places } = model(test, lossy, { timeout: 100, ttl: "3s", onFailure: "deny" });
    await eventually(async () => (await requests.peek("any")).source === "server");
    const work = async (spent) => spent.saw({ tokens: 850 });
    const isDenied = await spending(parts(500), {}, work).then(
      () => false,
      (error) => error instanceof NotAdmittedError,
    );
    assert.equal(isDenied, name === "ADMIT");
    const after = isDenied ? "0,0" : "1,850";
    await eventually(async () => (await counted()).join() === after && (await places()) === 0, after);
    assert.equal(lossy.left, 0);
  });
}

test("settled soon, without a rejection, and before the limiters are closed", async (test) => {
  const client = await connect(test);
  let isCut = true;
  const cut = (args) => {
    if (asModule(args)[0] !== "SWLIMIT.SETTLE" || !isCut) return client.sendCommand(args);
    isCut = false;
    return Promise.reject(new Error("the connection is lost"));
  };
  const { k, streams, requests, tokens, parts } = model(test, cut, { timeout: 100, ttl: "3s" });
  await eventually(async () => (await requests.peek("any")).source === "server");
  const [one, other] = [await admit(parts(500)), await admit(parts(500))];
  assert.equal(one.settleSoon({ tokens: 400 }), undefined);
  assert.equal(other.releaseSoon(), undefined);
  other.settleSoon({ requests: 0, tokens: 0 });
  await Promise.all([streams, requests, tokens].map((limiter) => limiter.close()));
  const patient = model(test, client);
  assert.deepEqual(
    [3 - (await patient.requests.peek(k)).remaining, 1000 - (await patient.tokens.peek(k)).remaining],
    [1, 400],
  );
});

test("a settlement that the server refuses is a warning", async (test) => {
  const client = await connect(test);
  const { k, parts, places } = model(test, client);
  const admission = await admit(parts(500));
  await client.set(`tokens:${k}`, "other");
  const warned = once(process, "warning");
  admission.settleSoon({ tokens: 1 });
  const [{ code, message }] = await warned;
  assert.deepEqual([code, /WRONGTYPE/.test(message)], ["SWLIMIT_UNSETTLED", true]);
  await eventually(async () => (await places()) === 0, "its release");
});

for (const where of ["the server", "this process"]) {
  const model_ = async (test) => model(test, where === "the server" ? await connect(test) : undefined);

  test(`the last usage is settled, once: by ${where}`, async (test) => {
    const { parts, counted, streams, k } = await model_(test);
    const result = await spending(parts(500), { maxAge: "10m" }, async (spent) => {
      spent.saw({ tokens: 300 });
      spent.saw({ tokens: 850, requests: undefined });
      assert.throws(() => spent.saw({ token: 1 }), /called token/);
      assert.throws(() => spent.saw({ tokens: 1.5 }), RangeError);
      await spent.admission.release();
      return "done";
    });
    assert.deepEqual([result, await counted()], ["done", [1, 850]]);
    const asks = (await streams.hold(k, { cost: 2 })).granted;
    assert.equal(asks, 2);
  });

  test(`without any usage what was reserved is settled, or nothing after an error: by ${where}`, async (test) => {
    const { parts, counted } = await model_(test);
    const fails = async () => {
      throw new Error("cut");
    };
    await spending(parts(100), {}, async () => {});
    await assert.rejects(spending(parts(100), {}, fails), /cut/);
    assert.deepEqual(await counted(), [2, 200]);
    await assert.rejects(spending(parts(100), { onError: "giveBack" }, fails), /cut/);
    assert.deepEqual(await counted(), [2, 200]);
    const leaves = () => Promise.reject(new DOMException("left", "AbortError"));
    await assert.rejects(spending(parts(100).slice(2), { onError: "giveBack" }, leaves), /left/);
    assert.deepEqual(await counted(), [2, 300]);
    const breaks = async (spent) => {
      spent.saw({ tokens: 30 });
      await fails();
    };
    await assert.rejects(spending(parts(100), { onError: "giveBack" }, breaks), /cut/);
    assert.deepEqual(await counted(), [3, 330]);
    const denied = await spending(parts(100), {}, fails).catch((error) => error);
    assert.deepEqual([denied.name, denied.admission.deniedBy.name], ["DeniedError", "requests"]);
  });

  test(`a block that spends: by ${where}`, async (test) => {
    const { parts, counted } = await model_(test);
    {
      await using spent = await spending(parts(100));
      spent.saw({ tokens: 40 });
    }
    assert.deepEqual(await counted(), [1, 40]);
    {
      await using spent = await spending(parts(100));
      await spent.admission.settle({ tokens: 7 });
      spent.saw({ tokens: 40 });
    }
    assert.deepEqual(await counted(), [2, 47]);
    await assert.rejects(spending(parts(1), { onError: "giveBack" }), /needs the function/);
    await assert.rejects(
      spending(parts(1), { onError: "give_back" }, async () => {}),
      RangeError,
    );
    await assert.rejects(
      spending(parts(1), { max_age: 1 }, async () => {}),
      /max_age/,
    );
  });
}

test("places of this process end after the longest age", async (test) => {
  const { k, streams, parts, counted } = model(test);
  const admission = await admit(parts(100), { maxAge: 20 });
  await eventually(() => admission.hold.signal.aborted, "its end");
  assert.equal((await streams.hold(k, { cost: 2 })).granted, 2);
  assert.deepEqual(
    [await admission.settle({ tokens: 30 }), await counted()],
    [
      [0, -70],
      [1, 30],
    ],
  );
});

test("who waits in this process", async (test) => {
  const { parts } = model(test);
  const [first] = await Promise.all([admit(parts(1)), admit(parts(1))]);
  const waiting = admit(parts(1), { wait: "1m" });
  await first.release();
  assert.equal((await waiting).granted, true);
});

for (const onFailure of ["local", "allow", "deny", "error"]) {
  test(`while the server does not answer: ${onFailure}`, async (test) => {
    const never = () => new Promise(() => {});
    const { parts } = model(test, never, { timeout: 50, localShare: 0.5, onFailure });
    const work = async (spent) => {
      spent.saw({ tokens: 30 });
      assert.throws(() => spent.saw({ token: 1 }), /called token/);
      return spent.admission;
    };
    const done = spending(parts(100), { maxAge: "1m", wait: "1m" }, work);
    if (onFailure === "error") return assert.rejects(done, { name: "UnavailableError" });
    if (onFailure === "deny") return assert.rejects(done, { name: "DeniedError" });
    const { each, hold } = await done;
    assert.deepEqual([each.map(({ source }) => source), hold.isLive], [Array(3).fill("failure"), false]);
  });
}

test("a budget and the requests of everybody, without places", async (test) => {
  const client = await connect(test);
  const { requests, k } = model(test, client);
  const year = new BudgetLimiter({ client, limit: 1000, period: "year", timeout: 20_000, prefix: "year:" });
  const parts = [
    { limiter: year, key: k, name: "tokens", cost: 100 },
    { limiter: requests, key: k },
  ];
  await requests.peek("any"); // by then it knows whether there is a module
  const words = sent(client);
  await spending(parts, {}, async (spent) => spent.saw({ tokens: 900 }));
  assert.deepEqual(
    words.map((one) => asModule(one)[0]),
    ["SWLIMIT.ADMIT", "SWLIMIT.SETTLE"],
  );
  assert.deepEqual([(await year.peek(k)).remaining, (await requests.peek(k)).remaining], [100, 2]);
  await year.close();
});
