/** Writes protocol/script-text.ts, so that src/lua/swlimit.lua travels in the package. Called by the build. */

import { readFileSync, writeFileSync } from "node:fs";

const script = readFileSync(new URL("../lua/swlimit.lua", import.meta.url), "utf8");
const text = `/** src/lua/swlimit.lua, written by embed.mjs. */\n\nexport const SCRIPT =\n  ${JSON.stringify(script)};\n`;
writeFileSync(new URL("protocol/script-text.ts", import.meta.url), text);
