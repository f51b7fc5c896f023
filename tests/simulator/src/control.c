/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* nvmlsim_*: how the nvmlsim command and tests make, watch and disturb a node. Not part of NVML.
 *
 * Each takes the path of the state file and returns 0 or -1 with one sentence in `error`. The functions that answer JSON
 * return the number of bytes the whole text needs, its final NUL included, and -1 when there is no such state file. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static int failed(char *error, unsigned size, const char *what, const char *why)
{
    snprintf(error, size, "%s: %s", what, why);
    return -1;
}

EXPORT int nvmlsim_create(const char *path, const char *description, char *error, unsigned size)
{
    struct node *node = calloc(1, sizeof *node);
    struct live *live = calloc(1, sizeof *live);
    int result = -1;
    const char *why = NULL;
    if (node == NULL || live == NULL) {
        failed(error, size, path, "out of memory");
    } else if (parse_description(description, node, error, size)) {
        node->owner = geteuid();
        for (uint32_t gpu = 0; gpu < node->n_gpus; gpu++) {
            live->gpus[gpu].persistence = node->persistence;
            live->gpus[gpu].ecc = live->gpus[gpu].ecc_pending = 1;
        }
        result = write_new_state(path, node, live, &why) ? 0 : failed(error, size, path, why);
    }
    free(node);
    free(live);
    return result;
}

/* ---- changing: each request is one edit under the node's lock ---------------------------------------------------- */

typedef int (*change)(struct edit *edit, const char *request, char *error, unsigned size);

/* The functions of the driver find the node in session.mapping; here the caller names it. */
static int change_state(const char *path, change change, const char *request, char *error, unsigned size)
{
    struct mapping mapping;
    const char *why = NULL;
    if (!map_state(&mapping, path, &why)) {
        return failed(error, size, path, why);
    }
    struct edit edit;
    int result = -1;
    if (!edit_begin(&edit, &mapping)) {
        failed(error, size, path, "the node cannot be locked");
    } else {
        result = change(&edit, request, error, size);
        edit_end(&edit, result == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN);
    }
    unmap_state(&mapping);
    return result;
}

static bool read_holder(struct words *words, struct holder *holder, char *error, unsigned size)
{
    static const char *const kinds[] = {"compute", "graphics", "hidden", "client"};
    char key[64], value[128];
    bool has_value;
    *holder = (struct holder){.pid = -1, .gpu = -1, .gi = -1, .ci = -1};
    snprintf(holder->name, sizeof holder->name, "process");
    while (next_word(words, key, sizeof key, value, sizeof value, &has_value)) {
        long long number = -1;
        bool fine = true;
        if (strcmp(key, "pid") == 0) {
            fine = to_number(value, 1, INT32_MAX, &number);
            holder->pid = (int32_t)number;
        } else if (strcmp(key, "gpu") == 0) {
            fine = to_number(value, 0, MAX_GPUS - 1, &number);
            holder->gpu = (int32_t)number;
        } else if (strcmp(key, "gi") == 0) {
            fine = to_number(value, 0, MAX_GI_IDS - 1, &number);
            holder->gi = (int32_t)number;
        } else if (strcmp(key, "ci") == 0) {
            fine = to_number(value, 0, MAX_CI_IDS - 1, &number);
            holder->ci = (int32_t)number;
        } else if (strcmp(key, "mem") == 0) {
            fine = to_number(value, 0, 1 << 24, &number);
            holder->memory_mib = (uint32_t)number;
        } else if (strcmp(key, "name") == 0) {
            snprintf(holder->name, sizeof holder->name, "%.63s", value);
        } else if (strcmp(key, "kind") == 0) {
            for (holder->kind = 0; holder->kind < 4 && strcmp(value, kinds[holder->kind]) != 0; holder->kind++) {
            }
            fine = holder->kind < 4;
        } else {
            fine = false;
        }
        if (!fine || !has_value) {
            snprintf(error, size, "occupy: cannot use %s=%s", key, value);
            return false;
        }
    }
    return true;
}

static int add_holder(struct edit *edit, struct holder *holder, char *error, unsigned size)
{
    struct live *live = edit->live;
    if (holder->pid < 0 || holder->gpu < 0 || holder->gpu >= (int)edit->file->node.n_gpus) {
        return failed(error, size, "occupy", "needs pid and the index of a GPU of this node");
    }
    const struct live_gi *gi = holder->gi < 0 ? NULL : &live->gpus[holder->gpu].gi[holder->gi];
    if ((gi != NULL && !gi->used) || (holder->ci >= 0 && (gi == NULL || !gi->ci[holder->ci].used))) {
        return failed(error, size, "occupy", "there is no such GPU instance or compute instance");
    }
    holder->start_time = process_start_time(holder->pid);
    holder->pid_namespace = pid_namespace();
    if (!holder_is_alive(holder)) {
        return failed(error, size, "occupy", "there is no such process");
    }
    if (live->n_holders == MAX_HOLDERS) {
        return failed(error, size, "occupy", "too many holders");
    }
    live->holders[live->n_holders++] = *holder;
    return 0;
}

static int remove_holder(struct live *live, int pid)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < live->n_holders; i++) {
        if (live->holders[i].pid != pid) {
            live->holders[kept++] = live->holders[i];
        }
    }
    live->n_holders = kept;
    return 0;
}

static int occupy(struct edit *edit, const char *request, char *error, unsigned size)
{
    struct words words = {request};
    struct holder holder;
    char verb[64], value[8];
    bool has_value;
    if (!next_word(&words, verb, sizeof verb, value, sizeof value, &has_value) || has_value) {
        return failed(error, size, "occupy", "begin with add or remove");
    }
    if (!read_holder(&words, &holder, error, size)) {
        return -1;
    }
    if (strcmp(verb, "add") == 0) {
        return add_holder(edit, &holder, error, size);
    }
    return strcmp(verb, "remove") == 0 ? remove_holder(edit->live, holder.pid)
                                       : failed(error, size, "occupy", "begin with add or remove");
}

EXPORT int nvmlsim_occupy(const char *path, const char *request, char *error, unsigned size)
{
    return change_state(path, occupy, request, error, size);
}

static bool counter_is_used(const struct live *live, uint32_t counter)
{
    for (uint32_t i = 0; i < live->n_faults; i++) {
        if (live->faults[i].counter == counter) {
            return true;
        }
    }
    return false;
}

static int set_fault(struct edit *edit, const char *request, char *error, unsigned size)
{
    struct live *live = edit->live;
    struct fault fault;
    if (strcmp(request, "clear") == 0) {
        live->n_faults = 0;
        return 0;
    }
    if (!parse_fault(request, &fault, error, size)) {
        return -1;
    }
    if (live->n_faults == MAX_FAULTS) {
        return failed(error, size, "fault", "too many faults; clear some");
    }
    while (counter_is_used(live, fault.counter)) {
        fault.counter++;
    }
    atomic_store(&edit->file->fault_seen[fault.counter], 0);
    live->faults[live->n_faults++] = fault;
    return 0;
}

EXPORT int nvmlsim_fault(const char *path, const char *request, char *error, unsigned size)
{
    return change_state(path, set_fault, request, error, size);
}

/* ---- events that end the life of something ------------------------------------------------------------------------ */

/* Boards whose InfoROM has the mode keep it, pending included; the others come up without MIG. */
static void after_driver_load(const struct node *node, const struct board *board, struct live_gpu *gpu)
{
    forget_instances(gpu);
    gpu->current = gpu->pending = board->keeps_mode ? gpu->pending : 0;
    gpu->persistence = node->persistence;
}

/* What a reset does to the memory: rows that waited are remapped, and the ECC mode that waited is current. */
void mend_memory(struct live_gpu *gpu)
{
    gpu->ecc = gpu->ecc_pending;
    if (gpu->remap == REMAP_PENDING) {
        gpu->remap = REMAP_NONE;
    }
}

static int reboot(struct edit *edit)
{
    const struct node *node = &edit->file->node;
    for (uint32_t gpu = 0; gpu < node->n_gpus; gpu++) {
        mend_memory(&edit->live->gpus[gpu]);
        after_driver_load(node, &node->gpus[gpu], &edit->live->gpus[gpu]);
    }
    edit->live->n_holders = 0;
    edit->live->sessions_after = atomic_load(&edit->file->log.next);
    edit->live->boots++;
    return 0;
}

static int reload(struct edit *edit, char *error, unsigned size)
{
    const struct node *node = &edit->file->node;
    if (edit->live->n_holders > 0) {
        return failed(error, size, "reload", "the kernel module is in use");
    }
    for (uint32_t gpu = 0; gpu < node->n_gpus; gpu++) {
        struct live_gpu *live = &edit->live->gpus[gpu];
        bool waits_for_vm = node->gpus[gpu].virtualization == PASSTHROUGH && !can_be_reset(node, &node->gpus[gpu]);
        uint8_t pending = live->pending;
        if (waits_for_vm) {
            live->pending = live->current;
        }
        after_driver_load(node, &node->gpus[gpu], live);
        live->pending = waits_for_vm ? pending : live->pending;
    }
    return 0;
}

/* Not everywhere: a hypervisor keeps the reset of a virtual GPU and that of an Ampere GPU to itself, and there are
 * computers that have none. */
bool can_be_reset(const struct node *node, const struct board *board)
{
    return !node->never_reset && board->virtualization != VGPU_GUEST &&
           !(board->virtualization == PASSTHROUGH && board->needs_reset);
}

nvmlReturn_t reset_gpu(struct edit *edit, int gpu)
{
    const struct node *node = &edit->file->node;
    const struct board *board = &node->gpus[gpu];
    struct live_gpu *live = &edit->live->gpus[gpu];
    if (!can_be_reset(node, board)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (is_held(edit->live, gpu, ANY_LEVEL, ANY_LEVEL, true)) {
        return NVML_ERROR_IN_USE;
    }
    forget_instances(live);
    mend_memory(live);
    if (board->mig) {
        bool keeps = board->keeps_mode || assumed(node, HOPPER_RESET_KEEPS_MODE) == 0;
        live->current = live->pending = keeps ? live->pending : 0;
    }
    return NVML_SUCCESS;
}

static int reset(struct edit *edit, int gpu, char *error, unsigned size)
{
    switch (reset_gpu(edit, gpu)) {
    case NVML_SUCCESS:
        return 0;
    case NVML_ERROR_NOT_SUPPORTED:
        return failed(error, size, "reset", "Not Supported: the hypervisor owns the reset of this GPU");
    default:
        return failed(error, size, "reset", "In use by another client");
    }
}

/* What daemons do when they start and end, which NVML has no call for. */
static int set_persistence(struct edit *edit, bool on)
{
    for (uint32_t gpu = 0; gpu < edit->file->node.n_gpus; gpu++) {
        edit->live->gpus[gpu].persistence = on;
    }
    return 0;
}

static int set_fabric_manager(struct edit *edit, bool on, char *error, unsigned size)
{
    if (edit->file->node.fabric_manager == NO_NVSWITCH) {
        return failed(error, size, "fabric-manager", "this node has no NVSwitch");
    }
    edit->file->node.fabric_manager = on ? FABRIC_MANAGER_ON : FABRIC_MANAGER_OFF;
    return 0;
}

static int event(struct edit *edit, const char *request, char *error, unsigned size)
{
    static const char *const events = "say reboot, reload, reset gpu=N with a GPU of this node, persistence on or off, or"
                                      " fabric-manager on or off";
    struct words words = {request};
    char word[64], value[64], key[64] = "";
    bool has_value, on;
    long long gpu;
    if (!next_word(&words, word, sizeof word, value, sizeof value, &has_value) || has_value) {
        return failed(error, size, "event", events);
    }
    bool more = next_word(&words, key, sizeof key, value, sizeof value, &has_value);
    if (strcmp(word, "reboot") == 0 && !more) {
        return reboot(edit);
    }
    if (strcmp(word, "reload") == 0 && !more) {
        return reload(edit, error, size);
    }
    if (strcmp(word, "reset") == 0 && strcmp(key, "gpu") == 0 &&
        to_number(value, 0, (long long)edit->file->node.n_gpus - 1, &gpu)) {
        return reset(edit, (int)gpu, error, size);
    }
    if (strcmp(word, "persistence") == 0 && to_flag(key, &on)) {
        return set_persistence(edit, on);
    }
    if (strcmp(word, "fabric-manager") == 0 && to_flag(key, &on)) {
        return set_fabric_manager(edit, on, error, size);
    }
    return failed(error, size, "event", events);
}

/* ---- health of the memory ----------------------------------------------------------------------------------------- */

static const char *const remap_words[] = {"none", "pending", "failed"};

static int set_memory(struct edit *edit, const char *request, char *error, unsigned size)
{
    struct words words = {request};
    char key[64], value[64];
    bool has_value;
    long long gpu = -1;
    int ecc = -1, remap = -1;
    while (next_word(&words, key, sizeof key, value, sizeof value, &has_value)) {
        bool fine = false;
        if (strcmp(key, "gpu") == 0) {
            fine = to_number(value, 0, (long long)edit->file->node.n_gpus - 1, &gpu);
        } else if (strcmp(key, "ecc") == 0) {
            ecc = strcmp(value, "on") == 0;
            fine = ecc || strcmp(value, "off") == 0;
        } else if (strcmp(key, "remap") == 0) {
            for (remap = 0; remap <= REMAP_FAILED && strcmp(value, remap_words[remap]) != 0; remap++) {
            }
            fine = remap <= REMAP_FAILED;
        }
        if (!fine || !has_value) {
            snprintf(error, size, "memory: cannot use %s=%s", key, value);
            return -1;
        }
    }
    if (gpu < 0) {
        return failed(error, size, "memory", "needs the index of a GPU of this node");
    }
    struct live_gpu *live = &edit->live->gpus[gpu];
    live->ecc_pending = ecc < 0 ? live->ecc_pending : (uint8_t)ecc;
    live->remap = remap < 0 ? live->remap : (uint8_t)remap;
    return 0;
}

EXPORT int nvmlsim_memory(const char *path, const char *request, char *error, unsigned size)
{
    return change_state(path, set_memory, request, error, size);
}

EXPORT int nvmlsim_event(const char *path, const char *request, char *error, unsigned size)
{
    return change_state(path, event, request, error, size);
}
