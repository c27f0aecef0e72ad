/** What exporters of metrics show: what limiters have decided, and how their servers are. The names are swlimitd's. */

import { shown } from "../core/duration.js";
import { BaseLimiter } from "../limiters/base.js";
import { Limits } from "../limiters/limits.js";
import type { ServerState } from "../transport/server-health.js";

/** Limiters by the names that metrics and spans show. */
export type Named = Readonly<Record<string, BaseLimiter | Limits>>;

/** A value, and its labels. */
export type Sample = readonly [labels: Record<string, string>, value: number];

/** A metric. */
export interface Measure {
  /** Without the `_total` of counters. */
  readonly name: string;
  readonly description: string;
  readonly kind: "counter" | "gauge";
  readonly labels: readonly string[];
  samples(limiters: ReadonlyMap<string, BaseLimiter>): Sample[];
}

/** The limiters by name; those of several rates have the window in ms behind it, as their keys have. */
export function eachLimiter(limits: Named): Map<string, BaseLimiter> {
  const found = new Map<string, BaseLimiter>();
  for (const [name, limiter] of Object.entries(limits)) {
    if (limiter instanceof Limits) {
      for (const one of limiter.limiters) found.set(`${name}:${one.quota.window}`, one);
    } else if (limiter instanceof BaseLimiter) found.set(name, limiter);
    else throw new TypeError(`${name} must be a limiter, not ${shown(limiter)}`);
  }
  return found;
}

const SEVERITY = ["up", "slow", "unavailable"];

/** The servers as each client sees them. */
function viewsOf(limiters: ReadonlyMap<string, BaseLimiter>): ServerState[] {
  const clients = new Map([...limiters.values()].map((limiter) => [limiter.core, limiter]));
  return [...clients.values()].flatMap((limiter) => limiter.servers());
}

/** Each server once, as the client sees it that has the most trouble with it, with the most failovers seen. */
function serversOf(limiters: ReadonlyMap<string, BaseLimiter>): Iterable<ServerState> {
  const found = new Map<string, ServerState>();
  for (const state of viewsOf(limiters)) {
    const known = found.get(state.address) ?? state;
    const worse = SEVERITY.indexOf(state.state) > SEVERITY.indexOf(known.state) ? state : known;
    found.set(state.address, { ...worse, failovers: Math.max(known.failovers, state.failovers) });
  }
  return found.values();
}

function byServer(name: string, description: string, value: (server: ServerState) => number | boolean | null): Measure {
  return {
    ...{ name, description, kind: name === "failovers" ? "counter" : "gauge", labels: ["server"] },
    samples: (limiters) =>
      [...serversOf(limiters)].flatMap((server) => {
        const found = value(server);
        return found === null ? [] : [[{ server: server.address }, Number(found)] as const];
      }),
  };
}

const DECISIONS: Measure = {
  name: "decisions",
  description: "Decisions of the client, by limit and source",
  kind: "counter",
  labels: ["limit", "source", "granted"],
  samples: (limiters) =>
    [...limiters].flatMap(([limit, { statistics, denied }]) =>
      Object.entries(denied).flatMap(([source, no]): Sample[] => [
        [{ limit, source, granted: "yes" }, statistics[source as keyof typeof denied] - no],
        [{ limit, source, granted: "no" }, no],
      ]),
    ),
};

const TAKEN_OVER: Measure = {
  name: "taken_over",
  description: "Keys of the script that were given to the module",
  kind: "counter",
  labels: [],
  samples: (limiters) => [[{}, viewsOf(limiters).reduce((sum, { takenOver }) => sum + takenOver, 0)]],
};

const LACKS: Measure = {
  name: "lacks",
  description: "1 if the server refuses this right",
  kind: "gauge",
  labels: ["server", "right"],
  samples: (limiters) =>
    [...serversOf(limiters)].flatMap(({ address, lacks }) =>
      lacks.map((right) => [{ server: address, right }, 1] as const),
    ),
};

export const MEASURES: readonly Measure[] = [
  DECISIONS,
  TAKEN_OVER,
  byServer("failovers", "How often sentinels named another primary", ({ failovers }) => failovers),
  byServer(
    "server_unavailable",
    "1 while decisions are made without the server",
    ({ state }) => state === "unavailable",
  ),
  byServer("server_slow", "1 while replies of the server come after the timeout", ({ state }) => state === "slow"),
  byServer("server_evicts", "1 if the server may evict counts", ({ evicts }) => evicts !== null),
  byServer("server_script", "1 if the server has not the module, and its script decides", ({ backend }) =>
    backend === null ? null : backend === "script",
  ),
  byServer("server_round_trip_seconds", "Duration of the last exchange with the server", ({ roundTrip }) =>
    roundTrip === null ? null : roundTrip / 1000,
  ),
  LACKS,
].map((measure) => ({ ...measure, name: `swlimit_client_${measure.name}` }));
