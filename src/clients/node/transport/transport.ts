/** How commands reach a server: through the caller's own client, whatever its library. */

import type { Word } from "../protocol/script-fallback.js";

/** A connection of the limiters' own. */
export interface Connection {
  readonly isOpen: boolean;
  send(words: Word[]): Promise<unknown>;
  /** Whether it keeps the process alive. */
  hold(process: boolean): void;
  close(): void;
}

/** Gets the events of a connection with client tracking. */
export interface InvalidationListener {
  /** This key has changed; null: any key may have. */
  invalidated(key: string | null): void;
  /** The connection is lost, and invalidations with it. */
  lost(): void;
}

/** A way to a server, or to the servers of a cluster. */
export interface Transport {
  readonly send: (words: Word[], key: string) => Promise<unknown>;
  /** Whether the last word may be bytes; the reply to such a command is bytes, too, unless it is a number. */
  readonly takesBytes: boolean;
  /** The primary that has a key: the same object as long as it is the same primary. */
  node(key: string): object;
  /** A primary's address for people: host and port, where they are known. */
  address(node: object): string;
  /** Whether a primary still belongs to the cluster. */
  readonly knows?: (node: object) => boolean;
  /** The connection on which commands go to a primary now; undefined when that is unknown, or there is none. */
  readonly connection?: (node: object) => unknown;
  /** Whether the caller's client is still open. */
  readonly isOpen?: () => boolean;
  /** Calls the listener when the caller closes the client. */
  readonly ended?: (listener: () => void) => void;
  /** How often another server became the primary. */
  readonly failovers?: () => number;
  /** Closes what was opened in place of the caller's client. */
  readonly close?: () => void;
  /** Opens a separate connection to a primary; with a listener, one that has client tracking on. */
  readonly open?: (node: object, listener?: InvalidationListener) => Promise<Connection>;
  /** Whether a command is written at once, or the client is connecting, or busy with other commands. */
  readonly state?: (node: object) => "ready" | "connecting" | "queued";
  /** Why the caller's client could not connect the last time; undefined when it is connected, or has not tried. */
  readonly connectError?: (node: object) => unknown;
  /** The client drops replies that take longer, in ms; undefined: none. */
  readonly givesUpAfter?: number;
  /** Whether commands of one turn of the event loop arrive at one server, and in order. */
  readonly isOrdered: boolean;
  /** Whether `open` takes a listener. */
  readonly tracks: boolean;
}
