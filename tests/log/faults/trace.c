/* Records or refuses the writes of a process to the files below a path prefix. Loaded with LD_PRELOAD; idle until trace_start.

   The journal gets one record per operation: a header, then the data. All of it happens under one lock, so the order of the
   records is the order of the operations. The control block is shared memory: other processes refuse and permit writes with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FD 4096
#define ONLY_GROWTH 1 /* refuse only writes that make a file longer, as a full disk does */
#define SHORT 2       /* the first refused write stores half of its bytes */
#define SYNCS 4       /* fsync and fdatasync fail too */

struct header { uint64_t length, inode, offset, code; };
struct control { volatile uint32_t mode, error, after, flags, writes, refused; }; /* mode: 0 off, 1 refuse writes, 2 SIGSTOP */

static char prefix[4096], folder[4096];
static size_t prefix_length;
static int journal = -1;
static struct control *control;
static uint64_t inodes[MAX_FD]; /* inode of each traced descriptor; 0: not traced */
static char kinds[MAX_FD];      /* 'F' file, 'S' shared memory of SQLite, 'D' the folder */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

static int is_traced(const char *path) { return prefix_length && strncmp(path, prefix, prefix_length) == 0; }
static int is_shm(const char *path) { size_t n = strlen(path); return n > 4 && strcmp(path + n - 4, "-shm") == 0; }
static int is_file(int fd) { return fd >= 0 && fd < MAX_FD && inodes[fd] && kinds[fd] != 'D'; }

static void put(const void *data, size_t length) {
    while (length) {
        ssize_t done = REAL(write)(journal, data, length);
        if (done <= 0) abort();
        data = (const char *)data + done, length -= done;
    }
}

static void record(char code, uint64_t inode, uint64_t offset, const void *data, size_t length) {
    if (journal < 0) return;
    int error = errno;
    struct header header = {length, inode, offset, (uint64_t)code};
    put(&header, sizeof header);
    put(data, length);
    errno = error;
}

static int grows(int fd, off_t end) {
    struct stat status;
    return fstat(fd, &status) == 0 && end > status.st_size;
}

/* Return how many of `length` bytes may be written; -1 with errno set if the write is refused. */
static ssize_t permitted(int fd, off_t offset, size_t length) {
    if (!control || !control->mode || (kinds[fd] == 'S' && !(control->flags & ONLY_GROWTH))) return length;
    if ((control->flags & ONLY_GROWTH) && !grows(fd, offset + length)) return length;
    if (__sync_fetch_and_add(&control->writes, 1) < control->after) return length;
    if (control->mode == 2) {
        control->mode = 0;
        kill(getpid(), SIGSTOP);
        return length;
    }
    if (__sync_fetch_and_add(&control->refused, 1) == 0 && (control->flags & SHORT) && length > 1) return length / 2;
    errno = control->error;
    return -1;
}

int trace_start(const char *path, const char *journal_path, const char *control_path) {
    strncpy(prefix, path, sizeof prefix - 1);
    strncpy(folder, path, sizeof folder - 1);
    *strrchr(folder, '/') = 0;
    prefix_length = strlen(prefix);
    if (*journal_path) journal = REAL(open64)(journal_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (*control_path) {
        int fd = REAL(open64)(control_path, O_RDWR);
        control = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    return control == MAP_FAILED ? -1 : 0;
}

void trace_mark(const char *text, size_t length) {
    pthread_mutex_lock(&lock);
    record('M', 0, 0, text, length);
    pthread_mutex_unlock(&lock);
}

static int opened(int (*call)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    int traced = is_traced(path), is_folder = prefix_length && strcmp(path, folder) == 0;
    if (!traced && !is_folder) return call(path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat status;
    int exists = stat(path, &status) == 0, fd = -1;
    if (traced && !exists && (flags & O_CREAT) && control && control->mode == 1 && control->writes >= control->after) {
        errno = control->error;
        control->refused++;
    } else {
        fd = call(path, flags, mode);
    }
    if (fd >= 0 && fd < MAX_FD && fstat(fd, &status) == 0) {
        inodes[fd] = status.st_ino;
        kinds[fd] = is_folder ? 'D' : is_shm(path) ? 'S' : 'F';
        if (kinds[fd] == 'F' && !exists) record('C', status.st_ino, 0, path, strlen(path));
        if (kinds[fd] == 'F' && exists && (flags & O_TRUNC)) record('T', status.st_ino, 0, "", 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;                                   \
        va_end(arguments);                                                                                             \
        return opened(REAL(name), path, flags, mode);                                                                  \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    if (fd >= 0 && fd < MAX_FD) inodes[fd] = 0;
    return REAL(close)(fd);
}

static ssize_t stored(int fd, const void *data, size_t length, off_t offset, int is_positioned) {
    pthread_mutex_lock(&lock);
    struct stat status;
    if (!is_positioned) {
        offset = lseek(fd, 0, SEEK_CUR);
        if ((fcntl(fd, F_GETFL) & O_APPEND) && fstat(fd, &status) == 0) offset = status.st_size;
    }
    ssize_t done = permitted(fd, offset, length);
    if (done >= 0) done = is_positioned ? REAL(pwrite64)(fd, data, done, offset) : REAL(write)(fd, data, done);
    if (done > 0 && kinds[fd] == 'F') record('W', inodes[fd], offset, data, done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    return is_file(fd) ? stored(fd, data, length, 0, 0) : REAL(write)(fd, data, length);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return is_file(fd) ? stored(fd, data, length, offset, 1) : REAL(pwrite)(fd, data, length, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    return is_file(fd) ? stored(fd, data, length, offset, 1) : REAL(pwrite64)(fd, data, length, offset);
}

static int resized(int fd, off_t size) {
    pthread_mutex_lock(&lock);
    int result = grows(fd, size) && permitted(fd, size - 1, 1) < 0 ? -1 : REAL(ftruncate64)(fd, size);
    if (result == 0 && kinds[fd] == 'F') record('T', inodes[fd], size, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate(int fd, off_t size) { return is_file(fd) ? resized(fd, size) : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return is_file(fd) ? resized(fd, size) : REAL(ftruncate64)(fd, size); }

static int synced(int (*call)(int), int fd) {
    if (fd < 0 || fd >= MAX_FD || !inodes[fd]) return call(fd);
    pthread_mutex_lock(&lock);
    int result = -1;
    if (control && control->mode == 1 && (control->flags & SYNCS) && control->writes >= control->after) errno = control->error;
    else result = call(fd);
    if (result == 0 && kinds[fd] != 'S') record(kinds[fd] == 'D' ? 'D' : 'S', inodes[fd], 0, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int fsync(int fd) { return synced(REAL(fsync), fd); }
int fdatasync(int fd) { return synced(REAL(fdatasync), fd); }

int unlink(const char *path) {
    if (!is_traced(path) || is_shm(path)) return REAL(unlink)(path);
    pthread_mutex_lock(&lock);
    int result = REAL(unlink)(path);
    if (result == 0) record('U', 0, 0, path, strlen(path));
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *from, const char *to) {
    if (!is_traced(from) && !is_traced(to)) return REAL(rename)(from, to);
    pthread_mutex_lock(&lock);
    int result = REAL(rename)(from, to);
    if (result == 0) {
        char names[8192];
        size_t first = strlen(from) + 1, second = strlen(to);
        memcpy(names, from, first);
        memcpy(names + first, to, second);
        record('R', 0, 0, names, first + second);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
