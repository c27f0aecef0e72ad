/** What users of either release write, as the compiler reads it. Nothing runs this. */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenAICompatible as createOpenAICompatible7 } from "@ai-sdk/openai-compatible-7";
import { wrapLanguageModel } from "ai";
import { wrapLanguageModel as wrapLanguageModel7 } from "ai-7";
import { Limiter } from "swlimit";
import { rateLimit } from "swlimit/ai-sdk";

const limiter = new Limiter({ limit: 1000, window: "1m" });
const options = { name: "local", baseURL: "http://127.0.0.1:8000/v1" };

export const of6 = wrapLanguageModel({
  model: createOpenAICompatible(options)("small"),
  middleware: rateLimit({
    parts: ({ params, model }) => [{ limiter, key: model.modelId, name: "tokens", cost: params.maxOutputTokens ?? 1 }],
    wait: "10s",
  }),
});

export const of7 = wrapLanguageModel7({
  model: createOpenAICompatible7(options)("small"),
  middleware: [
    rateLimit({
      parts: ({ params, model }) => [
        { limiter, key: model.modelId, name: "tokens", cost: params.maxOutputTokens ?? 1 },
      ],
    }),
  ],
});

wrapLanguageModel({
  model: createOpenAICompatible(options)("small"),
  // @ts-expect-error: parts are needed
  middleware: rateLimit({ wait: "10s" }),
});
