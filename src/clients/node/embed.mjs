/** Writes protocol/script-text.ts, so that the scripts of src/server/script travel in the package. Called by the build. */

import { readFileSync, writeFileSync } from "node:fs";

const texts = Object.entries({ SCRIPT: "swlimit.lua", TAKEOVER: "takeover.lua" }).map(([name, file]) => {
  const script = readFileSync(new URL(`../../server/script/${file}`, import.meta.url), "utf8");
  return `export const ${name} =\n  ${JSON.stringify(script)};\n`;
});
const text = ["/** The scripts of src/server/script, written by embed.mjs. */\n", ...texts].join("\n");
writeFileSync(new URL("protocol/script-text.ts", import.meta.url), text);
