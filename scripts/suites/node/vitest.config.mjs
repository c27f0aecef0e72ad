import { fileURLToPath } from "node:url";

const jest = fileURLToPath(new URL("jest.mjs", import.meta.url));

/** Only the date stands still in these tests: a server that is asked over a socket needs all other timers. */
export default {
  test: {
    include: ["test/library/**/!(types)-test.ts", "src/__tests__/**/*.spec.ts"],
    globals: true,
    setupFiles: [jest],
    alias: { "@jest/globals": jest },
    fakeTimers: { toFake: ["Date"] },
    testTimeout: 30_000,
  },
};
