/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* The call record: every call that enters the library, in order, kept in a ring inside the state file. */

#define _GNU_SOURCE
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool starts_with(const char *text, const char *start) { return strncmp(text, start, strlen(start)) == 0; }

/* Calls that ask the driver to change something, whether or not they succeed. */
static bool name_is_write(const char *name)
{
    static const char *const starts[] = {
        "nvmlDeviceSet",
        "nvmlDeviceClear",
        "nvmlDeviceReset",
        "nvmlDeviceFreezeNvLink",
        "nvmlDeviceModifyDrainState",
        "nvmlDeviceRemoveGpu",
        "nvmlDeviceDiscoverGpus",
        "nvmlDeviceCreate",
        "nvmlDevicePowerSmoothing",
        "nvmlDeviceWorkloadPowerProfile",
        "nvmlGpuInstanceCreate",
        "nvmlGpuInstanceDestroy",
        "nvmlGpuInstanceSet",
        "nvmlComputeInstanceDestroy",
        "nvmlSystemSet",
        "nvmlUnitSet",
        "nvmlVgpuInstanceSet",
        "nvmlVgpuInstanceClear",
        "nvmlSetVgpuVersion",
        "nvmlGpmSetStreaming",
        "nvidia-smi --gpu-reset",
    };
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        if (starts_with(name, starts[i])) {
            return true;
        }
    }
    return false;
}

static bool writes[FUNCTION_COUNT];

__attribute__((constructor)) static void find_write_calls(void)
{
    for (int function = 0; function < FUNCTION_COUNT; function++) {
        writes[function] = name_is_write(function_names[function]);
    }
}

bool is_write_call(int function) { return writes[function]; }

static bool opens_session(int function)
{
    return function == F_nvmlInit || function == F_nvmlInit_v2 || function == F_nvmlInitWithFlags;
}

static bool needs_no_init(int function)
{
    return opens_session(function) || function == F_nvmlSystemGetNVMLVersion;
}

nvmlReturn_t call_begin(struct call *call, int function, struct where where)
{
    memset(call, 0, sizeof *call);
    bool initialised = session.count > 0;
    if (!initialised && !needs_no_init(function)) {
        return NVML_ERROR_UNINITIALIZED;
    }
    struct state_file *file = session.mapping.file;
    struct call_log *log = &file->log;
    call->ticket = atomic_fetch_add_explicit(&log->next, 1, memory_order_relaxed) + 1;
    atomic_fetch_add_explicit(&log->counts[function], 1, memory_order_relaxed);
    call->started_ns = now_ns();

    struct record *record = &log->records[(call->ticket - 1) % RECORDS];
    call->record = record;
    atomic_store_explicit(&record->ticket, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    record->started_us = call->started_ns / 1000;
    record->duration_ns = 0;
    record->pid = (int32_t)getpid();
    record->code = CALL_UNFINISHED;
    record->function = (uint16_t)function;
    record->gpu = (int8_t)where.gpu;
    record->gi = (int8_t)where.gi;
    record->ci = (int8_t)where.ci;
    record->place_start = record->place_size = 0;
    record->is_write = writes[function];
    record->argument = -1;
    record->pid_namespace = opens_session(function) || function == F_nvmlShutdown ? pid_namespace() : 0;
    atomic_store_explicit(&record->ticket, call->ticket, memory_order_release);

    struct effect before;
    if (find_fault(file, function, where.gpu, &before, &call->after)) {
        return suffer(&before);
    }
    return NVML_SUCCESS;
}

/* The slot may have gone to a later call by now; then there is nothing left to complete. */
static bool still_ours(const struct call *call)
{
    return call->record != NULL &&
           atomic_load_explicit(&call->record->ticket, memory_order_relaxed) == call->ticket;
}

nvmlReturn_t call_end(struct call *call, nvmlReturn_t code)
{
    die_at_checkpoint(0);
    nvmlReturn_t afterwards = suffer(&call->after);
    if (afterwards != NVML_SUCCESS) {
        code = afterwards;
    }
    if (still_ours(call)) {
        call->record->duration_ns = now_ns() - call->started_ns;
        call->record->code = (int32_t)code;
    }
    return code;
}

void call_argument(struct call *call, int argument, const nvmlPlacement_t *placement)
{
    if (!still_ours(call)) {
        return;
    }
    call->record->argument = argument;
    if (placement != NULL) {
        call->record->place_start = (uint8_t)placement->start;
        call->record->place_size = (uint8_t)placement->size;
    }
}

/* A call that creates an instance learns only at its end which one it is about. */
void call_made(struct call *call, int gi, int ci)
{
    if (still_ours(call)) {
        call->record->gi = (int8_t)gi;
        call->record->ci = (int8_t)ci;
    }
}

/* ---- sessions of others, found in the record ------------------------------------------------------------------------ */

static int sessions_of(const struct call_log *log, uint64_t after, int pid, uint32_t namespace)
{
    int open = 0;
    for (size_t i = 0; i < RECORDS; i++) {
        const struct record *record = &log->records[i];
        if (record->pid == pid && record->pid_namespace == namespace && record->ticket > after &&
            record->code == NVML_SUCCESS) {
            open += opens_session(record->function) - (record->function == F_nvmlShutdown);
        }
    }
    return open;
}

/* Whether a process that still lives, other than this one, has initialised NVML and not shut it down: it has the device
 * files of the GPUs open. One whose beginning has fallen out of the ring is not seen, nor one of another pid namespace,
 * which is on another computer. */
bool others_have_a_session(const struct state_file *file)
{
    uint32_t namespace = pid_namespace();
    uint64_t after;
    READ_LIVE(file, &after, sessions_after);
    for (size_t i = 0; i < RECORDS; i++) {
        const struct record *record = &file->log.records[i];
        if (record->pid > 0 && record->pid != (int)getpid() && opens_session(record->function) &&
            record->pid_namespace == namespace && record->ticket > after && process_start_time(record->pid) > 1 &&
            sessions_of(&file->log, after, record->pid, namespace) > 0) {
            return true;
        }
    }
    return false;
}

nvmlReturn_t stub_call(int function)
{
    struct call call;
    nvmlReturn_t code = call_begin(&call, function, nowhere());
    return call_end(&call, code == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : code);
}
