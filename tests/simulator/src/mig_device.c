/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* MIG devices: one per compute instance, as the enumeration of a session shows them. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "internal.h"

/* A hash over GPU, GI id and CI id: the same place gives the same UUID again, whatever was there in between. */
void mig_uuid(const struct node *node, const struct board *board, int gi, int ci, char text[UUID_BUFFER])
{
    if (node->branch < 470) {
        snprintf(text, UUID_BUFFER, "MIG-%s/%d/%d", board->uuid, gi, ci);
        return;
    }
    uint64_t half[2] = {UINT64_C(0x6d69672d75756964), UINT64_C(0x9e3779b97f4a7c15)};
    for (int i = 0; i < 2; i++) {
        for (const char *letter = board->uuid; *letter; letter++) {
            half[i] = (half[i] ^ (uint8_t)*letter) * UINT64_C(0x100000001b3);
        }
        half[i] ^= (uint64_t)(gi * MAX_CI_IDS + ci + 1) * UINT64_C(0xbf58476d1ce4e5b9);
        half[i] = (half[i] ^ (half[i] >> 31)) * UINT64_C(0x94d049bb133111eb);
        half[i] ^= half[i] >> 29;
    }
    snprintf(text, UUID_BUFFER, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(half[0] >> 32),
             (unsigned)(half[0] >> 16 & 0xffff), (unsigned)(half[0] & 0xfff),
             (unsigned)(half[1] >> 48 & 0x3fff) | 0x8000, (unsigned long long)(half[1] & 0xffffffffffff));
}

/* Enter what exists now into the session's list. Nothing leaves the list before nvmlShutdown: a device destroyed
 * meanwhile goes on being listed, with the properties it had. */
void note_mig_devices(int gpu, const struct live_gpu *live)
{
    lock_handles();
    for (int gi = 0; gi < MAX_GI_IDS; gi++) {
        for (int ci = 0; live->gi[gi].used && ci < MAX_CI_IDS; ci++) {
            if (live->gi[gi].ci[ci].used) {
                *mig_handle(gpu, gi, ci) = (struct handle){
                    .kind = MIG_HANDLE,
                    .listed = 1,
                    .gpu = (int8_t)gpu,
                    .gi = (int8_t)gi,
                    .ci = (int8_t)ci,
                    .gi_profile = live->gi[gi].profile,
                    .ci_profile = live->gi[gi].ci[ci].profile,
                    .serial = live->gi[gi].ci[ci].serial,
                };
            }
        }
    }
    unlock_handles();
}

static void refresh(int gpu)
{
    struct live_gpu live;
    read_gpu(gpu, &live);
    note_mig_devices(gpu, &live);
}

/* Order of MIG devices under their GPU: GI id, then CI id. */
static struct handle *nth_device(int gpu, unsigned index)
{
    for (int gi = 0; gi < MAX_GI_IDS; gi++) {
        for (int ci = 0; ci < MAX_CI_IDS; ci++) {
            if (mig_handle(gpu, gi, ci)->listed && index-- == 0) {
                return mig_handle(gpu, gi, ci);
            }
        }
    }
    return NULL;
}

const struct gi_profile *gi_profile_of_mig(const struct handle *mig)
{
    return &board_of(mig->gpu)->gi[mig->gi_profile];
}

const struct ci_profile *ci_profile_of_mig(const struct handle *mig)
{
    return &gi_profile_of_mig(mig)->ci[mig->ci_profile];
}

/* "MIG-GPU-<uuid>/<gi>/<ci>", the spelling from before R470 */
static bool is_old_spelling(const char *uuid, const struct board *board, int gi, int ci)
{
    char text[UUID_BUFFER];
    snprintf(text, sizeof text, "MIG-%s/%d/%d", board->uuid, gi, ci);
    return strcasecmp(uuid, text) == 0;
}

bool find_mig_uuid(const char *uuid, struct handle **found)
{
    for (uint32_t gpu = 0; gpu < node()->n_gpus; gpu++) {
        if (!board_of((int)gpu)->mig) {
            continue;
        }
        refresh((int)gpu);
        struct handle *mig;
        for (unsigned index = 0; (mig = nth_device((int)gpu, index)) != NULL; index++) {
            char text[UUID_BUFFER];
            mig_uuid(node(), board_of((int)gpu), mig->gi, mig->ci, text);
            if (strcasecmp(uuid, text) == 0 || is_old_spelling(uuid, board_of((int)gpu), mig->gi, mig->ci)) {
                *found = mig;
                return true;
            }
        }
    }
    return false;
}

static nvmlReturn_t is_mig(nvmlDevice_t device, unsigned *answer)
{
    if (answer == NULL || !(is_kind(device, GPU_HANDLE) || is_kind(device, MIG_HANDLE))) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *answer = device->kind == MIG_HANDLE;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *answer)
{
    CALL(nvmlDeviceIsMigDeviceHandle, where_is(device), is_mig(device, answer));
}

static nvmlReturn_t instance_id(nvmlDevice_t device, bool compute, unsigned *id)
{
    if (id == NULL || !is_kind(device, MIG_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *id = (unsigned)(compute ? device->ci : device->gi);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    CALL(nvmlDeviceGetGpuInstanceId, where_is(device), instance_id(device, false, id));
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    CALL(nvmlDeviceGetComputeInstanceId, where_is(device), instance_id(device, true, id));
}

/* The most this hardware can have, not how many there are. */
static nvmlReturn_t max_count(nvmlDevice_t device, unsigned *count)
{
    if (count == NULL || !is_kind(device, GPU_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct live_gpu live;
    read_gpu(device->gpu, &live);
    *count = live.current ? board_of(device->gpu)->compute_slices : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    CALL(nvmlDeviceGetMaxMigDeviceCount, where_is(device), max_count(device, count));
}

static nvmlReturn_t by_index(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
    struct live_gpu live;
    if (mig == NULL || !is_kind(device, GPU_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct board *board = board_of(device->gpu);
    read_gpu(device->gpu, &live);
    if (!board->mig || !live.current) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (index >= board->compute_slices) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    note_mig_devices(device->gpu, &live);
    struct handle *found = nth_device(device->gpu, index);
    if (found == NULL) {
        return NVML_ERROR_NOT_FOUND;
    }
    *mig = found;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
    CALL(nvmlDeviceGetMigDeviceHandleByIndex, where_is(device), by_index(device, index, mig));
}

static nvmlReturn_t parent_of(nvmlDevice_t mig, nvmlDevice_t *device)
{
    if (device == NULL || !is_kind(mig, MIG_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = gpu_handle(mig->gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, where_is(mig), parent_of(mig, device));
}

/* All bytes are set: clients compare the whole struct between devices of one profile. */
static nvmlReturn_t attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *answer)
{
    if (answer == NULL || !(is_kind(device, GPU_HANDLE) || is_kind(device, MIG_HANDLE))) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (device->kind != MIG_HANDLE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    const struct gi_profile *gi = gi_profile_of_mig(device);
    const struct ci_profile *ci = ci_profile_of_mig(device);
    *answer = (nvmlDeviceAttributes_t){
        .multiprocessors = ci->multiprocessors,
        .copy = ci->engines[COPY],
        .decoder = ci->engines[DECODER],
        .encoder = ci->engines[ENCODER],
        .jpeg = ci->engines[JPEG],
        .ofa = ci->engines[OFA],
        .gpu_instance_slices = gi->slices,
        .compute_instance_slices = ci->slices,
        .memory_mb = gi->memory_mib,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *answer)
{
    CALL(nvmlDeviceGetAttributes, where_is(device), attributes(device, answer));
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *answer)
{
    CALL(nvmlDeviceGetAttributes_v2, where_is(device), attributes(device, answer));
}

/* A physical GPU answers its own index, a MIG device its index under its GPU. */
static nvmlReturn_t index_of(nvmlDevice_t device, unsigned *index)
{
    if (index == NULL || !(is_kind(device, GPU_HANDLE) || is_kind(device, MIG_HANDLE))) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *index = (unsigned)device->gpu;
    if (device->kind == MIG_HANDLE) {
        for (*index = 0; nth_device(device->gpu, *index) != device; (*index)++) {
            if (nth_device(device->gpu, *index) == NULL) {
                return NVML_ERROR_NOT_FOUND;
            }
        }
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    CALL(nvmlDeviceGetIndex, where_is(device), index_of(device, index));
}
