/* Make file calls fail, to stand for file servers, quotas and mounts that lack an operation.

   FAIL="CALL:ERRNO:NTH:PART": the NTH call whose path contains PART fails, counted in each process.
   NTH+ also fails all later calls. FAIL_ONCE=FILE: only the first failure of all processes.
   FAIL_LOG=FILE: a line "CALL PATH" for each call whose path contains PART. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long n_calls;

static void note(const char *call, const char *path) {
  const char *log = getenv("FAIL_LOG");
  if (!log) return;
  char line[1200];
  int size = snprintf(line, sizeof line, "%s %s\n", call, path);
  long file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
  syscall(SYS_write, file, line, size);
  syscall(SYS_close, file);
}

static int fails(const char *call, const char *path) {
  const char *wish = getenv("FAIL"), *once = getenv("FAIL_ONCE");
  char wanted[16], part[900] = "";
  int number;
  long nth;
  if (!wish || !path) return 0;
  if (sscanf(wish, "%15[^:]:%d:%ld%*[+:]%899s", wanted, &number, &nth, part) < 3) return 0;
  if (!strstr(path, part)) return 0;
  note(call, path);
  if (strcmp(call, wanted)) return 0;
  long n = __sync_add_and_fetch(&n_calls, 1);
  if (n < nth || (n > nth && !strstr(wish, "+:"))) return 0;
  if (once && syscall(SYS_openat, AT_FDCWD, once, O_WRONLY | O_CREAT | O_EXCL, 0644) < 0) return 0;
  errno = number;
  return 1;
}

static const char *path_of(int file) {
  static __thread char path[1024];
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  ssize_t size = readlink(name, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return path;
}

#define CALL(result, name, call, path, failed, types, ...) \
  result name types {                                      \
    static result(*real) types;                            \
    if (!real) real = dlsym(RTLD_NEXT, #name);             \
    if (fails(call, path)) return failed;                  \
    return real(__VA_ARGS__);                              \
  }
#define OPEN(name)                                         \
  int name(const char *path, int flags, ...) {             \
    static int (*real)(const char *, int, ...);            \
    if (!real) real = dlsym(RTLD_NEXT, #name);             \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    int mode = va_arg(rest, int);                          \
    va_end(rest);                                          \
    if (fails("open", path)) return -1;                    \
    return real(path, flags, mode);                        \
  }

OPEN(open)
OPEN(open64)
CALL(ssize_t, read, "read", path_of(f), -1, (int f, void *b, size_t n), f, b, n)
CALL(ssize_t, write, "write", path_of(f), -1, (int f, const void *b, size_t n), f, b, n)
CALL(ssize_t, writev, "write", path_of(f), -1, (int f, const struct iovec *v, int n), f, v, n)
CALL(int, fsync, "fsync", path_of(f), -1, (int f), f)
CALL(int, flock, "flock", path_of(f), -1, (int f, int o), f, o)
CALL(int, ftruncate64, "truncate", path_of(f), -1, (int f, off_t n), f, n)
CALL(int, rename, "rename", b, -1, (const char *a, const char *b), a, b)
CALL(int, link, "link", b, -1, (const char *a, const char *b), a, b)
CALL(int, mkdir, "mkdir", a, -1, (const char *a, mode_t m), a, m)
CALL(int, unlink, "unlink", a, -1, (const char *a), a)
CALL(void *, mmap, "mmap", path_of(f), MAP_FAILED, (void *a, size_t n, int p, int g, int f, off_t o), a, n, p, g, f, o)
CALL(void *, mmap64, "mmap", path_of(f), MAP_FAILED, (void *a, size_t n, int p, int g, int f, off_t o), a, n, p, g, f, o)
