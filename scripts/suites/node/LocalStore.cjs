/** What stands in for the store in memory of @fastify/rate-limit, in its own tests. */

const { createClient } = require("redis");
const { swlimitStore } = require("swlimit/fastify-rate-limit");

const client = createClient({ url: process.env.SWLIMIT_URL });
client.connect();
let stores = 0;

module.exports = class LocalStore {
  constructor(options) {
    const prefix = `${process.pid}:${performance.timeOrigin}:${stores++}:`;
    const Store = swlimitStore({ client, prefix, timeout: "10s" });
    // biome-ignore lint/correctness/noConstructorReturn: the plugin makes one with `new`
    return new Store(options);
  }
};
