/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* Event sets. Nothing ever happens in them; what matters is that waiting really waits. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "internal.h"

struct event_set {
    unsigned long long types;
};

enum { XID_CRITICAL_ERROR = 0x8, CLOCK_CHANGE = 0x10, MIG_CONFIG_CHANGE = 0x100 };
static const unsigned long long SUPPORTED = 0x1 | 0x2 | XID_CRITICAL_ERROR | CLOCK_CHANGE | MIG_CONFIG_CHANGE;

static nvmlReturn_t create(nvmlEventSet_t *set)
{
    if (set == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *set = calloc(1, sizeof **set);
    return *set == NULL ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) { CALL(nvmlEventSetCreate, nowhere(), create(set)); }

static nvmlReturn_t release(nvmlEventSet_t set)
{
    if (set == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { CALL(nvmlEventSetFree, nowhere(), release(set)); }

static nvmlReturn_t supported(nvmlDevice_t device, unsigned long long *types)
{
    if (types == NULL || handle_gpu(device) < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!is_kind(device, GPU_HANDLE)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *types = SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    CALL(nvmlDeviceGetSupportedEventTypes, where_is(device), supported(device, types));
}

static nvmlReturn_t listen(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    if (set == NULL || handle_gpu(device) < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!is_kind(device, GPU_HANDLE) || (types & ~SUPPORTED) != 0) {
        return NVML_ERROR_NOT_SUPPORTED; /* clients of MIG devices register on the parent */
    }
    set->types |= types;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    CALL(nvmlDeviceRegisterEvents, where_is(device), listen(device, types, set));
}

static nvmlReturn_t wait_for(nvmlEventSet_t set, const nvmlEventData_t *data, unsigned milliseconds)
{
    if (set == NULL || data == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0) {
    }
    return NVML_ERROR_TIMEOUT;
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds)
{
    CALL(nvmlEventSetWait, nowhere(), wait_for(set, data, milliseconds));
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds)
{
    CALL(nvmlEventSetWait_v2, nowhere(), wait_for(set, data, milliseconds));
}
