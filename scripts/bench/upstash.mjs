// Prints what @upstash/ratelimit sends for one decision on each name of its standard input, one JSON object a line.
// Arguments: the limit, the window in seconds, and the cost of each request.
import { readFileSync } from "node:fs";
import { Ratelimit } from "@upstash/ratelimit";

const [limit, window, cost] = process.argv.slice(2).map(Number);
const print = (what) => console.log(JSON.stringify(what));

// In the place of a client: it tells what it is asked to send, and answers that all was granted.
const redis = {
  async evalsha(_sha, keys, args) {
    if (!this.loaded) throw new Error("NOSCRIPT No matching script");
    print({ keys, args: args.map(String) });
    return [limit - cost, limit];
  },
  async eval(script) {
    this.loaded = true;
    print({ script });
    return [limit - cost, limit];
  },
};

const limiter = new Ratelimit({
  redis,
  limiter: Ratelimit.slidingWindow(limit, `${window} s`),
  ephemeralCache: false,
  analytics: false,
});
await limiter.limit("script");
for (const name of readFileSync(0, "utf8").split("\n").filter(Boolean)) await limiter.limit(name, { rate: cost });
