/** A middleware for the language models of the AI SDK, release 6 or 7: each of their requests is admitted and settled. */

import type { Admission, AdmitOptions } from "../limiters/admission.js";
import { ofRequests, type Part } from "../limiters/member.js";
import { NotAdmittedError, type Spending, spending } from "../limiters/spending.js";

/** The interfaces of language models whose results this middleware knows: those of release 6 and of release 7. */
const SPECIFICATIONS = ["v3", "v4"];

/** The used part of a model. */
interface AnyModel {
  readonly specificationVersion: string;
  readonly provider: string;
  readonly modelId: string;
  readonly supportedUrls: PromiseLike<Record<string, RegExp[]>> | Record<string, RegExp[]>;
}

/** The used part of a request. */
interface AnyCall {
  readonly abortSignal?: AbortSignal | undefined;
}

/** The used part of what a model tells about its tokens. */
interface AnyUsage {
  readonly inputTokens: { readonly total: number | undefined };
  readonly outputTokens: { readonly total: number | undefined };
}

interface AnyResult {
  readonly usage: AnyUsage;
}

interface AnyStream {
  readonly stream: ReadableStream;
}

export interface ModelLimits<Call, Model> extends Omit<AdmitOptions, "signal"> {
  /**
   * The limits of a request. The parts with the names "tokens", "inputTokens" and "outputTokens" are settled with the
   * numbers that the model tells; their cost is the estimate.
   */
  readonly parts: (request: { readonly params: Call; readonly model: Model }) => readonly Part[];
}

/** A request to a model, as middlewares get it. */
interface Request<Call, Model> {
  readonly params: Call;
  readonly model: Model;
}

export interface ModelMiddleware<Version extends string, Call, Model> {
  readonly specificationVersion: Version;
  overrideSupportedUrls(options: { readonly model: Model }): AnyModel["supportedUrls"];
  wrapGenerate<Result extends AnyResult>(
    options: Request<Call, Model> & { doGenerate: () => PromiseLike<Result> },
  ): Promise<Result>;
  wrapStream<Result extends AnyStream>(
    options: Request<Call, Model> & { doStream: () => PromiseLike<Result> },
  ): Promise<Result>;
}

/** The AI SDK knows its errors by these symbols, and waits before it tries again as their headers say. */
const MARKS = ["vercel.ai.error", "vercel.ai.error.AI_APICallError"].map((name) => Symbol.for(name));

/** A denial, as the AI SDK knows errors of models: an APICallError. */
export class ModelDeniedError extends NotAdmittedError {
  override name = "AI_APICallError";
  readonly url = "";
  readonly requestBodyValues = {};
  readonly responseHeaders: Record<string, string>;
  /** 400 for a cost above the limit, which trying again does not help; else 429. */
  readonly statusCode: 400 | 429;
  readonly isRetryable: boolean;

  constructor(admission: Admission) {
    super(admission);
    const headers = Object.entries(admission.headers({ standard: false }));
    this.responseHeaders = Object.fromEntries(headers.map(([name, value]) => [name.toLowerCase(), value]));
    this.isRetryable = !admission.never;
    this.statusCode = this.isRetryable ? 429 : 400;
    for (const mark of MARKS) Object.defineProperty(this, mark, { value: true });
  }
}

/**
 * A middleware for `wrapLanguageModel`. Each attempt of the AI SDK is a request of its own: an error with a status gives
 * its units back, and after any other end without usage the estimate stays counted.
 *
 * @example
 * import { gateway, wrapLanguageModel } from "ai";
 * import { rateLimit } from "swlimit/ai-sdk";
 *
 * const limiter = new Limiter({ client, limit: 100_000, window: "1m" });
 * const model = wrapLanguageModel({
 *   model: gateway("openai/gpt-5"),
 *   middleware: rateLimit({ parts: () => [{ limiter, key: "ann", name: "tokens", cost: 500 }] }),
 * });
 */
export function rateLimit<
  Version extends "v3" | "v4",
  Call extends AnyCall = AnyCall,
  Model extends AnyModel = AnyModel,
>({ parts, maxAge = "10m", ...options }: ModelLimits<Call, Model>): ModelMiddleware<Version, Call, Model> {
  const begun = ({ params, model }: Request<Call, Model>) =>
    begin(parts({ params, model }), { ...options, maxAge, signal: params.abortSignal });
  return {
    specificationVersion: SPECIFICATIONS.at(-1) as Version, // which neither release reads
    overrideSupportedUrls: ({ model }) => {
      if (SPECIFICATIONS.includes(model.specificationVersion)) return model.supportedUrls;
      throw new TypeError(
        `swlimit/ai-sdk is for the releases 6 and 7 of the package ai, whose models have the specification v3 or v4. ` +
          `${model.modelId} has ${model.specificationVersion}`,
      );
    },
    wrapGenerate: async (request) => {
      const spent = await begun(request);
      const result = await attempted(spent, request.doGenerate);
      saw(spent, result.usage);
      await spent[Symbol.asyncDispose]();
      return result;
    },
    wrapStream: async (request) => {
      const spent = await begun(request);
      const result = await attempted(spent, request.doStream);
      return { ...result, stream: watched(result.stream, spent) };
    },
  };
}

async function begin(parts: readonly Part[], options: AdmitOptions): Promise<Spending> {
  try {
    return await spending(ofRequests(parts), options);
  } catch (error) {
    throw error instanceof NotAdmittedError ? new ModelDeniedError(error.admission) : error;
  }
}

/** What a model replies to an attempt. One that it refuses with a status has used nothing; of others that is unknown. */
async function attempted<Result>(spent: Spending, attempt: () => PromiseLike<Result>): Promise<Result> {
  try {
    return await attempt();
  } catch (error) {
    const { statusCode } = (error ?? {}) as { statusCode?: number };
    await (statusCode !== undefined && statusCode >= 400 ? spent.giveBack() : spent[Symbol.asyncDispose]());
    throw error;
  }
}

/** The same stream, settled when it ends: also when it breaks, or its reader leaves. */
function watched(stream: ReadableStream, spent: Spending): ReadableStream {
  const reader = stream.getReader();
  const end = () => spent[Symbol.asyncDispose]();
  return new ReadableStream(
    {
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (value?.type === "finish") saw(spent, value.usage);
          if (!done) return controller.enqueue(value);
          await end();
          controller.close();
        } catch (error) {
          await end();
          controller.error(error);
        }
      },
      async cancel(reason) {
        await end();
        await reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
}

/** What is missing, or no number of tokens, is unknown. */
function saw(spent: Spending, usage: AnyUsage | undefined): void {
  const [inputTokens, outputTokens] = [usage?.inputTokens?.total, usage?.outputTokens?.total];
  const tokens = Number(inputTokens) + Number(outputTokens);
  const names = new Set(spent.admission.parts.map(({ name }) => name));
  const known = Object.entries({ tokens, inputTokens, outputTokens }).filter(
    ([name, units]) => names.has(name) && Number.isSafeInteger(units) && Number(units) >= 0,
  );
  spent.saw(Object.fromEntries(known));
}
