/** Which errors say that the other side is overloaded. */

const STATUSES = new Set<unknown>([429, 503, 504]);

/** DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE. */
const GRPC_CODES = new Set<unknown>([4, 8, 14]);

/** Of Node.js, undici (which is `fetch`) and axios. */
const TIMEOUTS = /^(ETIMEDOUT|ESOCKETTIMEDOUT|ECONNABORTED|UND_ERR_(CONNECT|HEADERS|BODY)_TIMEOUT)$/;

/** Whether a response, or an error that came instead of it, has the HTTP status 429, 503 or 504. */
export function isDroppedStatus(response: unknown): boolean {
  return STATUSES.has(statusOf(response));
}

/** Whether a response has the status of an error. */
export function isErrorStatus(response: unknown): boolean {
  const status = statusOf(response);
  return typeof status === "number" && status >= 400;
}

function statusOf(response: unknown): unknown {
  const { status, statusCode } = fieldsOf(response);
  return status ?? statusCode;
}

/** Of an error that caused itself, as many. */
const MOST_CAUSES = 10;

/** Whether an error, or one that caused it, is a time-out, has such a status, or is gRPC's of an overload. */
export function isDrop(error: unknown, causes = MOST_CAUSES): boolean {
  const { name, code, details, response, cause } = fieldsOf(error);
  if (name === "TimeoutError" || (typeof code === "string" && TIMEOUTS.test(code))) return true;
  if (typeof details === "string" && GRPC_CODES.has(code)) return true;
  return isDroppedStatus(error) || isDroppedStatus(response) || (causes > 0 && isDrop(cause, causes - 1));
}

function fieldsOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}
