/** Which errors say that the other side is overloaded. */

const STATUSES = new Set<unknown>([429, 503]);

/** DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE. */
const GRPC_CODES = new Set<unknown>([4, 8, 14]);

/** Of Node.js, undici (which is `fetch`) and axios. */
const TIMEOUTS = /^(ETIMEDOUT|ESOCKETTIMEDOUT|ECONNABORTED|UND_ERR_(CONNECT|HEADERS|BODY)_TIMEOUT)$/;

/** Whether a response, or an error that came instead of it, has the HTTP status 429 or 503. */
export function isDroppedStatus(response: unknown): boolean {
  const { status, statusCode } = fieldsOf(response);
  return STATUSES.has(status) || STATUSES.has(statusCode);
}

/** Whether an error is a time-out, has such a status, or is gRPC's of an overload. */
export function isDrop(error: unknown): boolean {
  const { name, code, details, response, cause } = fieldsOf(error);
  if (name === "TimeoutError" || (typeof code === "string" && TIMEOUTS.test(code))) return true;
  if (typeof details === "string" && GRPC_CODES.has(code)) return true;
  return isDroppedStatus(error) || isDroppedStatus(response) || (cause !== undefined && isDrop(cause));
}

function fieldsOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}
