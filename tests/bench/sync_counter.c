/* Preloaded into the servers: counts calls that wait for the disk, in a file that all processes map. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static unsigned long *counter;

__attribute__((constructor)) static void map_counter(void) {
    const char *path = getenv("MARKPOST_BENCH_SYNCS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) counter = page;
    close(file);
}

static void count(void) {
    if (counter) __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

#define COUNTED(name, parameters, arguments)                          \
    int name parameters {                                             \
        static int(*next) parameters;                                 \
        if (!next) next = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
        count();                                                      \
        return next arguments;                                        \
    }

COUNTED(fsync, (int file), (file))
COUNTED(fdatasync, (int file), (file))
COUNTED(syncfs, (int file), (file))
COUNTED(msync, (void *start, size_t length, int flags), (start, length, flags))
COUNTED(sync_file_range, (int file, off64_t start, off64_t length, unsigned int flags), (file, start, length, flags))
