/** Limits of WebSockets, for the package ws. */

import type { IncomingMessage } from "node:http";
import { requested } from "../core/options.js";
import type { Hold } from "../limiters/hold.js";
import { addressKey, type HoldRule, holdFor, holdRuleOf, judge, type Reading, type Rule, rulesOf } from "./http.js";

/** The codes that close a WebSocket: too many connections, too many messages, an error of a limiter. */
const TRY_AGAIN_LATER = 1013;
const POLICY_VIOLATION = 1008;
const INTERNAL_ERROR = 1011;

/** The state of a WebSocket that is closed. */
const CLOSED = 3;

/** The used part of a WebSocket. */
export interface LimitedSocket {
  readonly readyState: number;
  emit(event: string | symbol, ...args: unknown[]): boolean;
  close(code: number, reason: string): void;
  pause(): void;
  resume(): void;
}

export interface WebSocketRules {
  /** How many are connected at once. */
  readonly connections?: HoldRule<IncomingMessage>;
  /** How many messages they send; of a list all must grant. */
  readonly messages?: Rule<IncomingMessage> | readonly Rule<IncomingMessage>[];
}

const READING: Reading<IncomingMessage> = {
  method: ({ method = "GET" }) => method,
  address: ({ socket }) => (socket.remoteAddress === undefined ? undefined : addressKey(socket.remoteAddress)),
};

/**
 * A listener for a server's event "connection", which calls `listener` with each connection that finds a place. One that
 * finds none is closed with code 1013 (try again later). A message beyond the limit is not emitted, and closes its
 * connection with code 1008 (policy violation).
 *
 * @example
 * import { webSocketLimit } from "swlimit/ws";
 * import { WebSocketServer } from "ws";
 *
 * const messages = { limiter: new Limiter({ client, limit: 20, window: "1s" }) };
 * const server = new WebSocketServer({ port: 8080 });
 * server.on("connection", webSocketLimit({ messages }, (socket) => socket.on("message", console.log)));
 *
 * @throws TypeError when a rule is wrong.
 */
export function webSocketLimit<Socket extends LimitedSocket>(
  rules: WebSocketRules,
  listener: (socket: Socket, request: IncomingMessage) => void,
): (socket: Socket, request: IncomingMessage) => void {
  const { connections, messages } = requested(rules, new Set(["connections", "messages"]));
  if (!connections && !messages) throw new TypeError("webSocketLimit needs connections, messages, or both");
  const checked = {
    connections: connections && holdRuleOf(connections),
    messages: messages && rulesOf(messages),
  };
  return (socket, request) => new LimitedConnection(checked, socket, request).open(() => listener(socket, request));
}

interface CheckedRules {
  readonly connections: HoldRule<IncomingMessage> | undefined;
  readonly messages: readonly Rule<IncomingMessage>[] | undefined;
}

/** A WebSocket whose events "message" and "close" wait in order until the limits have decided. */
class LimitedConnection {
  private readonly emit: LimitedSocket["emit"];
  private hold: Hold | null = null;
  private last: Promise<void> = Promise.resolve();
  private waiting = 0;
  /** Whether the listener has it. */
  private isOpen = false;
  /** No message is emitted any more. */
  private isRefused = false;
  private hasLeft: boolean;

  constructor(
    private readonly rules: CheckedRules,
    private readonly socket: LimitedSocket,
    private readonly request: IncomingMessage,
  ) {
    this.hasLeft = socket.readyState === CLOSED;
    this.emit = socket.emit.bind(socket);
    // A listener of "message" could not keep a message from the other listeners.
    socket.emit = (event, ...args) => {
      if (event === "close") this.left();
      if (event === "error" && !this.isOpen) return false; // nobody listens, which would end the process
      if (event !== "message" && event !== "close") return this.emit(event, ...args);
      this.inOrder(async () => {
        if (event === "close" || (await this.mayPass())) this.emit(event, ...args);
      });
      return true;
    };
  }

  open(listen: () => void): void {
    this.inOrder(async () => {
      const { connections } = this.rules;
      if (connections) this.hold = await this.decided(() => holdFor(connections, this.request, READING));
      if (this.hold?.granted === 0) this.refuse(TRY_AGAIN_LATER, "too many connections");
      if (this.hasLeft) this.left();
      if (this.isRefused) return;
      this.isOpen = true;
      listen();
    });
  }

  private left(): void {
    this.hasLeft = true;
    void this.hold?.release();
  }

  private async mayPass(): Promise<boolean> {
    const { messages } = this.rules;
    if (this.isRefused) return false;
    const verdict = messages ? await this.decided(() => judge(messages, this.request, READING)) : null;
    if (!verdict || verdict.granted) return !this.isRefused;
    const { retryAfter } = verdict;
    const wait = retryAfter === undefined ? "" : `, retry after ${Math.ceil(retryAfter / 1000)} s`;
    this.refuse(POLICY_VIOLATION, `too many messages${wait}`);
    return false;
  }

  /** What a limit decides; null after an error, which refuses the connection. */
  private async decided<T>(decide: () => Promise<T>): Promise<T | null> {
    try {
      return await decide();
    } catch (error) {
      this.refuse(INTERNAL_ERROR, "the limits failed");
      process.emitWarning(error as Error);
      return null;
    }
  }

  private refuse(code: number, reason: string): void {
    this.isRefused = true;
    this.socket.close(code, reason);
  }

  /** Do `work` after what came before. The client sends no more meanwhile than what is under way. */
  private inOrder(work: () => Promise<void>): void {
    if (this.waiting++ === 0) this.socket.pause();
    this.last = this.last.then(work).catch((error) => {
      setImmediate(() => {
        throw error; // of a listener
      });
    });
    this.last.then(() => {
      if (--this.waiting === 0) this.socket.resume();
    });
  }
}
