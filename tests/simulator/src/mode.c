/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* MIG mode: what SetMigMode does at once, what stays pending, and what makes a pending mode current. */

#include <string.h>

#include "internal.h"

static nvmlReturn_t get_mode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct live_gpu live;
    if (current == NULL || pending == NULL || !is_kind(device, GPU_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!board_of(device->gpu)->mig) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    read_gpu(device->gpu, &live);
    *current = live.current;
    *pending = live.pending;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    CALL(nvmlDeviceGetMigMode, where_is(device), get_mode(device, current, pending));
}

static void make_current(struct live_gpu *gpu, const struct board *board, unsigned mode)
{
    if (gpu->current != mode) {
        forget_instances(gpu);
        if (board->needs_reset) {
            mend_memory(gpu);
        }
    }
    gpu->current = gpu->pending = (uint8_t)mode;
}

static bool waits_for_reboot(const struct board *board) { return board->needs_reset && !can_be_reset(node(), board); }

/* Ampere changes its mode by a reset, which `nvidia-smi --gpu-reset` is refused beside such a session. */
static bool session_is_in_the_way(const struct board *board)
{
    return board->needs_reset && assumed(node(), MODE_BESIDE_SESSIONS) == 0 &&
           others_have_a_session(session.mapping.file);
}

enum { INSTANCES_REFUSE, INSTANCES_KEEP_IT_PENDING, INSTANCES_GO };

/* Returns what the call returns; *activation says whether the mode became current. */
static nvmlReturn_t change_mode(struct live *live, int gpu, unsigned mode, nvmlReturn_t *activation)
{
    const struct board *board = board_of(gpu);
    struct live_gpu *mine = &live->gpus[gpu];
    *activation = NVML_SUCCESS;
    if (mine->current == mode) {
        bool cannot_cancel = waits_for_reboot(board) && assumed(node(), PASSTHROUGH_CANCEL) == 0;
        if (mine->pending != mode && !cannot_cancel) {
            mine->pending = (uint8_t)mode;
        }
        return NVML_SUCCESS;
    }
    int with_instances = assumed(node(), DISABLE_WITH_INSTANCES);
    if (has_instances(mine) && with_instances == INSTANCES_REFUSE) {
        return NVML_ERROR_IN_USE;
    }
    mine->pending = (uint8_t)mode;
    if (waits_for_reboot(board)) {
        *activation = assumed(node(), PASSTHROUGH_ACTIVATION) == 0 ? NVML_ERROR_NOT_SUPPORTED
                                                                   : NVML_ERROR_RESET_REQUIRED;
    } else if (is_held(live, gpu, ANY_LEVEL, ANY_LEVEL, true) || session_is_in_the_way(board) ||
               (has_instances(mine) && with_instances == INSTANCES_KEEP_IT_PENDING)) {
        *activation = NVML_ERROR_IN_USE;
    } else {
        make_current(mine, board, mode);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t set_mode(struct call *call, nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    call_argument(call, (int)mode, NULL);
    if (!is_kind(device, GPU_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    if (!board_of(device->gpu)->mig || board_of(device->gpu)->virtualization == VGPU_GUEST) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (mode > 1 || activation == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct edit edit;
    if (!edit_begin(&edit, &session.mapping)) {
        return NVML_ERROR_UNKNOWN;
    }
    return edit_end(&edit, change_mode(edit.live, device->gpu, mode, activation));
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    CALL(nvmlDeviceSetMigMode, where_is(device), set_mode(&call_, device, mode, activation));
}
