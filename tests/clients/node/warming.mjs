/** Reads instants, asks at each until it is denied, and prints what was granted and the denial's limit. */

import { createInterface } from "node:readline";
import { createClient } from "redis";
import { Limiter } from "swlimit";

const client = await createClient({ socket: { host: "127.0.0.1", port: Number(process.argv[2]) } }).connect();
const options = { mode: "direct", onFailure: "error", timeout: "30s" };
const limiter = new Limiter({ client, limit: 120, window: "1s", warmUp: "10s", ...options });
for await (const line of createInterface({ input: process.stdin })) {
  performance.now = () => Number(line) - performance.timeOrigin;
  let [granted, decision] = [-1];
  do {
    granted++;
    decision = await limiter.allow("k");
  } while (decision.granted > 0);
  console.log(granted, decision.limit);
}
client.destroy();
