/** How commands reach a server: through the caller's own client, of whatever library. */

import type { Word } from "../protocol/script-fallback.js";

/** A connection that nobody else uses. */
export interface Connection {
  readonly isOpen: boolean;
  send(words: Word[]): Promise<unknown>;
  /** Whether it keeps the process from ending. */
  hold(process: boolean): void;
  close(): void;
}

/** Who wants to hear what a connection with client tracking is told. */
export interface Listener {
  /** This key has changed; null: any may have. */
  invalidated(key: string | null): void;
  /** The connection is gone, and with it what it would have been told. */
  lost(): void;
}

/** A way to a server, or to the servers of a cluster. */
export interface Transport {
  readonly send: (words: Word[], key: string) => Promise<unknown>;
  /** Whether the last word may be bytes; the reply to such a command is bytes, too, where it is not a number. */
  readonly takesBytes: boolean;
  /** The primary that has a key; the same object as long as it is the same primary. */
  node(key: string): object;
  /** What people call a primary: its host and port, where they are known. */
  address(node: object): string;
  /** Whether a primary is still one of the cluster's. */
  readonly knows?: (node: object) => boolean;
  /** The connection on which a command for a primary goes out now; undefined where that cannot be told, or there is none. */
  readonly connection?: (node: object) => unknown;
  /** Whether the caller has not closed the client. */
  readonly isOpen?: () => boolean;
  /** Calls when the caller closes the client. */
  readonly ended?: (listener: () => void) => void;
  /** How often another server has become the primary. */
  readonly failovers?: () => number;
  /** Closes what was opened in place of the caller's client. */
  readonly close?: () => void;
  /** Opens a connection of its own to a primary; with a listener, one that has client tracking on. */
  readonly open?: (node: object, listener?: Listener) => Promise<Connection>;
  /** Whether a command is written at once, or the client is connecting, or busy with commands of others. */
  readonly state?: (node: object) => "ready" | "connecting" | "queued";
  /** Whether commands of one turn of the event loop arrive at one server, and in order. */
  readonly isOrdered: boolean;
  /** Whether `open` knows what to do with a listener. */
  readonly tracks: boolean;
}
