/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* Compute instances: profiles of an existing GI, create, destroy, list. */

#include <string.h>

#include "internal.h"

static const struct gi_profile *profile_of(nvmlGpuInstance_t instance, const struct live_gi *gi)
{
    return &board_of(instance->gpu)->gi[gi->profile];
}

static nvmlReturn_t profile_by_enum(nvmlGpuInstance_t instance, unsigned number, unsigned engine_profile,
                                    const struct ci_profile **found)
{
    struct live_gpu live;
    struct live_gi *gi;
    if (!live_gi_of(instance, &live, &gi) || number >= ci_profile_enums(node()->branch) || engine_profile != 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct gi_profile *parent = profile_of(instance, gi);
    for (uint32_t i = 0; i < parent->n_ci; i++) {
        if (parent->ci[i].enum_id == number) {
            *found = &parent->ci[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

static int profile_by_id(const struct gi_profile *parent, unsigned id)
{
    for (uint32_t i = 0; i < parent->n_ci; i++) {
        if (parent->ci[i].id == id && parent->ci[i].enum_id < ci_profile_enums(node()->branch)) {
            return (int)i;
        }
    }
    return -1;
}

static nvmlReturn_t profile_info(nvmlGpuInstance_t instance, unsigned number, unsigned engine_profile,
                                 ci_profile_info_v1 *info)
{
    const struct ci_profile *profile = NULL;
    if (info == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t code = profile_by_enum(instance, number, engine_profile, &profile);
    if (code == NVML_SUCCESS) {
        *info = (ci_profile_info_v1){
            .id = profile->id,
            .slices = profile->slices,
            .instances = profile->count,
            .multiprocessors = profile->multiprocessors,
            .copy = profile->engines[COPY],
            .decoder = profile->engines[DECODER],
            .encoder = profile->engines[ENCODER],
            .jpeg = profile->engines[JPEG],
            .ofa = profile->engines[OFA],
        };
    }
    return code;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned profile,
                                                                 unsigned engine_profile, ci_profile_info_v1 *info)
{
    CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo, where_is(instance),
         profile_info(instance, profile, engine_profile, info));
}

/* v3 is v2 with one more field at its end. */
static nvmlReturn_t profile_info_versioned(nvmlGpuInstance_t instance, unsigned number, unsigned engine_profile,
                                           ci_profile_info_v2 *info)
{
    const struct ci_profile *profile = NULL;
    if (info == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t code = profile_by_enum(instance, number, engine_profile, &profile);
    if (code != NVML_SUCCESS) {
        return code;
    }
    bool v3 = info->version == STRUCT_VERSION(ci_profile_info_v3, 3) && node()->branch >= 545;
    if (!v3 && info->version != STRUCT_VERSION(ci_profile_info_v2, 2)) {
        return assumed(node(), STRUCT_VERSION_CODE) == 0 ? NVML_ERROR_INVALID_ARGUMENT
                                                         : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    *info = (ci_profile_info_v2){
        .version = info->version,
        .id = profile->id,
        .slices = profile->slices,
        .instances = profile->count,
        .multiprocessors = profile->multiprocessors,
        .copy = profile->engines[COPY],
        .decoder = profile->engines[DECODER],
        .encoder = profile->engines[ENCODER],
        .jpeg = profile->engines[JPEG],
        .ofa = profile->engines[OFA],
    };
    memcpy(info->name, profile->name, sizeof info->name);
    if (v3) {
        memcpy((char *)info + offsetof(ci_profile_info_v3, capabilities), &profile->capabilities,
               sizeof profile->capabilities);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned profile,
                                                                  unsigned engine_profile, ci_profile_info_v2 *info)
{
    CALL(nvmlGpuInstanceGetComputeInstanceProfileInfoV, where_is(instance),
         profile_info_versioned(instance, profile, engine_profile, info));
}

static nvmlReturn_t remaining_capacity(nvmlGpuInstance_t instance, unsigned id, unsigned *count)
{
    struct live_gpu live;
    struct live_gi *gi;
    if (count == NULL || !live_gi_of(instance, &live, &gi)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    int profile = profile_by_id(profile_of(instance, gi), id);
    if (profile < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = (unsigned)ci_capacity(node(), board_of(instance->gpu), gi, profile);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned profile_id,
                                                                       unsigned *count)
{
    CALL(nvmlGpuInstanceGetComputeInstanceRemainingCapacity, where_is(instance),
         remaining_capacity(instance, profile_id, count));
}

static nvmlReturn_t possible_placements(nvmlGpuInstance_t instance, unsigned id, nvmlPlacement_t *placements,
                                        unsigned *count)
{
    struct live_gpu live;
    struct live_gi *gi;
    if (count == NULL || !live_gi_of(instance, &live, &gi)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (assumed(node(), PLACEMENTS_NEED_ROOT) == 0 && !privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    int number = profile_by_id(profile_of(instance, gi), id);
    if (number < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct ci_profile *profile = &profile_of(instance, gi)->ci[number];
    for (uint32_t i = 0; placements != NULL && i < profile->n_places; i++) {
        placements[i] = (nvmlPlacement_t){profile->places[i].start, profile->places[i].size};
    }
    *count = profile->n_places;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance,
                                                                        unsigned profile_id,
                                                                        nvmlPlacement_t *placements, unsigned *count)
{
    CALL(nvmlGpuInstanceGetComputeInstancePossiblePlacements, where_is(instance),
         possible_placements(instance, profile_id, placements, count));
}

/* ---- create and destroy ---------------------------------------------------------------------------------------- */

static int lowest_free_id(const struct live_gi *gi)
{
    for (int id = 0; id < MAX_CI_IDS; id++) {
        if (!gi->ci[id].used) {
            return id;
        }
    }
    return -1;
}

/* On Hopper and later the kernel says "in use" for a span that is taken. */
static nvmlReturn_t taken_span(const struct board *board)
{
    bool says_in_use = board->architecture > AMPERE && assumed(node(), TAKEN_CI_SPAN) == 0;
    return says_in_use ? NVML_ERROR_IN_USE : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static nvmlReturn_t put_instance(struct live *live, nvmlGpuInstance_t instance, unsigned profile_id,
                                 const nvmlPlacement_t *placement, int *id)
{
    struct live_gi *gi = &live->gpus[instance->gpu].gi[instance->gi];
    if (!gi->used || gi->serial != instance->serial) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct board *board = board_of(instance->gpu);
    const struct gi_profile *parent = &board->gi[gi->profile];
    int profile = profile_by_id(parent, profile_id);
    if (profile < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct span span;
    if (placement == NULL) {
        if (!choose_ci_span(node(), board, gi, profile, &span)) {
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
        }
    } else {
        if (placement->start > UINT8_MAX / 2 || placement->size > UINT8_MAX / 2) {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        span = (struct span){(uint8_t)placement->start, (uint8_t)placement->size};
        if (!ci_span_is_valid(node(), board, parent, profile, span)) {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        if (!ci_fits(board, gi, profile, span)) {
            return taken_span(board);
        }
    }
    *id = lowest_free_id(gi);
    if (*id < 0) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    gi->ci[*id] =
        (struct live_ci){.used = 1, .profile = (uint8_t)profile, .span = span, .serial = ++live->next_serial};
    return NVML_SUCCESS;
}

static nvmlReturn_t create(struct call *call, nvmlGpuInstance_t instance, unsigned profile_id,
                           const nvmlPlacement_t *placement, nvmlComputeInstance_t *created)
{
    call_argument(call, (int)profile_id, placement);
    if (!is_kind(instance, GI_HANDLE) || created == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    struct edit edit;
    int id = -1;
    if (!edit_begin(&edit, &session.mapping)) {
        return NVML_ERROR_UNKNOWN;
    }
    uint32_t serial = edit.live->next_serial + 1;
    nvmlReturn_t code = put_instance(edit.live, instance, profile_id, placement, &id);
    if (edit_end(&edit, code) == NVML_SUCCESS) {
        *created = ci_handle(instance->gpu, instance->gi, id, serial);
        call_made(call, instance->gi, id);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile_id,
                                                         nvmlComputeInstance_t *created)
{
    CALL(nvmlGpuInstanceCreateComputeInstance, where_is(instance),
         create(&call_, instance, profile_id, NULL, created));
}

static nvmlReturn_t create_at(struct call *call, nvmlGpuInstance_t instance, unsigned profile_id,
                              const nvmlPlacement_t *placement, nvmlComputeInstance_t *created)
{
    return placement == NULL ? NVML_ERROR_INVALID_ARGUMENT : create(call, instance, profile_id, placement, created);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned profile_id,
                                                                      const nvmlPlacement_t *placement,
                                                                      nvmlComputeInstance_t *created)
{
    CALL(nvmlGpuInstanceCreateComputeInstanceWithPlacement, where_is(instance),
         create_at(&call_, instance, profile_id, placement, created));
}

static nvmlReturn_t take_instance(struct live *live, nvmlComputeInstance_t instance)
{
    struct live_gi *gi = &live->gpus[instance->gpu].gi[instance->gi];
    struct live_ci *ci = &gi->ci[instance->ci];
    if (!gi->used || !ci->used || ci->serial != instance->serial) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (is_held(live, instance->gpu, instance->gi, instance->ci, true)) {
        return NVML_ERROR_IN_USE;
    }
    memset(ci, 0, sizeof *ci);
    return NVML_SUCCESS;
}

/* A session that destroys a device itself may forget it, or go on listing it like one destroyed by others. */
static void forget_own(nvmlComputeInstance_t instance)
{
    if (assumed(node(), OWN_DESTROYS_STAY_LISTED) != 0) {
        lock_handles();
        mig_handle(instance->gpu, instance->gi, instance->ci)->listed = 0;
        unlock_handles();
    }
}

static nvmlReturn_t destroy(nvmlComputeInstance_t instance)
{
    if (!is_kind(instance, CI_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    struct edit edit;
    if (!edit_begin(&edit, &session.mapping)) {
        return NVML_ERROR_UNKNOWN;
    }
    nvmlReturn_t code = edit_end(&edit, take_instance(edit.live, instance));
    if (code == NVML_SUCCESS) {
        forget_own(instance);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    CALL(nvmlComputeInstanceDestroy, where_is(instance), destroy(instance));
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static nvmlReturn_t list(nvmlGpuInstance_t instance, unsigned profile_id, nvmlComputeInstance_t *instances,
                         unsigned *count)
{
    struct live_gpu live;
    struct live_gi *gi;
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    if (instances == NULL || count == NULL || !live_gi_of(instance, &live, &gi)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int profile = profile_by_id(profile_of(instance, gi), profile_id);
    if (profile < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    unsigned found = 0;
    for (int id = 0; id < MAX_CI_IDS; id++) {
        if (gi->ci[id].used && gi->ci[id].profile == profile) {
            instances[found++] = ci_handle(instance->gpu, instance->gi, id, gi->ci[id].serial);
        }
    }
    *count = found;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile_id,
                                                       nvmlComputeInstance_t *instances, unsigned *count)
{
    CALL(nvmlGpuInstanceGetComputeInstances, where_is(instance), list(instance, profile_id, instances, count));
}

static nvmlReturn_t by_id(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *found)
{
    struct live_gpu live;
    struct live_gi *gi;
    if (found == NULL || !live_gi_of(instance, &live, &gi)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (id >= MAX_CI_IDS || !gi->ci[id].used) {
        return NVML_ERROR_NOT_FOUND;
    }
    *found = ci_handle(instance->gpu, instance->gi, (int)id, gi->ci[id].serial);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                          nvmlComputeInstance_t *found)
{
    CALL(nvmlGpuInstanceGetComputeInstanceById, where_is(instance), by_id(instance, id, found));
}

bool live_ci_of(const struct handle *handle, struct live_gpu *copy, struct live_ci **ci)
{
    if (!is_kind(handle, CI_HANDLE)) {
        return false;
    }
    read_gpu(handle->gpu, copy);
    *ci = &copy->gi[handle->gi].ci[handle->ci];
    return copy->gi[handle->gi].used && (*ci)->used && (*ci)->serial == handle->serial;
}

static nvmlReturn_t info_of(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    struct live_gpu live;
    struct live_ci *ci;
    if (info == NULL || !live_ci_of(instance, &live, &ci)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct live_gi *gi = &live.gi[instance->gi];
    note_mig_devices(instance->gpu, &live);
    info->device = mig_handle(instance->gpu, instance->gi, instance->ci); /* the MIG device, as real drivers answer */
    info->gpu_instance = gi_handle(instance->gpu, instance->gi, gi->serial);
    info->id = (unsigned)instance->ci;
    info->profile_id = board_of(instance->gpu)->gi[gi->profile].ci[ci->profile].id;
    info->placement = (nvmlPlacement_t){ci->span.start, ci->span.size};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    CALL(nvmlComputeInstanceGetInfo_v2, where_is(instance), info_of(instance, info));
}

static nvmlReturn_t info_without_placement(nvmlComputeInstance_t instance, ci_info_v1 *info)
{
    nvmlComputeInstanceInfo_t full;
    nvmlReturn_t code = info == NULL ? NVML_ERROR_INVALID_ARGUMENT : info_of(instance, &full);
    if (code == NVML_SUCCESS) {
        *info = (ci_info_v1){full.device, full.gpu_instance, full.id, full.profile_id};
    }
    return code;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, ci_info_v1 *info)
{
    CALL(nvmlComputeInstanceGetInfo, where_is(instance), info_without_placement(instance, info));
}
