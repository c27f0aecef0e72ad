/* A module that changes keys when it gets an event, as subscribers may. SABOTEUR.ARM event deed [key …] arms it once:
   `delete` and `rename` are done to those keys, `flush` to all of them; `hold key` sends a HOLD of that key, with room for
   many, and `call word …` that command. SABOTEUR.DISARM disarms it, and replies how often it has acted since it was
   loaded. Without the servers' header, which this project has no copy of. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct Context { int (*get)(const char *name, void *into); } Context;  /* how every context begins */

enum { KEYS = 8, LENGTH = 64 };

static void *(*call)(Context *, const char *command, const char *format, ...);
static void (*free_reply)(void *);
static const char *(*text_of)(void *string, size_t *len);
static int (*reply_number)(Context *, long long);

static char event_armed[LENGTH], deed[LENGTH], keys[KEYS][LENGTH];
static int key_count;
static long long deeds;

static void run(void *reply) {
    if (reply) free_reply(reply);
}

static int on_event(Context *context, int type, const char *event, void *key) {
    (void)type, (void)key;
    if (!event_armed[0] || strcmp(event, event_armed) != 0) return 0;
    event_armed[0] = 0;  /* once: what it does raises events, too */
    deeds++;
    if (strcmp(deed, "flush") == 0) run(call(context, "FLUSHALL", "!c", "SYNC"));
    if (strcmp(deed, "call") == 0) {
        const char *format = &"ccccccc!"[KEYS - key_count];
        run(call(context, keys[0], format, keys[1], keys[2], keys[3], keys[4], keys[5], keys[6], keys[7]));
        return 0;
    }
    for (int place = 0; place < key_count; place++) {
        char other[LENGTH + 8];
        snprintf(other, sizeof other, "gone:%s", keys[place]);
        if (strcmp(deed, "delete") == 0) run(call(context, "DEL", "!c", keys[place]));
        if (strcmp(deed, "rename") == 0) run(call(context, "RENAME", "!cc", keys[place], other));
        if (strcmp(deed, "hold") == 0) run(call(context, "SWLIMIT.HOLD", "!cccc", keys[place], "1000", "1h", "saboteur"));
    }
    /* Memory that was freed is used again. */
    for (int number = 0; number < 20; number++) {
        char name[LENGTH];
        snprintf(name, sizeof name, "junk:%d", number);
        run(call(context, "SET", "!cc", name, "0123456789012345678901234567890123456789"));
    }
    return 0;
}

static int arm(Context *context, void **words, int count) {
    char *into[] = {event_armed, deed};
    event_armed[0] = 0;
    key_count = 0;
    for (int place = 1; place < count && place < 3 + KEYS; place++) {
        size_t len;
        const char *text = text_of(words[place], &len);
        snprintf(place < 3 ? into[place - 1] : keys[key_count++], LENGTH, "%.*s", (int)len, text);
    }
    return reply_number(context, deeds);
}

static int disarm(Context *context, void **words, int count) {
    (void)words, (void)count;
    event_armed[0] = 0;
    return reply_number(context, deeds);
}

int RedisModule_OnLoad(Context *context, void **argv, int argc) {
    void (*set_attributes)(Context *, const char *name, int version, int api);
    int (*subscribe)(Context *, int types, int (*)(Context *, int, const char *, void *));
    int (*create)(Context *, const char *name, int (*run)(Context *, void **, int), const char *flags, int, int, int);
    (void)argv, (void)argc;
    context->get("RedisModule_Call", &call);
    context->get("RedisModule_FreeCallReply", &free_reply);
    context->get("RedisModule_StringPtrLen", &text_of);
    context->get("RedisModule_ReplyWithLongLong", &reply_number);
    context->get("RedisModule_SetModuleAttribs", &set_attributes);
    context->get("RedisModule_SubscribeToKeyspaceEvents", &subscribe);
    context->get("RedisModule_CreateCommand", &create);
    set_attributes(context, "saboteur", 1, 1);
    if (create(context, "saboteur.arm", arm, "", 0, 0, 0) || create(context, "saboteur.disarm", disarm, "", 0, 0, 0))
        return 1;
    /* Events of modules, expired keys, and generic ones: DEL and the like. */
    return subscribe(context, 1 << 13 | 1 << 8 | 1 << 2, on_event);
}
