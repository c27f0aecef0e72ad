/* A module that, when swlimit has granted something, kills the clients of the user `doomed` at once. */
#include <stddef.h>
#include <string.h>

typedef struct Context { int (*get)(const char *name, void *into); } Context;  /* how every context begins */

static void *(*call)(Context *, const char *command, const char *format, ...);
static void (*free_reply)(void *);

static int on_event(Context *context, int type, const char *event, void *key) {
    (void)type, (void)key;
    if (strcmp(event, "swlimit.granted") == 0) free_reply(call(context, "CLIENT", "ccc", "KILL", "USER", "doomed"));
    return 0;
}

int RedisModule_OnLoad(Context *context, void **argv, int argc) {
    void (*set_attributes)(Context *, const char *name, int version, int api);
    int (*subscribe)(Context *, int types, int (*)(Context *, int, const char *, void *));
    (void)argv, (void)argc;
    context->get("RedisModule_Call", &call);
    context->get("RedisModule_FreeCallReply", &free_reply);
    context->get("RedisModule_SetModuleAttribs", &set_attributes);
    context->get("RedisModule_SubscribeToKeyspaceEvents", &subscribe);
    set_attributes(context, "executioner", 1, 1);
    return subscribe(context, 1 << 13, on_event);  /* events of modules */
}
