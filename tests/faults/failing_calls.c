/* Preloaded into the program (cli_faults_test.cc): PITH_FAIL=CALL:N lets the Nth call of the process
 * fail, from 0 on, as a machine without memory or with a full disk would. At the end the number of
 * calls is written to the file that PITH_FAIL_COUNT names. Calls: malloc (and calloc, realloc,
 * aligned_alloc; not posix_memalign, which oneDNN calls and does not check), write, fsync, rename. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

static char failing[16];
static long failing_at = -1;
static atomic_long calls;

__attribute__((constructor(101))) static void begin(void) {
  const char* text = getenv("PITH_FAIL");
  if (text != NULL) sscanf(text, "%15[^:]:%ld", failing, &failing_at);
}

__attribute__((destructor)) static void end(void) {
  const char* path = getenv("PITH_FAIL_COUNT");
  if (path == NULL) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dprintf(file, "%ld\n", (long)calls);
  close(file);
}

static int fails(const char* call) {
  return failing_at >= 0 && strcmp(failing, call) == 0 && atomic_fetch_add(&calls, 1) == failing_at;
}

static void* next(const char* name) { return dlsym(RTLD_NEXT, name); }

void* malloc(size_t size) {
  if (!fails("malloc")) return __libc_malloc(size);
  errno = ENOMEM;
  return NULL;
}

void* calloc(size_t count, size_t size) {
  if (!fails("malloc")) return __libc_calloc(count, size);
  errno = ENOMEM;
  return NULL;
}

void* realloc(void* old, size_t size) {
  if (!fails("malloc")) return __libc_realloc(old, size);
  errno = ENOMEM;
  return NULL;
}

void* aligned_alloc(size_t alignment, size_t size) {
  if (!fails("malloc")) return __libc_memalign(alignment, size);
  errno = ENOMEM;
  return NULL;
}

ssize_t write(int file, const void* bytes, size_t size) {
  static ssize_t (*real)(int, const void*, size_t);
  if (real == NULL) *(void**)&real = next("write");
  if (file > 2 && fails("write")) {
    errno = ENOSPC;
    return -1;
  }
  return real(file, bytes, size);
}

int fsync(int file) {
  static int (*real)(int);
  if (real == NULL) *(void**)&real = next("fsync");
  if (fails("fsync")) {
    errno = EIO;
    return -1;
  }
  return real(file);
}

int rename(const char* from, const char* to) {
  static int (*real)(const char*, const char*);
  if (real == NULL) *(void**)&real = next("rename");
  if (fails("rename")) {
    errno = EIO;
    return -1;
  }
  return real(from, to);
}
