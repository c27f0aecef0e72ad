import * as m0 from "swlimit";
import * as m1 from "swlimit/ai-sdk";
import * as m2 from "swlimit/bullmq";
import * as m3 from "swlimit/edge";
import * as m4 from "swlimit/express";
import * as m5 from "swlimit/express-rate-limit";
import * as m6 from "swlimit/fastify";
import * as m7 from "swlimit/fastify-rate-limit";
import * as m8 from "swlimit/hono";
import * as m9 from "swlimit/koa";
import * as m10 from "swlimit/nestjs";
import * as m11 from "swlimit/opentelemetry";
import * as m12 from "swlimit/prometheus";
import * as m13 from "swlimit/rate-limiter-flexible";
import * as m14 from "swlimit/testing";
import * as m15 from "swlimit/ws";

// @ts-expect-error: either a period or a window
new m0.BudgetLimiter({ limit: 1, period: "month", window: "1m" });
export const wrong: number[] = [m0,m1,m2,m3,m4,m5,m6,m7,m8,m9,m10,m11,m12,m13,m14,m15,];
