/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* The node and its call record as JSON. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ---- live state --------------------------------------------------------------------------------------------------- */

static void compute_instance(struct json *json, const struct node *node, const struct board *board, const struct live_gi *gi, int gi_id, int id,
                             int mig_index)
{
    const struct live_ci *ci = &gi->ci[id];
    const struct ci_profile *profile = &board->gi[gi->profile].ci[ci->profile];
    char uuid[UUID_BUFFER];
    mig_uuid(node, board, gi_id, id, uuid);
    json_open(json, NULL, '{');
    json_number(json, "id", id);
    json_number(json, "profile_id", profile->id);
    json_string(json, "name", profile->name);
    json_number(json, "slices", profile->slices);
    json_number(json, "start", ci->span.start);
    json_number(json, "size", ci->span.size);
    json_string(json, "uuid", uuid);
    json_number(json, "mig_index", mig_index);
    json_close(json, '}');
}

static void instances(struct json *json, const struct node *node, const struct board *board, const struct live_gpu *live)
{
    int mig_index = 0;
    json_open(json, "instances", '[');
    for (int id = 0; id < MAX_GI_IDS; id++) {
        const struct live_gi *gi = &live->gi[id];
        if (!gi->used) {
            continue;
        }
        json_open(json, NULL, '{');
        json_number(json, "id", id);
        json_number(json, "profile_id", board->gi[gi->profile].id);
        json_string(json, "name", board->gi[gi->profile].name);
        json_number(json, "slices", board->gi[gi->profile].slices);
        json_number(json, "start", gi->span.start);
        json_number(json, "size", gi->span.size);
        json_open(json, "compute", '[');
        for (int ci = 0; ci < MAX_CI_IDS; ci++) {
            if (gi->ci[ci].used) {
                compute_instance(json, node, board, gi, id, ci, mig_index++);
            }
        }
        json_close(json, ']');
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void holders(struct json *json, const struct live *live, int gpu)
{
    static const char *const kinds[] = {"compute", "graphics", "hidden", "client"};
    json_open(json, "holders", '[');
    for (uint32_t i = 0; i < live->n_holders; i++) {
        const struct holder *holder = &live->holders[i];
        if (holder->gpu == gpu && holder_is_alive(holder)) {
            json_open(json, NULL, '{');
            json_number(json, "pid", holder->pid);
            json_string(json, "kind", kinds[holder->kind]);
            json_string(json, "name", holder->name);
            json_id(json, "gi", holder->gi);
            json_id(json, "ci", holder->ci);
            json_number(json, "memory_mib", holder->memory_mib);
            json_close(json, '}');
        }
    }
    json_close(json, ']');
}

static bool is_lost(const struct live *live, int gpu)
{
    for (uint32_t i = 0; i < live->n_faults; i++) {
        if (live->faults[i].effect.code == NVML_ERROR_GPU_IS_LOST && live->faults[i].gpu == gpu) {
            return true;
        }
    }
    return false;
}

static void gpu_object(struct json *json, const struct node *node, const struct live *live, int gpu)
{
    const struct board *board = &node->gpus[gpu];
    static const char *const architectures[] = {"volta", "turing", "ampere", "ada", "hopper", "blackwell"};
    static const char *const remaps[] = {"none", "pending", "failed"};
    static const char *const virtualizations[] = {"none", "passthrough", "vgpu", "host-vgpu", "host-vsga"};
    char pci[32], chip[2] = {board->chip, '\0'};
    snprintf(pci, sizeof pci, "%08X:%02X:%02X.%X", board->pci_domain, board->pci_bus, board->pci_device,
             board->pci_function);
    json_open(json, NULL, '{');
    json_number(json, "index", gpu);
    json_string(json, "key", board->key);
    json_string(json, "name", board->name);
    json_string(json, "uuid", board->uuid);
    json_string(json, "pci", pci);
    json_number(json, "device", board->pci_device_id);
    json_number(json, "subsystem", board->pci_subsystem_id);
    json_number(json, "memory_mib", board->memory_mib);
    json_string(json, "arch", board->architecture >= VOLTA ? architectures[board->architecture - VOLTA] : "");
    json_string(json, "chip", chip);
    json_number(json, "minor", board->minor);
    json_string(json, "virtualization", virtualizations[board->virtualization]);
    json_flag(json, "persistence", live->gpus[gpu].persistence);
    json_flag(json, "ecc", live->gpus[gpu].ecc);
    json_flag(json, "ecc_pending", live->gpus[gpu].ecc_pending);
    json_string(json, "remap", remaps[live->gpus[gpu].remap]);
    json_flag(json, "resettable", can_be_reset(node, board));
    json_flag(json, "mig", board->mig);
    json_number(json, "mode_current", live->gpus[gpu].current);
    json_number(json, "mode_pending", live->gpus[gpu].pending);
    json_flag(json, "lost", is_lost(live, gpu));
    json_number(json, "grid", board->grid);
    json_number(json, "compute_slices", board->compute_slices);
    instances(json, node, board, &live->gpus[gpu]);
    holders(json, live, gpu);
    json_close(json, '}');
}

static void fault_text(struct json *json, const struct fault *fault, uint32_t seen)
{
    char text[256], what[96];
    snprintf(what, sizeof what, "%s%s%s%s", fault->effect.code != NVML_SUCCESS ? " code=" : "",
             fault->effect.code != NVML_SUCCESS ? code_name(fault->effect.code) : "",
             fault->effect.hang ? " hang=yes" : "", fault->effect.kill ? " kill=yes" : "");
    int used = snprintf(text, sizeof text, "function=%s when=%s%s", fault->pattern, fault->after ? "after" : "before",
                        what);
    if (fault->effect.delay_ms > 0) {
        used += snprintf(text + used, sizeof text - (size_t)used, " delay_ms=%u", fault->effect.delay_ms);
    }
    if (fault->effect.checkpoint > 0) {
        used += snprintf(text + used, sizeof text - (size_t)used, " store=%u", fault->effect.checkpoint);
    }
    if (fault->nth > 0) {
        used += snprintf(text + used, sizeof text - (size_t)used, " nth=%u", fault->nth);
    }
    if (fault->gpu >= 0) {
        used += snprintf(text + used, sizeof text - (size_t)used, " gpu=%d", fault->gpu);
    }
    snprintf(text + used, sizeof text - (size_t)used, " seen=%u", seen);
    json_string(json, NULL, text);
}

EXPORT int nvmlsim_describe(const char *path, char *buffer, unsigned size)
{
    struct mapping mapping;
    const char *why;
    struct live *live = calloc(1, sizeof *live);
    if (live == NULL || !map_state(&mapping, path, &why)) {
        free(live);
        return -1;
    }
    read_live(mapping.file, live, 0, sizeof *live);
    const struct node *node = &mapping.file->node;
    struct json json = {.buffer = buffer, .size = size};
    json_open(&json, NULL, '{');
    json_string(&json, "driver", node->driver);
    json_string(&json, "nvml", node->nvml);
    json_number(&json, "cuda", node->cuda);
    static const char *const fabric_managers[] = {"none", "on", "off"};
    json_string(&json, "fabric_manager", fabric_managers[node->fabric_manager]);
    json_open(&json, "assume", '{');
    for (int i = 0; i < ASSUMPTIONS; i++) {
        json_string(&json, assumption_name(i), assumption_value(i, node->assumptions[i]));
    }
    json_close(&json, '}');
    json_number(&json, "boots", live->boots);
    json_open(&json, "gpus", '[');
    for (uint32_t gpu = 0; gpu < node->n_gpus; gpu++) {
        gpu_object(&json, node, live, (int)gpu);
    }
    json_close(&json, ']');
    json_open(&json, "faults", '[');
    for (uint32_t i = 0; i < live->n_faults; i++) {
        fault_text(&json, &live->faults[i], atomic_load(&mapping.file->fault_seen[live->faults[i].counter]));
    }
    json_close(&json, ']');
    json_close(&json, '}');
    unmap_state(&mapping);
    free(live);
    return (int)json.used + 1;
}

/* ---- call record --------------------------------------------------------------------------------------------------- */

static void detail(struct json *json, const struct record *record)
{
    char text[64];
    if (record->argument < 0) {
        return;
    }
    if (record->place_size > 0) {
        snprintf(text, sizeof text, "profile=%d start=%u size=%u", record->argument, record->place_start,
                 record->place_size);
    } else {
        bool mode = strstr(function_names[record->function], "Mode") != NULL;
        snprintf(text, sizeof text, "%s=%d", mode ? "mode" : "profile", record->argument);
    }
    json_string(json, "detail", text);
}

static void call_object(struct json *json, const struct record *record, uint64_t ticket)
{
    json_open(json, NULL, '{');
    json_number(json, "seq", (long long)ticket);
    json_number(json, "pid", record->pid);
    json_string(json, "function", function_names[record->function]);
    json_id(json, "gpu", record->gpu);
    json_id(json, "gi", record->gi);
    json_id(json, "ci", record->ci);
    if (record->code == CALL_UNFINISHED) {
        json_null(json, "code");
        json_string(json, "name", "UNFINISHED");
    } else {
        json_number(json, "code", record->code);
        json_string(json, "name", code_name(record->code));
    }
    json_number(json, "us", (long long)record->started_us);
    json_number(json, "took_us", (long long)(record->duration_ns / 1000));
    json_flag(json, "write", record->is_write);
    detail(json, record);
    json_close(json, '}');
}

/* A slot being written just now, or already given to a later call, is no longer this ticket's. */
static bool read_record(const struct call_log *log, uint64_t ticket, struct record *copy)
{
    const struct record *record = &log->records[(ticket - 1) % RECORDS];
    if (atomic_load_explicit(&record->ticket, memory_order_acquire) != ticket) {
        return false;
    }
    memcpy(copy, record, sizeof *copy);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&record->ticket, memory_order_relaxed) == ticket;
}

static void summary(struct json *json, const struct call_log *log)
{
    uint64_t writes = 0, total = 0;
    json_open(json, "counts", '{');
    for (int function = 0; function < FUNCTION_COUNT; function++) {
        uint64_t count = atomic_load_explicit(&log->counts[function], memory_order_relaxed);
        total += count;
        if (count > 0) {
            writes += is_write_call(function) ? count : 0;
            json_number(json, function_names[function], (long long)count);
        }
    }
    json_close(json, '}');
    json_number(json, "writes", (long long)writes);
    json_number(json, "total", (long long)total);
}

static void forget_calls(struct call_log *log, uint64_t next)
{
    atomic_store(&log->first, next);
    for (int function = 0; function < FUNCTION_COUNT; function++) {
        atomic_store(&log->counts[function], 0);
    }
}

/* With `reset`, the record is emptied once the caller's buffer has all of it. */
EXPORT int nvmlsim_calls(const char *path, int reset, char *buffer, unsigned size)
{
    struct mapping mapping;
    const char *why;
    if (!map_state(&mapping, path, &why)) {
        return -1;
    }
    struct call_log *log = &mapping.file->log;
    uint64_t next = atomic_load(&log->next), first = atomic_load(&log->first), dropped = 0;
    if (next - first > RECORDS) {
        dropped = next - first - RECORDS;
        first += dropped;
    }
    struct json json = {.buffer = buffer, .size = size};
    json_open(&json, NULL, '{');
    json_open(&json, "calls", '[');
    for (uint64_t ticket = first + 1; ticket <= next; ticket++) {
        struct record record;
        if (read_record(log, ticket, &record)) {
            call_object(&json, &record, ticket);
        }
    }
    json_close(&json, ']');
    summary(&json, log);
    json_number(&json, "dropped", (long long)dropped);
    json_close(&json, '}');
    if (reset && json.used < size) {
        forget_calls(log, next);
    }
    unmap_state(&mapping);
    return (int)json.used + 1;
}
