/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* The state file: one mapping shared by all processes of a simulated node.
 *
 * The live state exists twice. A writer, alone under flock, prepares the copy that does not count and makes it count with
 * one atomic store of the generation: killed before that store it changed nothing, after it everything. Readers take no
 * lock; they copy and look whether the generation moved meanwhile.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static const char MAGIC[8] = "NVMLSIM";
enum { SCHEMA = 1 };

static uint32_t layout_sum(void)
{
    const uint32_t sizes[] = {sizeof(struct state_file), sizeof(struct live), sizeof(struct board), FUNCTION_COUNT};
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sum = (sum ^ sizes[i]) * 16777619u;
    }
    for (int function = 0; function < FUNCTION_COUNT; function++) {
        for (const char *letter = function_names[function]; *letter; letter++) {
            sum = (sum ^ (uint8_t)*letter) * 16777619u;
        }
    }
    return sum;
}

bool map_state(struct mapping *mapping, const char *path, const char **why)
{
    memset(mapping, 0, sizeof *mapping);
    if (realpath(path, mapping->path) == NULL) {
        *why = "the state file does not exist";
        return false;
    }
    int file = open(mapping->path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        *why = "the state file cannot be opened for reading and writing";
        return false;
    }
    struct stat status;
    void *memory = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_size == (off_t)sizeof(struct state_file)) {
        memory = mmap(NULL, sizeof(struct state_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    close(file);
    if (memory == MAP_FAILED) {
        *why = "the state file has another size than this library writes; create it again";
        return false;
    }
    mapping->file = memory;
    mapping->device = status.st_dev;
    mapping->inode = status.st_ino;
    if (memcmp(mapping->file->magic, MAGIC, sizeof MAGIC) != 0 || mapping->file->schema != SCHEMA ||
        mapping->file->layout != layout_sum()) {
        unmap_state(mapping);
        *why = "the state file was written by another version of the simulator; create it again";
        return false;
    }
    return true;
}

void unmap_state(struct mapping *mapping)
{
    if (mapping->file != NULL) {
        munmap(mapping->file, sizeof(struct state_file));
        mapping->file = NULL;
    }
}

bool same_state_file(const struct mapping *mapping, const char *path)
{
    struct stat status;
    return mapping->file != NULL && stat(path, &status) == 0 && status.st_dev == mapping->device &&
           status.st_ino == mapping->inode;
}

/* Written beside and renamed into place, so that nobody ever maps half a file. */
bool write_new_state(const char *path, const struct node *node, const struct live *live, const char **why)
{
    char beside[4096];
    if (snprintf(beside, sizeof beside, "%s.new-%d", path, (int)getpid()) >= (int)sizeof beside) {
        *why = "the path of the state file is too long";
        return false;
    }
    int file = open(beside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        *why = strerror(errno);
        return false;
    }
    void *memory = MAP_FAILED;
    /* Everybody may open it, as everybody may open /dev/nvidiactl: who may change what is the simulated driver's affair. */
    if (fchmod(file, 0666) == 0 && ftruncate(file, sizeof(struct state_file)) == 0) {
        memory = mmap(NULL, sizeof(struct state_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    close(file);
    bool done = false;
    if (memory != MAP_FAILED) {
        struct state_file *state = memory;
        memcpy(state->magic, MAGIC, sizeof MAGIC);
        state->schema = SCHEMA;
        state->layout = layout_sum();
        state->node = *node;
        state->live[0] = *live;
        munmap(memory, sizeof(struct state_file));
        done = rename(beside, path) == 0;
    }
    if (!done) {
        *why = strerror(errno);
        unlink(beside);
    }
    return done;
}

void read_live(const struct state_file *file, void *copy, size_t offset, size_t size)
{
    for (;;) {
        uint64_t generation = atomic_load_explicit(&file->generation, memory_order_acquire);
        memcpy(copy, (const char *)&file->live[generation & 1] + offset, size);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&file->generation, memory_order_relaxed) == generation) {
            return;
        }
    }
}

/* Steps of a change at which a test may have the caller killed: locked, half copied, copied, changed, made to count,
 * unlocked. Only the fifth and later leave the change behind. */
static _Thread_local uint32_t steps_to_live __attribute__((tls_model("initial-exec"))); /* needs no help of the loader */

void die_at_checkpoint(uint32_t checkpoint) { steps_to_live = checkpoint; }

static void checkpoint(void)
{
    if (steps_to_live > 0 && --steps_to_live == 0) {
        kill(getpid(), SIGKILL);
    }
}

/* The lock is taken on a file description of its own each time: it then holds between threads and between a parent and
 * its forked child too, and the kernel drops it when the holder dies. */
bool edit_begin(struct edit *edit, const struct mapping *mapping)
{
    edit->file = mapping->file;
    edit->path = mapping->path;
    edit->lock = open(mapping->path, O_RDWR | O_CLOEXEC);
    if (edit->lock < 0) {
        return false;
    }
    int locked;
    do {
        locked = flock(edit->lock, LOCK_EX);
    } while (locked != 0 && errno == EINTR);
    struct stat status;
    if (locked != 0 || fstat(edit->lock, &status) != 0 || status.st_ino != mapping->inode ||
        status.st_dev != mapping->device) { /* somebody created the node anew under this path */
        close(edit->lock);
        return false;
    }
    uint64_t generation = atomic_load_explicit(&edit->file->generation, memory_order_acquire);
    edit->live = &edit->file->live[(generation + 1) & 1];
    const struct live *now = &edit->file->live[generation & 1];
    checkpoint();
    memcpy(edit->live, now, sizeof *now / 2);
    checkpoint();
    memcpy((char *)edit->live + sizeof *now / 2, (const char *)now + sizeof *now / 2, sizeof *now - sizeof *now / 2);
    checkpoint();
    drop_dead_holders(edit->live);
    return true;
}

/* Make the change count if it succeeded. */
nvmlReturn_t edit_end(struct edit *edit, nvmlReturn_t code)
{
    checkpoint();
    if (code == NVML_SUCCESS) {
        uint64_t before = atomic_fetch_add_explicit(&edit->file->generation, 1, memory_order_release);
        show_instances(edit, &edit->file->live[before & 1]);
    }
    checkpoint();
    flock(edit->lock, LOCK_UN);
    close(edit->lock);
    checkpoint();
    return code;
}
