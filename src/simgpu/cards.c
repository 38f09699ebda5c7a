/*
 * SIMGPU_CARDS: a file through which processes are on the same cards, so that what one has of a card's memory the others lack.
 *
 * A row for each process: what it uses of each card. The first byte of the file is locked while rows are compared and changed, and a
 * process keeps a lock on the byte of its own row. These are locks that the kernel drops when the process ends, however it does, and
 * that a forked child does not inherit: a row whose byte is not locked is nobody's.
 */
#include "simgpu/cards.h"

#include "simgpu/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x3173647261636773)
#define ROWS 255

struct table {
    uint64_t magic;
    _Atomic(uint64_t) used[ROWS][SG_MAX_DEVICES];
};
static struct table *table;
static int file = -1, own;

static bool lock(int byte, short type, int command)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int r;
    do
        r = fcntl(file, command, &l);
    while (r != 0 && errno == EINTR);
    return r == 0;
}

/* Row by row, of which the first lock is the table's. */
static bool is_alive(int row)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 + row, .l_len = 1};
    return fcntl(file, F_GETLK, &l) == 0 && l.l_type != F_UNLCK;
}

static bool map_table(const char *path)
{
    struct stat st;
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0 || !lock(0, F_WRLCK, F_SETLKW) || fstat(file, &st) != 0)
        return false;
    bool fits = S_ISREG(st.st_mode) && (st.st_size == 0 || st.st_size == (off_t)sizeof *table) &&
                ftruncate(file, sizeof *table) == 0;
    void *p = fits ? mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (p == MAP_FAILED)
        return false;
    table = p;
    if (st.st_size == 0)
        table->magic = MAGIC;
    return table->magic == MAGIC;
}

bool sg_cards_start(const char *path)
{
    bool found = false;
    if (!path[0])
        return true;
    if (!map_table(path)) {
        if (file >= 0)
            close(file);
        table = NULL;
        return false;
    }
    for (own = 0; own < ROWS && !found; own += !found)
        found = lock(1 + own, F_WRLCK, F_SETLK);
    for (int card = 0; found && card < SG_MAX_DEVICES; card++)
        atomic_store(&table->used[own][card], 0);
    lock(0, F_UNLCK, F_SETLK);
    if (!found)
        table = NULL;
    return found;
}

static uint64_t others_locked(int card)
{
    uint64_t sum = 0;
    for (int row = 0; row < ROWS; row++) {
        uint64_t used = row == own ? 0 : atomic_load(&table->used[row][card]);
        if (used && is_alive(row))
            sum += used;
    }
    return sum;
}

uint64_t sg_cards_others(int card)
{
    if (!table || !lock(0, F_WRLCK, F_SETLKW))
        return 0;
    uint64_t sum = others_locked(card);
    lock(0, F_UNLCK, F_SETLK);
    return sum;
}

bool sg_cards_take(int card, uint64_t bytes)
{
    if (!table || !lock(0, F_WRLCK, F_SETLKW))
        return true;
    uint64_t used = atomic_load(&table->used[own][card]), others = others_locked(card);
    bool fits = used + others <= sg.config.vram_bytes && bytes <= sg.config.vram_bytes - used - others;
    if (fits)
        atomic_store(&table->used[own][card], used + bytes);
    lock(0, F_UNLCK, F_SETLK);
    return fits;
}

void sg_cards_give(int card, uint64_t bytes)
{
    if (table)
        atomic_fetch_sub(&table->used[own][card], bytes);
}
