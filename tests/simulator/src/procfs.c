/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* What the driver shows of instances in /proc/driver/nvidia/capabilities, as files that a simulated computer can mount
 * there: gpu0/mig/gi1/access and gpu0/mig/gi1/ci0/access exist while the instances do.
 *
 * They are in the folder STATE.capabilities. Where that is not there nobody wants to see them, and nothing is written. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* The driver's static table of minor numbers, as in /proc/driver/nvidia-caps/mig-minors; ci -1 is the GPU instance. */
static int capability_minor(int gpu_minor, int gi, int ci) { return 3 + 135 * gpu_minor + 9 * gi + 1 + ci; }

static void show(int folder, const char *name, int minor)
{
    char path[96];
    snprintf(path, sizeof path, "%s/access", name);
    mkdirat(folder, name, 0555);
    int file = openat(folder, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
    if (file >= 0) {
        dprintf(file, "DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
        close(file);
    }
}

static void hide(int folder, const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "%s/access", name);
    unlinkat(folder, path, 0);
    unlinkat(folder, name, AT_REMOVEDIR);
}

/* All of one GPU, not only what this change did: a process that was killed in the middle of its change may have left
 * the files as they were. */
static void show_gpu(int folder, const struct board *board, const struct live_gpu *live)
{
    char name[64];
    snprintf(name, sizeof name, "gpu%u", board->minor);
    mkdirat(folder, name, 0555);
    snprintf(name, sizeof name, "gpu%u/mig", board->minor);
    mkdirat(folder, name, 0555);
    for (int gi = 0; gi < MAX_GI_IDS; gi++) {
        const struct live_gi *instance = &live->gi[gi];
        snprintf(name, sizeof name, "gpu%u/mig/gi%d", board->minor, gi);
        if (instance->used) {
            show(folder, name, capability_minor((int)board->minor, gi, -1));
        } else if (faccessat(folder, name, F_OK, 0) != 0) {
            continue;
        }
        for (int ci = 0; ci < MAX_CI_IDS; ci++) {
            snprintf(name, sizeof name, "gpu%u/mig/gi%d/ci%d", board->minor, gi, ci);
            if (instance->used && instance->ci[ci].used) {
                show(folder, name, capability_minor((int)board->minor, gi, ci));
            } else {
                hide(folder, name);
            }
        }
        if (!instance->used) {
            snprintf(name, sizeof name, "gpu%u/mig/gi%d", board->minor, gi);
            hide(folder, name);
        }
    }
}

void show_instances(const struct edit *edit, const struct live *before)
{
    char path[4096 + 16];
    int folder = -1;
    for (uint32_t gpu = 0; gpu < edit->file->node.n_gpus; gpu++) {
        if (memcmp(before->gpus[gpu].gi, edit->live->gpus[gpu].gi, sizeof before->gpus[gpu].gi) == 0) {
            continue;
        }
        if (folder < 0) {
            snprintf(path, sizeof path, "%s.capabilities", edit->path);
            folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (folder < 0) {
                return;
            }
        }
        show_gpu(folder, &edit->file->node.gpus[gpu], &edit->live->gpus[gpu]);
    }
    if (folder >= 0) {
        close(folder);
    }
}
