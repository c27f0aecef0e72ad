/* A module whose command CALLER.TOP calls SWLIMIT.TOP: in the server's name, or with C as its argument as the client's
   user. Without the servers' header, which this project has no copy of. */
#include <stddef.h>

static void *(*call)(void *ctx, const char *command, const char *format, ...);
static int (*reply_with)(void *ctx, void *reply);
static void (*free_reply)(void *reply);

static int top(void *ctx, void **argv, int argc) {
    (void)argv;
    void *reply = call(ctx, "SWLIMIT.TOP", argc > 1 ? "C" : "");
    int result = reply_with(ctx, reply);
    free_reply(reply);
    return result;
}

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    int (*get)(const char *name, void *function) = *(int (**)(const char *, void *))ctx;
    void (*set_attributes)(void *ctx, const char *name, int version, int api);
    int (*create)(void *ctx, const char *name, int (*run)(void *, void **, int), const char *flags, int, int, int);
    (void)argv, (void)argc;
    get("RedisModule_SetModuleAttribs", &set_attributes);
    get("RedisModule_CreateCommand", &create);
    get("RedisModule_Call", &call);
    get("RedisModule_ReplyWithCallReply", &reply_with);
    get("RedisModule_FreeCallReply", &free_reply);
    set_attributes(ctx, "caller", 1, 1);
    return create(ctx, "caller.top", top, "", 0, 0, 0);
}
