/** One quota, for any number of keys. */

import { Decision } from "./decision.js";
import { Denials } from "./denials.js";
import { type Duration, integer, milliseconds, usualResolution } from "./duration.js";
import { ModuleMissingError, RefusedError, UnavailableError, understood } from "./errors.js";
import { LocalWindows, shareOf } from "./local.js";
import { Server } from "./server.js";
import type { Client } from "./transport.js";
import { Turns } from "./turns.js";
import type { Demand, Quota, Reply } from "./window.js";

/** How much may be used in which window. */
export interface QuotaOptions {
  /** Units admitted per window, 0 … 2^53 − 1. */
  readonly limit: number;
  /** The length of the window: ms, or a text such as "60s". */
  readonly window: Duration;
  /** The length of one subinterval, which divides the window evenly. As a rule a 60th of the window. */
  readonly resolution?: Duration | undefined;
  /** Never more than the limit in any span of a window; capacity comes back up to one resolution later. */
  readonly strict?: boolean;
}

export interface LimiterOptions extends QuotaOptions {
  /**
   * A client of the packages redis or ioredis, or a function that sends a command with any other. Without one, all is
   * decided in this process.
   */
  readonly client?: Client;
  /** Put before every key. */
  readonly prefix?: string;
  /** The name in the headers. */
  readonly name?: string;
  /**
   * Who decides. "direct": the server, always. "denials": the server, but for what is known to be denied; where a
   * client of the package redis is given, this is the rule. "local": this process.
   */
  readonly decide?: "direct" | "denials" | "local";
  /** Who decides while the server is away: everything is granted, denied, or decided in this process. */
  readonly whenAway?: "allow" | "deny" | "local";
  /** How much of the limit this process may grant while the server is away. */
  readonly localShare?: number;
  /** No request waits longer for the server, in ms. */
  readonly timeout?: number;
  /** So many keys are remembered in this process. */
  readonly maxKeys?: number;
  /** Without client tracking, a denial is remembered for so many ms at most: a refund is noticed that much later. */
  readonly untracked?: number;
}

export interface AllowOptions {
  /** Units that are asked for. */
  readonly cost?: number;
  /** Grant as much of the cost as fits. */
  readonly partial?: boolean;
  /** When denied, block the key for so long. */
  readonly block?: Duration;
}

export interface RecordOptions {
  readonly cost?: number;
  /** The units are that old. */
  readonly age?: Duration;
  readonly block?: Duration;
}

/** How many decisions were made by whom. */
export interface Counts {
  /** By the server. */
  server: number;
  /** Denials that were known. */
  denials: number;
  /** In this process, because there is no server. */
  local: number;
  /** By what is to be done while the server is away. */
  away: number;
}

/** A decision of this process. */
type Here = (asked: Demand, now: number) => Reply;

export class Limiter {
  /** The quota; durations in ms. */
  readonly quota: Quota;
  readonly name: string;
  readonly prefix: string;
  /** How many decisions were made by whom. */
  readonly counts: Counts = { server: 0, denials: 0, local: 0, away: 0 };

  /** @internal */ readonly server: Server | null;
  /** @internal */ readonly timeout: number;
  /** @internal */ readonly denials: Denials | null;
  private readonly isTracked: boolean;
  private readonly whenAway: "allow" | "deny" | "local";
  private readonly localShare: number;
  private readonly windows: LocalWindows;
  private readonly turns = new Turns();
  private readonly registering = new Set<string>();

  constructor(options: LimiterOptions) {
    const { client, decide, maxKeys = 10_000, timeout = 50, localShare = 0.1 } = options;
    if (!client && decide !== undefined && decide !== "local")
      throw new TypeError(`decide: "${decide}" needs a client`);
    if (!(localShare > 0 && localShare <= 1)) throw new RangeError("localShare must be above 0 and at most 1");
    this.quota = quotaOf(options);
    this.name = options.name ?? "default";
    this.prefix = options.prefix ?? "";
    this.timeout = integer(timeout, "timeout", 1);
    this.whenAway = options.whenAway ?? "local";
    this.localShare = localShare;
    this.windows = new LocalWindows(integer(maxKeys, "maxKeys", 1));
    this.server = client && decide !== "local" ? Server.of(client) : null;
    const tracking = this.server?.tracking;
    this.isTracked = tracking !== undefined && tracking !== null;
    const remembers = this.server !== null && (decide ?? (this.isTracked ? "denials" : "direct")) === "denials";
    const longest = this.isTracked ? Number.POSITIVE_INFINITY : integer(options.untracked ?? 100, "untracked", 0);
    this.denials = remembers ? new Denials(maxKeys, longest) : null;
    if (this.denials) tracking?.tell(this.denials);
  }

  /**
   * A limiter of the same keys with another quota: limits that depend on who asks. The key's window should stay one.
   */
  with(options: Partial<QuotaOptions>): Limiter {
    const resolution = options.resolution ?? (options.window === undefined ? this.quota.resolution : undefined);
    const quota = quotaOf({ ...this.quota, ...options, resolution });
    return Object.create(this, { quota: { value: quota, enumerable: true } });
  }

  /** Decide, and count what is granted. */
  async allow(key: string, options: AllowOptions = {}): Promise<Decision> {
    const name = this.prefix + key;
    const demand = this.demand(options);
    const block = options.block === undefined ? 0 : milliseconds(options.block, "block");
    const known = this.denials?.find(name, demand, block > 0);
    if (known) {
      this.counts.denials++;
      return this.decision(known, true);
    }
    const words = ["SWLIMIT.ALLOW", name, ...this.words(demand), ...blockWords(block)];
    return this.decided(words, demand, (asked, now) => this.windows.entry(name).allow(asked, now, block), block);
  }

  /** The same decision, with nothing counted. */
  async peek(key: string, options: Omit<AllowOptions, "block"> = {}): Promise<Decision> {
    const name = this.prefix + key;
    const demand = this.demand(options);
    const words = ["SWLIMIT.PEEK", name, ...this.words(demand)];
    return this.decided(words, demand, (asked, now) => this.windows.entry(name).peek(asked, now), 0);
  }

  /** Count, whatever the limit says. */
  async record(key: string, options: RecordOptions = {}): Promise<Decision> {
    const name = this.prefix + key;
    const demand = this.demand(options);
    const block = options.block === undefined ? 0 : milliseconds(options.block, "block");
    const age = options.age === undefined ? undefined : milliseconds(options.age, "age", 0);
    const words = ["SWLIMIT.RECORD", name, ...this.words(demand), ...ageWords(age), ...blockWords(block)];
    const dated = (now: number) => (age === undefined ? undefined : Math.max(0, now - age));
    const here: Here = (asked, now) => this.windows.entry(name).record(asked, now, dated(now), block);
    return this.decided(words, demand, here, null);
  }

  /** Give back up to so many units; how many were given back. Never sent twice. */
  async refund(key: string, units = 1, { age }: { readonly age?: Duration } = {}): Promise<number> {
    integer(units, "units", 1);
    const ms = age === undefined ? undefined : milliseconds(age, "age", 0);
    const name = this.prefix + key;
    if (!this.server) return this.windows.find(name)?.refund(units, Date.now(), ms) ?? 0;
    return Number(await this.change(["SWLIMIT.REFUND", name, String(units), ...ageWords(ms)], name));
  }

  /**
   * Block a key for so long from now on, with `unlessBlocked` only if it is not; the Unix time in ms at which that
   * ends.
   */
  async block(key: string, duration: Duration, { unlessBlocked = false } = {}): Promise<number> {
    const ms = milliseconds(duration, "duration");
    const name = this.prefix + key;
    if (!this.server) return this.windows.entry(name).block(ms, Date.now(), unlessBlocked);
    return Number(await this.change(["SWLIMIT.BLOCK", name, `${ms}ms`, ...(unlessBlocked ? ["NX"] : [])], name));
  }

  /** Lift a block; whether there was one. */
  async unblock(key: string): Promise<boolean> {
    const name = this.prefix + key;
    if (!this.server) return this.windows.find(name)?.unblock(Date.now()) ?? false;
    return Number(await this.change(["SWLIMIT.UNBLOCK", name], name)) === 1;
  }

  /** Forget all that a key holds: its counts and its block. */
  async reset(key: string): Promise<void> {
    const name = this.prefix + key;
    if (!this.server) this.windows.delete(name);
    else await this.change(["UNLINK", name], name);
  }

  /**
   * An allow that waits for its turn, up to `timeout`: first come, first served. The server keeps the queue; where it
   * has no ACQUIRE, or the client can open no connections of its own, this process does for its own requests.
   */
  async acquire(key: string, timeout: Duration, options: { readonly cost?: number } = {}): Promise<Decision> {
    const demand = this.demand(options);
    const deadline = performance.now() + milliseconds(timeout, "timeout", 0);
    const left = () => Math.max(0, deadline - performance.now());
    return this.turns.take(
      this.prefix + key,
      left(),
      () => this.wait(key, demand, left),
      async () => this.late(await this.peek(key, options)),
    );
  }

  /** Forget what is known of the server. Connections beside the client's own are closed, once no limiter needs them. */
  close(): void {
    if (this.denials) this.server?.tracking?.leave(this.denials);
    this.denials?.forgetAll();
    this.server?.lanes?.close();
  }

  /** @internal What a request demands. */
  demand({ cost = 1, partial = false }: { cost?: number; partial?: boolean }): Demand {
    return { ...this.quota, cost: integer(cost, "cost", 1), partial };
  }

  /** @internal The decision that a reply is. */
  decision(reply: Reply, local: boolean): Decision {
    return new Decision(reply, { name: this.name, window: this.quota.window }, local);
  }

  /** @internal What this process decides: for want of a server, or while it is away. */
  decisionHere(by: "local" | "away", demand: Demand, decide: (asked: Demand) => Reply): Decision {
    const { limit, cost } = demand;
    if (by === "local") return this.decision(decide(demand), true);
    switch (this.whenAway) {
      case "allow":
        return this.decision([cost, limit, Math.max(0, limit - cost), 0, 0], true);
      case "deny":
        return this.decision([0, limit, 0, 1000, 1000], true);
      case "local":
        return this.decision(decide(shareOf(demand, this.localShare)), true);
    }
  }

  /** @internal The window of this process for a key. */
  window(key: string) {
    return this.windows.entry(this.prefix + key);
  }

  /**
   * @internal After a denial: have the server say when the key changes, and remember what it says of the key then.
   */
  async register(key: string, demand: Demand, block: number): Promise<void> {
    const { denials } = this;
    const tracking = this.server?.tracking;
    if (!denials || !tracking) return;
    const words = ["SWLIMIT.PEEK", key, ...this.words(demand)];
    const underWay = `${block > 0} ${words.join(" ")}`;
    if (this.registering.has(underWay)) return;
    this.registering.add(underWay);
    try {
      const connection = await tracking.connection(key);
      if (!connection) return;
      const asked = { generation: denials.generation(key), sent: performance.now() };
      denials.remember(key, demand, block, asked, replyOf(await connection.send(words)));
    } catch {
      // Nothing is remembered, and the next request asks the server.
    } finally {
      this.registering.delete(underWay);
    }
  }

  /**
   * What the server decides, or this process where there is none or it is away. `block` is null where a denial says
   * nothing about the next request.
   */
  private async decided(words: string[], demand: Demand, here: Here, block: number | null): Promise<Decision> {
    const { server, denials } = this;
    if (!server) return this.here("local", demand, here);
    const name = words[1] as string;
    const asked = { generation: denials?.generation(name) ?? 0, sent: performance.now() };
    try {
      const reply = replyOf(await server.ask(words, name, this.timeout));
      this.counts.server++;
      if (denials && reply[0] === 0 && block !== null) {
        if (this.isTracked) void this.register(name, demand, block);
        else denials.remember(name, demand, block, asked, reply);
      }
      return this.decision(reply, false);
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      return this.here("away", demand, here);
    }
  }

  /** Decide in this process, and count that. */
  private here(by: "local" | "away", demand: Demand, decide: (asked: Demand, now: number) => Reply): Decision {
    this.counts[by]++;
    return this.decisionHere(by, demand, (asked) => decide(asked, Date.now()));
  }

  /** A change that gives something back: with it, what was known is known no longer. */
  private async change(words: string[], name: string): Promise<unknown> {
    this.denials?.forget(name);
    try {
      return await (this.server as Server).ask(words, name, this.timeout);
    } finally {
      this.denials?.forget(name);
    }
  }

  /** Wait with nobody of this process before one. */
  private async wait(key: string, demand: Demand, left: () => number): Promise<Decision> {
    const { server } = this;
    const name = this.prefix + key;
    if (!server?.lanes || server.lacksAcquire) return this.sleep(key, demand, left);
    const words = (ms: number) => {
      const [limit, window, resolution, ...options] = this.words(demand) as [string, string, string, ...string[]];
      return ["SWLIMIT.ACQUIRE", name, limit, window, resolution, `${ms}ms`, ...options];
    };
    try {
      // What is granted at once needs no connection of its own, nor does what there is no hope for.
      const now = replyOf(await server.ask(words(0), name, this.timeout));
      const [granted, , , retryAfter] = now;
      const waits = granted === 0 && retryAfter >= 0 && retryAfter <= left();
      const later = waits ? await server.lanes.ask(name, left, words, this.timeout) : now;
      this.counts.server++;
      return this.decision(later === null ? now : replyOf(later), false);
    } catch (cause) {
      const error = understood(cause);
      if (error instanceof ModuleMissingError) {
        const decision = await this.sleep(key, demand, left); // fails where everything is missing
        server.lacksAcquire = true;
        return decision;
      }
      if (error instanceof RefusedError) throw error;
      return this.here("away", demand, (asked, now) => this.windows.entry(name).allow(asked, now));
    }
  }

  /** Ask again when it may fit, until it does. */
  private async sleep(key: string, demand: Demand, left: () => number): Promise<Decision> {
    for (;;) {
      const decision = await this.allow(key, demand);
      if (decision.granted > 0 || decision.retryAfter < 0 || decision.retryAfter > left()) return decision;
      await new Promise((resolve) => setTimeout(resolve, Math.max(1, decision.retryAfter)));
    }
  }

  /** Denied, because its turn did not come in time. */
  private late({ limit, remaining, retryAfter, resetAfter, local }: Decision): Decision {
    return this.decision([0, limit, remaining, retryAfter, resetAfter], local);
  }

  private words({ limit, window, resolution, cost, partial, strict }: Demand): string[] {
    const words = [String(limit), `${window}ms`, `${resolution}ms`];
    if (cost !== 1) words.push("COST", String(cost));
    if (partial) words.push("PARTIAL");
    if (strict) words.push("STRICT");
    return words;
  }
}

function quotaOf({ limit, window, resolution, strict = false }: QuotaOptions): Quota {
  const length = milliseconds(window, "window");
  const subinterval = resolution === undefined ? usualResolution(length) : milliseconds(resolution, "resolution");
  if (length % subinterval !== 0) throw new RangeError("resolution must divide the window evenly");
  return { limit: integer(limit, "limit", 0), window: length, resolution: subinterval, strict };
}

function blockWords(block: number): string[] {
  return block > 0 ? ["BLOCK", `${block}ms`] : [];
}

function ageWords(age: number | undefined): string[] {
  return age === undefined ? [] : ["AGE", `${age}ms`];
}

/** A reply of five integers, which some clients give as texts. */
export function replyOf(reply: unknown): Reply {
  if (!Array.isArray(reply) || reply.length !== 5) throw new RefusedError(`unexpected reply: ${JSON.stringify(reply)}`);
  return reply.map(Number) as Reply;
}
