/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* NVML as this process sees it: initialised or not, handles, permission. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

struct session session;

/* One handle per thing that can exist. An address never changes its meaning (GPU, GI id, CI id), but a serial tells
 * which of the instances that had this place one after the other it stands for. */
static struct {
    struct handle gpus[MAX_GPUS];
    struct handle gis[MAX_GPUS][MAX_GI_IDS];
    struct handle cis[MAX_GPUS][MAX_GI_IDS][MAX_CI_IDS];
    struct handle migs[MAX_GPUS][MAX_GI_IDS][MAX_CI_IDS];
} handles;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;

static void forget_locks_of_parent(void)
{
    pthread_mutex_init(&init_lock, NULL);
    pthread_mutex_init(&handles_lock, NULL);
}

__attribute__((constructor)) static void prepare_for_fork(void)
{
    pthread_atfork(NULL, NULL, forget_locks_of_parent);
}

void lock_handles(void) { pthread_mutex_lock(&handles_lock); }
void unlock_handles(void) { pthread_mutex_unlock(&handles_lock); }

/* Where a computer that was made to simulate GPUs has its node: there the driver is found without any variable. */
static const char FIXED_PATH[] = "/run/nvmlsim/state";

static const char *named_path(void)
{
    const char *path = getenv("NVMLSIM_STATE");
    return path == NULL || *path == '\0' ? NULL : path;
}

static bool open_mapping(void)
{
    const char *path = named_path() != NULL ? named_path() : FIXED_PATH;
    if (same_state_file(&session.mapping, path)) {
        return true;
    }
    struct mapping mapping;
    const char *why;
    if (!map_state(&mapping, path, &why)) {
        return false;
    }
    /* The mapping of an earlier state file stays: another thread may still be reading it. */
    session.mapping = mapping;
    return true;
}

bool session_mapping(void)
{
    if (session.mapping.file != NULL) {
        return true;
    }
    pthread_mutex_lock(&init_lock);
    bool open = open_mapping();
    pthread_mutex_unlock(&init_lock);
    return open;
}

/* Such a computer has device files as well, and who does not get at them does not get at the driver. */
static nvmlReturn_t reach_driver(void)
{
    if (named_path() != NULL) {
        return NVML_SUCCESS;
    }
    int device = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    if (device < 0) {
        return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    close(device);
    return NVML_SUCCESS;
}

/* A forked child has its parent's memory, but no session of its own until it calls nvmlInit. */
static nvmlReturn_t begin_session(void)
{
    if (session.pid != (int)getpid()) {
        session.count = 0;
        session.pid = (int)getpid();
    }
    if (session.count == 0) {
        memset(&handles, 0, sizeof handles);
    }
    session.count++;
    return NVML_SUCCESS;
}

static nvmlReturn_t init(int function)
{
    pthread_mutex_lock(&init_lock);
    bool open = (session.count > 0 && session.pid == (int)getpid()) || open_mapping();
    nvmlReturn_t code = open ? reach_driver() : NVML_ERROR_DRIVER_NOT_LOADED;
    if (code == NVML_SUCCESS) {
        struct call call;
        code = call_begin(&call, function, nowhere());
        if (code == NVML_SUCCESS) {
            code = begin_session();
        }
        code = call_end(&call, code);
    }
    pthread_mutex_unlock(&init_lock);
    return code;
}

EXPORT nvmlReturn_t nvmlInit(void) { return init(F_nvmlInit); }
EXPORT nvmlReturn_t nvmlInit_v2(void) { return init(F_nvmlInit_v2); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags; /* 1: no GPU is fine, 2: do not attach; neither changes an answer here */
    return init(F_nvmlInitWithFlags);
}

static nvmlReturn_t end_session(void)
{
    session.count--;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&init_lock);
    struct call call;
    nvmlReturn_t code = call_begin(&call, F_nvmlShutdown, nowhere());
    if (code == NVML_SUCCESS) {
        code = end_session();
    }
    code = call_end(&call, code);
    pthread_mutex_unlock(&init_lock);
    return code;
}

bool privileged(void)
{
    switch (node()->privileged) {
    case ROOT_OR_OWNER:
        return geteuid() == 0 || geteuid() == node()->owner;
    case ROOT_ONLY:
        return geteuid() == 0;
    default:
        return false;
    }
}

/* Clients hand us pointers; look before following them. */
static bool is_handle(const struct handle *handle)
{
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)&handles;
    return (uintptr_t)handle >= (uintptr_t)&handles && offset < sizeof handles && offset % sizeof *handle == 0 &&
           handle->kind != NO_HANDLE;
}

bool is_kind(const struct handle *handle, enum handle_kind kind) { return is_handle(handle) && handle->kind == kind; }

int handle_gpu(const struct handle *handle) { return is_handle(handle) ? handle->gpu : -1; }

struct where where_is(const struct handle *handle)
{
    return is_handle(handle) ? (struct where){handle->gpu, handle->gi, handle->ci} : nowhere();
}

struct handle *gpu_handle(int gpu)
{
    struct handle *handle = &handles.gpus[gpu];
    *handle = (struct handle){.kind = GPU_HANDLE, .gpu = (int8_t)gpu, .gi = -1, .ci = -1};
    return handle;
}

struct handle *gi_handle(int gpu, int gi, uint32_t serial)
{
    struct handle *handle = &handles.gis[gpu][gi];
    *handle = (struct handle){.kind = GI_HANDLE, .gpu = (int8_t)gpu, .gi = (int8_t)gi, .ci = -1, .serial = serial};
    return handle;
}

struct handle *ci_handle(int gpu, int gi, int ci, uint32_t serial)
{
    struct handle *handle = &handles.cis[gpu][gi][ci];
    *handle = (struct handle){
        .kind = CI_HANDLE, .gpu = (int8_t)gpu, .gi = (int8_t)gi, .ci = (int8_t)ci, .serial = serial};
    return handle;
}

struct handle *mig_handle(int gpu, int gi, int ci) { return &handles.migs[gpu][gi][ci]; }

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned size)
{
    if (buffer == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    size_t needed = strlen(text) + 1;
    if (needed > size) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(buffer, text, needed);
    return NVML_SUCCESS;
}
