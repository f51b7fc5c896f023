/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* GPU instances: profiles, placements, create, destroy, list. */

#include <string.h>

#include "internal.h"

static uint32_t branch(void) { return node()->branch; }

/* Drivers before R550 cannot say anything about profiles while MIG is off. */
static bool can_list_profiles(int gpu)
{
    struct live_gpu live;
    if (branch() >= 550) {
        return true;
    }
    read_gpu(gpu, &live);
    return live.current;
}

static nvmlReturn_t mig_capable(nvmlDevice_t device)
{
    if (!is_kind(device, GPU_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return board_of(device->gpu)->mig ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t profile_by_enum(nvmlDevice_t device, unsigned number, const struct gi_profile **found)
{
    nvmlReturn_t code = mig_capable(device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    if (number >= gi_profile_enums(branch())) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!can_list_profiles(device->gpu)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    const struct board *board = board_of(device->gpu);
    for (uint32_t i = 0; i < board->n_gi; i++) {
        if (board->gi[i].enum_id == number && offered(&board->gi[i], branch())) {
            *found = &board->gi[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

static int gi_profile_by_id(const struct board *board, unsigned id)
{
    for (uint32_t i = 0; i < board->n_gi; i++) {
        if (board->gi[i].id == id && offered(&board->gi[i], branch()) &&
            board->gi[i].enum_id < gi_profile_enums(branch())) {
            return (int)i;
        }
    }
    return -1;
}

static unsigned shown_count(const struct board *board, const struct gi_profile *profile)
{
    return board->broken_counts ? profile->reported_count : profile->count;
}

/* ---- profile queries ------------------------------------------------------------------------------------------ */

static void fill_v1(const struct board *board, const struct gi_profile *profile, gi_profile_info_v1 *info)
{
    *info = (gi_profile_info_v1){
        .id = profile->id,
        .p2p = profile->p2p,
        .slices = profile->slices,
        .instances = shown_count(board, profile),
        .multiprocessors = profile->multiprocessors,
        .copy = profile->engines[COPY],
        .decoder = profile->engines[DECODER],
        .encoder = profile->engines[ENCODER],
        .jpeg = profile->engines[JPEG],
        .ofa = profile->engines[OFA],
        .memory_mb = profile->memory_mib,
    };
}

static void fill_v2(const struct board *board, const struct gi_profile *profile, gi_profile_info_v2 *info)
{
    *info = (gi_profile_info_v2){
        .version = info->version,
        .id = profile->id,
        .p2p = profile->p2p,
        .slices = profile->slices,
        .instances = shown_count(board, profile),
        .multiprocessors = profile->multiprocessors,
        .copy = profile->engines[COPY],
        .decoder = profile->engines[DECODER],
        .encoder = profile->engines[ENCODER],
        .jpeg = profile->engines[JPEG],
        .ofa = profile->engines[OFA],
        .memory_mb = profile->memory_mib,
    };
    memcpy(info->name, profile->name, sizeof info->name);
}

static void fill_v3(const struct board *board, const struct gi_profile *profile, gi_profile_info_v3 *info)
{
    *info = (gi_profile_info_v3){
        .version = info->version,
        .id = profile->id,
        .slices = profile->slices,
        .instances = shown_count(board, profile),
        .multiprocessors = profile->multiprocessors,
        .copy = profile->engines[COPY],
        .decoder = profile->engines[DECODER],
        .encoder = profile->engines[ENCODER],
        .jpeg = profile->engines[JPEG],
        .ofa = profile->engines[OFA],
        .memory_mb = profile->memory_mib,
        .capabilities = profile->capabilities,
    };
    memcpy(info->name, profile->name, sizeof info->name);
}

/* v2 and v3 have one size and different layouts: the top byte of version decides. v3 came with R545. */
static nvmlReturn_t fill_versioned(int gpu, const struct gi_profile *profile, gi_profile_info_v2 *info)
{
    if (info->version == STRUCT_VERSION(gi_profile_info_v2, 2)) {
        fill_v2(board_of(gpu), profile, info);
        return NVML_SUCCESS;
    }
    if (info->version == STRUCT_VERSION(gi_profile_info_v3, 3) && branch() >= 545) {
        fill_v3(board_of(gpu), profile, (gi_profile_info_v3 *)(void *)info);
        return NVML_SUCCESS;
    }
    return assumed(node(), STRUCT_VERSION_CODE) == 0 ? NVML_ERROR_INVALID_ARGUMENT
                                                     : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

static nvmlReturn_t profile_info(nvmlDevice_t device, unsigned number, gi_profile_info_v1 *info)
{
    const struct gi_profile *profile = NULL;
    if (info == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t code = profile_by_enum(device, number, &profile);
    if (code == NVML_SUCCESS) {
        fill_v1(board_of(device->gpu), profile, info);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile, gi_profile_info_v1 *info)
{
    CALL(nvmlDeviceGetGpuInstanceProfileInfo, where_is(device), profile_info(device, profile, info));
}

static nvmlReturn_t profile_info_versioned(nvmlDevice_t device, unsigned number, gi_profile_info_v2 *info)
{
    const struct gi_profile *profile = NULL;
    if (info == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t code = profile_by_enum(device, number, &profile);
    return code == NVML_SUCCESS ? fill_versioned(device->gpu, profile, info) : code;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned profile,
                                                         gi_profile_info_v2 *info)
{
    CALL(nvmlDeviceGetGpuInstanceProfileInfoV, where_is(device), profile_info_versioned(device, profile, info));
}

static nvmlReturn_t profile_info_by_id(nvmlDevice_t device, unsigned id, gi_profile_info_v2 *info)
{
    nvmlReturn_t code = mig_capable(device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    if (!can_list_profiles(device->gpu)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    int profile = gi_profile_by_id(board_of(device->gpu), id);
    if (profile < 0 || info == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return fill_versioned(device->gpu, &board_of(device->gpu)->gi[profile], info);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned profile_id,
                                                             gi_profile_info_v2 *info)
{
    CALL(nvmlDeviceGetGpuInstanceProfileInfoByIdV, where_is(device), profile_info_by_id(device, profile_id, info));
}

static nvmlReturn_t possible_placements(nvmlDevice_t device, unsigned id, nvmlPlacement_t *placements, unsigned *count)
{
    if (count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t code = mig_capable(device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    if (assumed(node(), PLACEMENTS_NEED_ROOT) == 0 && !privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    if (!can_list_profiles(device->gpu)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    int number = gi_profile_by_id(board_of(device->gpu), id);
    if (number < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct gi_profile *profile = &board_of(device->gpu)->gi[number];
    for (uint32_t i = 0; placements != NULL && i < profile->n_places; i++) {
        placements[i] = (nvmlPlacement_t){profile->places[i].start, profile->places[i].size};
    }
    *count = profile->n_places;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned profile_id,
                                                               nvmlPlacement_t *placements, unsigned *count)
{
    CALL(nvmlDeviceGetGpuInstancePossiblePlacements, where_is(device),
         possible_placements(device, profile_id, placements, count));
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profile_id,
                                                                  nvmlPlacement_t *placements, unsigned *count)
{
    CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, where_is(device),
         possible_placements(device, profile_id, placements, count));
}

/* ---- what needs MIG to be on: permission, then mode, then arguments, as the kernel checks them ---------------- */

static nvmlReturn_t manageable(const struct live_gpu *live)
{
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    return live->current ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t remaining_capacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
    struct live_gpu live;
    nvmlReturn_t code = mig_capable(device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    read_gpu(device->gpu, &live);
    if ((code = manageable(&live)) != NVML_SUCCESS) {
        return code;
    }
    int profile = gi_profile_by_id(board_of(device->gpu), id);
    if (profile < 0 || count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = (unsigned)gi_capacity(board_of(device->gpu), branch(), &live, profile);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned profile_id, unsigned *count)
{
    CALL(nvmlDeviceGetGpuInstanceRemainingCapacity, where_is(device), remaining_capacity(device, profile_id, count));
}

static bool place_of(const struct gi_profile *profile, const nvmlPlacement_t *placement, struct span *span)
{
    for (uint32_t i = 0; i < profile->n_places; i++) {
        if (profile->places[i].start == placement->start && profile->places[i].size == placement->size) {
            *span = profile->places[i];
            return true;
        }
    }
    return false;
}

bool has_instances(const struct live_gpu *live)
{
    for (int id = 0; id < MAX_GI_IDS; id++) {
        if (live->gi[id].used) {
            return true;
        }
    }
    return false;
}

static nvmlReturn_t put_instance(struct live *live, int gpu, unsigned profile_id, const nvmlPlacement_t *placement,
                                 int *id)
{
    struct live_gpu *mine = &live->gpus[gpu];
    const struct board *board = board_of(gpu);
    int profile = gi_profile_by_id(board, profile_id);
    if (profile < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct span span;
    if (placement != NULL && !place_of(&board->gi[profile], placement, &span)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!has_instances(mine) && is_held(live, gpu, -1, -1, false)) {
        return NVML_ERROR_IN_USE; /* a client from before MIG still has channels or memory on the whole GPU */
    }
    if (placement == NULL) {
        int place = choose_gi_place(board, branch(), mine, profile);
        if (place < 0) {
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
        }
        span = board->gi[profile].places[place];
    } else if (!gi_fits(board, branch(), mine, profile, span)) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    *id = gi_id_of_place(board, span);
    mine->gi[*id] =
        (struct live_gi){.used = 1, .profile = (uint8_t)profile, .span = span, .serial = ++live->next_serial};
    return NVML_SUCCESS;
}

static nvmlReturn_t create(struct call *call, nvmlDevice_t device, unsigned profile_id,
                           const nvmlPlacement_t *placement, nvmlGpuInstance_t *instance)
{
    call_argument(call, (int)profile_id, placement);
    nvmlReturn_t code = mig_capable(device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    if (instance == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct edit edit;
    int gpu = device->gpu, id = -1;
    if (!edit_begin(&edit, &session.mapping)) {
        return NVML_ERROR_UNKNOWN;
    }
    uint32_t serial = edit.live->next_serial + 1;
    code = manageable(&edit.live->gpus[gpu]);
    if (code == NVML_SUCCESS) {
        code = put_instance(edit.live, gpu, profile_id, placement, &id);
    }
    if (edit_end(&edit, code) == NVML_SUCCESS) {
        *instance = gi_handle(gpu, id, serial);
        call_made(call, id, -1);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instance)
{
    CALL(nvmlDeviceCreateGpuInstance, where_is(device), create(&call_, device, profile_id, NULL, instance));
}

static nvmlReturn_t create_at(struct call *call, nvmlDevice_t device, unsigned profile_id,
                              const nvmlPlacement_t *placement, nvmlGpuInstance_t *instance)
{
    return placement == NULL ? NVML_ERROR_INVALID_ARGUMENT : create(call, device, profile_id, placement, instance);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile_id,
                                                             const nvmlPlacement_t *placement,
                                                             nvmlGpuInstance_t *instance)
{
    CALL(nvmlDeviceCreateGpuInstanceWithPlacement, where_is(device),
         create_at(&call_, device, profile_id, placement, instance));
}

bool live_gi_of(const struct handle *handle, struct live_gpu *copy, struct live_gi **gi)
{
    if (!is_kind(handle, GI_HANDLE)) {
        return false;
    }
    read_gpu(handle->gpu, copy);
    *gi = &copy->gi[handle->gi];
    return (*gi)->used && (*gi)->serial == handle->serial;
}

static bool has_compute_instances(const struct live_gi *gi)
{
    for (int ci = 0; ci < MAX_CI_IDS; ci++) {
        if (gi->ci[ci].used) {
            return true;
        }
    }
    return false;
}

/* Never cascades. */
static nvmlReturn_t take_instance(struct live *live, nvmlGpuInstance_t instance)
{
    struct live_gi *gi = &live->gpus[instance->gpu].gi[instance->gi];
    if (!gi->used || gi->serial != instance->serial) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (has_compute_instances(gi) || is_held(live, instance->gpu, instance->gi, ANY_LEVEL, true)) {
        return NVML_ERROR_IN_USE;
    }
    memset(gi, 0, sizeof *gi);
    return NVML_SUCCESS;
}

static nvmlReturn_t destroy(nvmlGpuInstance_t instance)
{
    if (!is_kind(instance, GI_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    struct edit edit;
    if (!edit_begin(&edit, &session.mapping)) {
        return NVML_ERROR_UNKNOWN;
    }
    return edit_end(&edit, take_instance(edit.live, instance));
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    CALL(nvmlGpuInstanceDestroy, where_is(instance), destroy(instance));
}

void forget_instances(struct live_gpu *gpu) { memset(gpu->gi, 0, sizeof gpu->gi); }

/* ---- reading instances ---------------------------------------------------------------------------------------- */

static nvmlReturn_t list(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instances, unsigned *count)
{
    struct live_gpu live;
    nvmlReturn_t code = mig_capable(device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    read_gpu(device->gpu, &live);
    if ((code = manageable(&live)) != NVML_SUCCESS) {
        return code;
    }
    int profile = gi_profile_by_id(board_of(device->gpu), profile_id);
    if (profile < 0 || instances == NULL || count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    unsigned found = 0; /* the caller's array has room for instanceCount: NVML has no argument to check that by */
    for (int id = 0; id < MAX_GI_IDS; id++) {
        if (live.gi[id].used && live.gi[id].profile == profile) {
            instances[found++] = gi_handle(device->gpu, id, live.gi[id].serial);
        }
    }
    *count = found;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instances,
                                              unsigned *count)
{
    CALL(nvmlDeviceGetGpuInstances, where_is(device), list(device, profile_id, instances, count));
}

static nvmlReturn_t by_id(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
    struct live_gpu live;
    nvmlReturn_t code = mig_capable(device);
    if (code != NVML_SUCCESS) {
        return code;
    }
    if (instance == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    read_gpu(device->gpu, &live);
    if (!live.current) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (id >= MAX_GI_IDS || !live.gi[id].used) {
        return NVML_ERROR_NOT_FOUND;
    }
    *instance = gi_handle(device->gpu, (int)id, live.gi[id].serial);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
    CALL(nvmlDeviceGetGpuInstanceById, where_is(device), by_id(device, id, instance));
}

static nvmlReturn_t info_of(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct live_gpu live;
    struct live_gi *gi;
    if (info == NULL || !live_gi_of(instance, &live, &gi)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    info->device = gpu_handle(instance->gpu);
    info->id = (unsigned)instance->gi;
    info->profile_id = board_of(instance->gpu)->gi[gi->profile].id;
    info->placement = (nvmlPlacement_t){gi->span.start, gi->span.size};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    CALL(nvmlGpuInstanceGetInfo, where_is(instance), info_of(instance, info));
}
