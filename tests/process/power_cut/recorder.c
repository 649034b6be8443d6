/* Records every write, truncation and sync of files below RECORD_FOLDER to RECORD_FILE, in order. For LD_PRELOAD.
   With FAULT_SEED, some writes and syncs of the database fail with EIO once FAULTS_BEGIN exists in RECORD_FOLDER. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int record_fd = -1;

#define REAL(name, type) static type real; if (!real) real = (type)dlsym(RTLD_NEXT, name)

static int path_of(int fd, char *path) {
    static const char *folder;
    char link[64];
    if (!folder && !(folder = getenv("RECORD_FOLDER"))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static void record(char kind, const char *path, int64_t offset, const void *data, int64_t size) {
    typedef ssize_t (*write_t)(int, const void *, size_t);
    REAL("write", write_t);
    char head[64 + PATH_MAX];
    if (record_fd < 0) record_fd = open(getenv("RECORD_FILE"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    int length = snprintf(head, sizeof head, "%c %lld %lld %s\n", kind, (long long)offset, (long long)size, path);
    if (real(record_fd, head, length) != length) abort();
    if (data && real(record_fd, data, size) != size) abort();
}

static int fails(const char *path) {
    static unsigned seed;
    static int has_begun;
    char begin[PATH_MAX];
    const char *text = getenv("FAULT_SEED");
    if (!text || !strstr(path, ".db")) return 0;
    if (!has_begun) {
        snprintf(begin, sizeof begin, "%s/faults_begin", getenv("RECORD_FOLDER"));
        if (access(begin, F_OK) != 0) return 0;
        has_begun = 1;
        seed = atoi(text);
    }
    return rand_r(&seed) % 25 == 0;
}

typedef ssize_t (*pwrite_t)(int, const void *, size_t, off64_t);
static ssize_t recorded_pwrite(pwrite_t real, int fd, const void *data, size_t size, off64_t offset) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return real(fd, data, size, offset);
    pthread_mutex_lock(&lock);
    if (fails(path)) {
        pthread_mutex_unlock(&lock);
        errno = EIO;
        return -1;
    }
    record('w', path, offset, data, size);
    ssize_t result = real(fd, data, size, offset);
    pthread_mutex_unlock(&lock);
    return result;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL("pwrite64", pwrite_t);
    return recorded_pwrite(real, fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL("pwrite", pwrite_t);
    return recorded_pwrite(real, fd, data, size, offset);
}

typedef int (*truncate_t)(int, off64_t);
static int recorded_truncate(truncate_t real, int fd, off64_t size) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return real(fd, size);
    pthread_mutex_lock(&lock);
    record('t', path, size, NULL, 0);
    int result = real(fd, size);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate64(int fd, off64_t size) {
    REAL("ftruncate64", truncate_t);
    return recorded_truncate(real, fd, size);
}

int ftruncate(int fd, off_t size) {
    REAL("ftruncate", truncate_t);
    return recorded_truncate(real, fd, size);
}

typedef int (*sync_t)(int);
static int recorded_sync(sync_t real, int fd) {
    char path[PATH_MAX];
    int result = real(fd);
    if (result == 0 && path_of(fd, path)) {
        pthread_mutex_lock(&lock);
        int failed = fails(path);
        record(failed ? 'f' : 's', path, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
        if (failed) {
            errno = EIO;
            return -1;
        }
    }
    return result;
}

int fsync(int fd) {
    REAL("fsync", sync_t);
    return recorded_sync(real, fd);
}

int fdatasync(int fd) {
    REAL("fdatasync", sync_t);
    return recorded_sync(real, fd);
}
