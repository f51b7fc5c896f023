/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* Processes that hold a GPU or an instance, and the lists NVML gives of them. */

#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"

/* Field 22 of /proc/PID/stat; 0 when it cannot be read, 1 for a zombie, which holds nothing any more. */
uint64_t process_start_time(int pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    char *rest = strrchr(text, ')'); /* the name before it may contain anything */
    char state = '\0';
    unsigned long long start = 0;
    if (rest == NULL || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                               &state, &start) != 2) {
        return 0;
    }
    return state == 'Z' || state == 'X' ? 1 : (uint64_t)start;
}

/* Processes of several namespaces can share a node: a computer that is a container, and the one that it runs on. Numbers
 * of one mean nothing in the other. */
uint32_t pid_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint32_t)status.st_ino : 0;
}

/* The number that a process has in its own namespace: the last one on a line of its status. */
static int inner_pid(const char *process)
{
    char path[300], line[512];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%s/status", process);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "NSpid:", 6) == 0) {
            char *last = strrchr(line, '\t');
            pid = last != NULL ? atoi(last) : 0;
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return pid;
}

/* A process of another namespace is seen from those that lie around that one, and from there only. */
static bool is_seen_to_have_ended(uint32_t namespace, int pid)
{
    DIR *processes = opendir("/proc");
    bool sees_others = false, found = false;
    for (struct dirent *entry; processes != NULL && !found && (entry = readdir(processes)) != NULL;) {
        char path[300];
        struct stat status;
        snprintf(path, sizeof path, "/proc/%s/ns/pid", entry->d_name);
        if (isdigit((unsigned char)entry->d_name[0]) && stat(path, &status) == 0 && status.st_ino == namespace) {
            sees_others = true;
            found = inner_pid(entry->d_name) == pid;
        }
    }
    if (processes != NULL) {
        closedir(processes);
    }
    return sees_others && !found;
}

/* One that cannot be looked at from here counts until somebody sees that it has ended. */
bool holder_is_alive(const struct holder *holder)
{
    if (holder->pid_namespace != 0 && holder->pid_namespace != pid_namespace()) {
        return !is_seen_to_have_ended(holder->pid_namespace, holder->pid);
    }
    if (kill(holder->pid, 0) != 0 && errno == ESRCH) {
        return false;
    }
    uint64_t start = process_start_time(holder->pid);
    return start == 0 || holder->start_time == 0 || start == holder->start_time;
}

void drop_dead_holders(struct live *live)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < live->n_holders; i++) {
        if (holder_is_alive(&live->holders[i])) {
            live->holders[kept++] = live->holders[i];
        }
    }
    live->n_holders = kept;
}

static bool level_matches(int asked, int held) { return asked == ANY_LEVEL || asked == held; }

/* Whether somebody holds this; ANY_LEVEL also takes what lies inside, -1 means the whole only. */
bool is_held(const struct live *live, int gpu, int gi, int ci, bool clients_count)
{
    for (uint32_t i = 0; i < live->n_holders; i++) {
        const struct holder *holder = &live->holders[i];
        if (holder->gpu == gpu && level_matches(gi, holder->gi) && level_matches(ci, holder->ci) &&
            (clients_count || holder->kind != CLIENT)) {
            return true;
        }
    }
    return false;
}

/* ---- process lists ------------------------------------------------------------------------------------------------ */

static bool is_listed(const struct holder *holder, nvmlDevice_t device, enum holder_kind kind)
{
    return holder->gpu == device->gpu && holder->kind == kind &&
           (device->kind == GPU_HANDLE || (holder->gi == device->gi && holder->ci == device->ci)) &&
           holder_is_alive(holder);
}

static nvmlReturn_t may_list(nvmlDevice_t device)
{
    if (is_kind(device, MIG_HANDLE)) {
        return NVML_SUCCESS;
    }
    if (!is_kind(device, GPU_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct live_gpu live;
    read_gpu(device->gpu, &live);
    return live.current && !privileged() ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

/* Two calls: too little room, and the answer is INSUFFICIENT_SIZE with the number needed. */
static nvmlReturn_t list(nvmlDevice_t device, int kind, unsigned *count, void *infos, bool v1)
{
    nvmlReturn_t code = may_list(device);
    if (code != NVML_SUCCESS || count == NULL) {
        return code != NVML_SUCCESS ? code : NVML_ERROR_INVALID_ARGUMENT;
    }
    uint32_t holders_count, found = 0;
    struct holder holders[MAX_HOLDERS];
    READ_LIVE(session.mapping.file, &holders_count, n_holders);
    if (holders_count > 0) {
        READ_LIVE(session.mapping.file, &holders, holders);
    }
    for (uint32_t i = 0; i < holders_count && i < MAX_HOLDERS; i++) {
        const struct holder *holder = &holders[i];
        if (kind < 0 || !is_listed(holder, device, (enum holder_kind)kind)) {
            continue;
        }
        unsigned long long bytes = (unsigned long long)holder->memory_mib * 1024 * 1024;
        if (infos != NULL && found < *count) {
            if (v1) {
                ((process_info_v1 *)infos)[found] = (process_info_v1){(unsigned)holder->pid, bytes};
            } else {
                ((process_info_v2 *)infos)[found] = (process_info_v2){(unsigned)holder->pid, bytes,
                                                                      (unsigned)holder->gi, (unsigned)holder->ci};
            }
        }
        found++;
    }
    bool enough = found == 0 || (infos != NULL && found <= *count);
    *count = found;
    return enough ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

enum { NO_SUCH_KIND = -1 }; /* MPS clients are not simulated: their lists are empty */

#define PROCESS_LIST(name, kind)                                                                                      \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, process_info_v1 *infos)                            \
    {                                                                                                                 \
        CALL(name, where_is(device), list(device, kind, count, infos, true));                                         \
    }                                                                                                                 \
    EXPORT nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned *count, process_info_v2 *infos)                       \
    {                                                                                                                 \
        CALL(name##_v2, where_is(device), list(device, kind, count, infos, false));                                   \
    }                                                                                                                 \
    EXPORT nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned *count, process_info_v2 *infos)                       \
    {                                                                                                                 \
        CALL(name##_v3, where_is(device), list(device, kind, count, infos, false));                                   \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, NO_SUCH_KIND)

static nvmlReturn_t process_name(unsigned pid, char *name, unsigned size)
{
    uint32_t count;
    struct holder holders[MAX_HOLDERS];
    READ_LIVE(session.mapping.file, &count, n_holders);
    READ_LIVE(session.mapping.file, &holders, holders);
    for (uint32_t i = 0; i < count && i < MAX_HOLDERS; i++) {
        if (holders[i].pid == (int32_t)pid && holder_is_alive(&holders[i])) {
            return copy_text(holders[i].name, name, size);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    CALL(nvmlSystemGetProcessName, nowhere(), process_name(pid, name, size));
}
