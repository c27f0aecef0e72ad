/** What stands in for the store in memory of express-rate-limit and hono-rate-limiter, in their own tests. */

import { createClient } from "redis";
import { SwlimitStore } from "swlimit/express-rate-limit";

const client = await createClient({ url: process.env.SWLIMIT_URL }).connect();
let stores = 0;

export class MemoryStore extends SwlimitStore {
  constructor() {
    super({ client, prefix: `${process.pid}:${performance.timeOrigin}:${stores++}:`, timeout: "10s" });
  }
}
