/** What the page for Node.js uses of Next.js, whose package the tests do not install. */
declare module "next/server" {
  export class NextRequest extends Request {}
  export class NextResponse extends Response {
    static next(init?: { headers?: Record<string, string> }): NextResponse;
  }
}
