/** What express-rate-limit's tests take of Jest, as Vitest has it. */

import { vi } from "vitest";

globalThis.jest = vi;

export { afterEach, beforeEach, describe, expect, it, vi as jest } from "vitest";
