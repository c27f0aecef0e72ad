/** The client of one server, which is part of a cluster whose servers cannot be reached. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { FollowingTransport } from "../../../src/clients/node/dist/esm/clients/following.js";

const MOVED = new Error("MOVED 7629 127.0.0.1:1");

/** A way to one server that redirects, and a cluster that cannot be opened; what is warned of, and how often it was tried. */
function following(test, send) {
  const warning = test.mock.method(process, "emitWarning", () => {});
  const open = test.mock.fn(() => Promise.reject(new AggregateError([])));
  const client = {};
  const single = {
    send,
    node: () => client,
    address: () => "127.0.0.1:7",
    isOrdered: true,
    tracks: true,
    takesBytes: true,
  };
  return { transport: new FollowingTransport(client, single, open), warning, open };
}

test("that the cluster cannot be reached is said once, and the redirection is the caller's", async (test) => {
  const { transport, warning, open } = following(test, () => Promise.reject(MOVED));
  await Promise.all([1, 2].map(() => assert.rejects(transport.send(["GET", "k"], "k"), MOVED)));
  await assert.rejects(transport.send(["GET", "k"], "k"), MOVED);
  assert.equal(open.mock.callCount(), 1, "the next try is a minute later");
  const said = warning.mock.calls.map(({ arguments: [text, { code }] }) => [text, code]);
  const text = "no address that the cluster names can be reached (AggregateError), so 127.0.0.1:7 alone is asked";
  assert.deepEqual(said, [[text, "SWLIMIT_CLUSTER"]]);
});

test("what redirects nobody opens no cluster", async (test) => {
  const { transport, open } = following(test, (words) =>
    words[0] === "INFO" ? Promise.resolve("redis_mode:standalone\r\n") : Promise.reject(new Error("OOM no room")),
  );
  await transport.connected();
  await assert.rejects(transport.send(["GET", "k"], "k"), /OOM/);
  assert.equal(open.mock.callCount(), 0);
});
