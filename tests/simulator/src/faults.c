/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* Faults: a call that fails, waits, never returns, or takes its caller with it. */

#define _GNU_SOURCE
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static bool applies(const struct fault *fault, int function, int gpu)
{
    return (fault->functions[function / 64] >> (function % 64) & 1) != 0 && (fault->gpu < 0 || fault->gpu == gpu);
}

/* Each fault counts its own matching calls, over all processes of the node. */
static bool is_due(struct state_file *file, const struct fault *fault)
{
    uint32_t seen = atomic_fetch_add(&file->fault_seen[fault->counter], 1) + 1;
    return fault->nth == 0 || fault->nth == seen;
}

bool find_fault(const struct state_file *file, int function, int gpu, struct effect *before, struct effect *after)
{
    uint64_t generation = atomic_load_explicit(&file->generation, memory_order_acquire);
    if (file->live[generation & 1].n_faults == 0) {
        return false;
    }
    uint32_t count;
    struct fault faults[MAX_FAULTS];
    READ_LIVE(file, &count, n_faults);
    READ_LIVE(file, &faults, faults);
    bool found = false;
    memset(before, 0, sizeof *before);
    for (uint32_t i = 0; i < count && i < MAX_FAULTS; i++) {
        if (applies(&faults[i], function, gpu) && is_due((struct state_file *)file, &faults[i])) {
            *(faults[i].after ? after : before) = faults[i].effect;
            found = found || !faults[i].after;
        }
    }
    return found;
}

static void wait_ms(uint32_t milliseconds)
{
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0) {
    }
}

nvmlReturn_t suffer(const struct effect *effect)
{
    if (effect->delay_ms > 0) {
        wait_ms(effect->delay_ms);
    }
    if (effect->checkpoint > 0) {
        die_at_checkpoint(effect->checkpoint);
    } else if (effect->kill) {
        kill(getpid(), SIGKILL);
    }
    while (effect->hang || (effect->kill && effect->checkpoint == 0)) {
        pause();
    }
    return (nvmlReturn_t)effect->code;
}

/* A plain name also means its versions, nvmlInit every way to initialise, nvidia-smi whatever that is asked to do. */
static bool names_function(const char *pattern, int function)
{
    const char *name = function_names[function];
    if (strcmp(pattern, "write") == 0) {
        return is_write_call(function);
    }
    if (fnmatch(pattern, name, 0) == 0 || (strcmp(pattern, "nvmlInit") == 0 && function == F_nvmlInitWithFlags)) {
        return true;
    }
    size_t length = strlen(pattern);
    return strncmp(pattern, name, length) == 0 && (fnmatch("_v[0-9]*", name + length, 0) == 0 || name[length] == ' ');
}

static bool find_functions(struct fault *fault)
{
    bool any = false;
    for (int function = 0; function < FUNCTION_COUNT; function++) {
        if (names_function(fault->pattern, function)) {
            fault->functions[function / 64] |= UINT64_C(1) << (function % 64);
            any = true;
        }
    }
    return any;
}

bool parse_fault(const char *request, struct fault *fault, char *error, unsigned size)
{
    memset(fault, 0, sizeof *fault);
    fault->gpu = -1;
    struct words words = {request};
    char key[64], value[128];
    bool has_value, fine = true;
    while (fine && next_word(&words, key, sizeof key, value, sizeof value, &has_value)) {
        long long number = 0;
        if (strcmp(key, "function") == 0) {
            snprintf(fault->pattern, sizeof fault->pattern, "%.63s", value);
        } else if (strcmp(key, "when") == 0) {
            fault->after = strcmp(value, "after") == 0;
            fine = fault->after || strcmp(value, "before") == 0;
        } else if (strcmp(key, "code") == 0) {
            int code = 0;
            fine = code_by_name(value, &code) && code != NVML_SUCCESS;
            fault->effect.code = code;
        } else if (strcmp(key, "hang") == 0) {
            fault->effect.hang = true;
            fine = !has_value || to_flag(value, &fault->effect.hang);
        } else if (strcmp(key, "kill") == 0) {
            fault->effect.kill = true;
            fine = !has_value || to_flag(value, &fault->effect.kill);
        } else if (strcmp(key, "store") == 0) {
            fine = to_number(value, 1, 6, &number);
            fault->effect.checkpoint = (uint32_t)number;
        } else if (strcmp(key, "delay_ms") == 0) {
            fine = to_number(value, 0, 86400000, &number);
            fault->effect.delay_ms = (uint32_t)number;
        } else if (strcmp(key, "nth") == 0) {
            fine = to_number(value, 1, UINT32_MAX, &number);
            fault->nth = (uint32_t)number;
        } else if (strcmp(key, "gpu") == 0) {
            fine = to_number(value, 0, MAX_GPUS - 1, &number);
            fault->gpu = (int32_t)number;
        } else {
            fine = false;
        }
    }
    if (!fine) {
        snprintf(error, size, "fault: cannot use %s=%s", key, value);
        return false;
    }
    if (fault->effect.checkpoint > 0 && (!fault->effect.kill || fault->after)) {
        snprintf(error, size, "fault: store=N says when kill happens inside a call: give kill and when=before");
        return false;
    }
    if (!find_functions(fault)) {
        snprintf(error, size, "fault: no function of NVML is called \"%s\"", fault->pattern);
        return false;
    }
    if (fault->effect.code == NVML_SUCCESS && !fault->effect.hang && !fault->effect.kill &&
        fault->effect.delay_ms == 0) {
        snprintf(error, size, "fault: say what happens: code=NAME, hang, kill or delay_ms=N");
        return false;
    }
    return true;
}
