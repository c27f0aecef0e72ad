/** Reads lines of JSON, `[options, [instant, …]]`, and prints of each the periods that the instants are in. */

import { createInterface } from "node:readline";
import { periodAt } from "swlimit";

for await (const line of createInterface({ input: process.stdin })) {
  const [options, instants] = JSON.parse(line);
  console.log(JSON.stringify(instants.map((instant) => Object.values(periodAt(options, instant)))));
}
