/* Names that do not resolve, and take their time: getaddrinfo waits for ever, as behind a name server that is gone. */

#include <netdb.h>
#include <unistd.h>

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    (void)name, (void)service, (void)hints, (void)found;
    for (;;) {
        sleep(1000);
    }
}
