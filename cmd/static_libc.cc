// Stands in for the parts of libc that a static executable cannot hold: their static forms would
// load shared objects of the machine's own libc. OpenSSL refers to them; bolt loads no module and
// opens no connection, so each says no. Only the fully static executable is linked with these, by
// the linker's --wrap (cmd/CMakeLists.txt).
#include <netdb.h>

extern "C" {

void* __wrap_dlopen(const char*, int) { return nullptr; }

int __wrap_getaddrinfo(const char*, const char*, const addrinfo*, addrinfo**) { return EAI_FAIL; }

void __wrap_freeaddrinfo(addrinfo*) {}

int __wrap_getnameinfo(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int) {
  return EAI_FAIL;
}

hostent* __wrap_gethostbyname(const char*) { return nullptr; }

}  // extern "C"
