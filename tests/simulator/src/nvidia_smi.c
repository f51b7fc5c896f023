/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* A stand-in for the command nvidia-smi: -L, and --gpu-reset with its rules, messages and exit status.
 *
 * It is a program of its own with the whole driver in it, so that it starts in no time and needs neither an interpreter
 * nor the dynamic linker's search path. It finds its node as every client does, by NVMLSIM_STATE. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "internal.h"

/* The exit status that the manual page of nvidia-smi documents. */
enum { DONE = 0, BAD_ARGUMENT = 2, NOT_OFFERED = 3, NOT_PERMITTED = 4, NO_DRIVER = 9, LOST = 15, OTHER_ERROR = 255 };

const char *nvmlErrorString(nvmlReturn_t code);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig);

struct options {
    bool list, reset;
    const char *ids; /* comma-separated; NULL: all GPUs */
};

static bool read_options(int count, char **words, struct options *options)
{
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "-L") == 0 || strcmp(words[i], "--list-gpus") == 0) {
            options->list = true;
        } else if (strcmp(words[i], "-r") == 0 || strcmp(words[i], "--gpu-reset") == 0) {
            options->reset = true;
        } else if (strncmp(words[i], "--id=", 5) == 0) {
            options->ids = words[i] + 5;
        } else if (strcmp(words[i], "-i") == 0 && i + 1 < count) {
            options->ids = words[++i];
        } else {
            return false;
        }
    }
    return options->list != options->reset;
}

static void bus_id(const struct board *board, char text[32])
{
    snprintf(text, 32, "%08X:%02X:%02X.%X", board->pci_domain, board->pci_bus, board->pci_device, board->pci_function);
}

/* ---- which GPUs are meant ----------------------------------------------------------------------------------------- */

static int find_gpu(const char *id)
{
    char address[32];
    long long index;
    if (to_number(id, 0, (long long)node()->n_gpus - 1, &index)) {
        return (int)index;
    }
    for (uint32_t gpu = 0; gpu < node()->n_gpus; gpu++) {
        bus_id(board_of((int)gpu), address);
        if (strcmp(id, board_of((int)gpu)->uuid) == 0 || strcasecmp(id, address) == 0 ||
            strcasecmp(id, address + 4) == 0) { /* lspci's domain has four digits */
            return (int)gpu;
        }
    }
    return -1;
}

static bool choose_gpus(const char *ids, bool chosen[MAX_GPUS])
{
    char copy[4096];
    if (ids == NULL) {
        for (uint32_t gpu = 0; gpu < node()->n_gpus; gpu++) {
            chosen[gpu] = true;
        }
        return true;
    }
    snprintf(copy, sizeof copy, "%s", ids);
    char *rest = copy;
    for (char *id; (id = strtok_r(rest, ",", &rest)) != NULL;) {
        int gpu = find_gpu(id);
        if (gpu < 0) {
            printf("No devices were found: \"%s\"\n", id);
            return false;
        }
        chosen[gpu] = true;
    }
    return true;
}

/* ---- what keeps a GPU from being reset ---------------------------------------------------------------------------- */

/* Fabric Manager knows how to take one GPU of an Ampere NVSwitch board out; without it all have to go at once. */
static bool linked(int gpu)
{
    return node()->fabric_manager == FABRIC_MANAGER_OFF && board_of(gpu)->architecture == AMPERE &&
           strstr(board_of(gpu)->key, "-sxm") != NULL;
}

static bool all_peers_chosen(const bool chosen[MAX_GPUS])
{
    char address[32];
    bool any = false, complete = true;
    for (uint32_t gpu = 0; gpu < node()->n_gpus; gpu++) {
        any = any || (chosen[gpu] && linked((int)gpu));
    }
    for (uint32_t gpu = 0; any && gpu < node()->n_gpus; gpu++) {
        if (linked((int)gpu) && !chosen[gpu]) {
            if (complete) {
                puts("The following GPUs are connected by NVLink to a GPU that is to be reset, and must be reset together"
                     " with it while Fabric Manager is not running:");
            }
            bus_id(board_of((int)gpu), address);
            printf("  GPU %s\n", address);
            complete = false;
        }
    }
    return complete;
}

static bool computes_elsewhere(const struct live *live, int gpu)
{
    for (uint32_t i = 0; i < live->n_holders; i++) {
        if (live->holders[i].gpu != gpu && live->holders[i].kind == COMPUTE) {
            return true;
        }
    }
    return false;
}

static nvmlReturn_t reset(int gpu)
{
    struct edit edit;
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    if (!edit_begin(&edit, &session.mapping)) {
        return NVML_ERROR_UNKNOWN;
    }
    nvmlReturn_t code = NVML_ERROR_IN_USE;
    if (!computes_elsewhere(edit.live, gpu) && !others_have_a_session(edit.file)) {
        code = reset_gpu(&edit, gpu);
    }
    return edit_end(&edit, code);
}

static nvmlReturn_t reset_as_a_call(int gpu)
{
    CALL(nvidia_smi_gpu_reset, ((struct where){gpu, -1, -1}), reset(gpu));
}

/* ---- --gpu-reset -------------------------------------------------------------------------------------------------- */

static int status_of(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS:
        return DONE;
    case NVML_ERROR_NOT_SUPPORTED:
        return NOT_OFFERED;
    case NVML_ERROR_NO_PERMISSION:
        return NOT_PERMITTED;
    case NVML_ERROR_GPU_IS_LOST:
        return LOST;
    default:
        return OTHER_ERROR;
    }
}

static void say_who_could_not(const nvmlReturn_t codes[MAX_GPUS])
{
    char address[32];
    int in_use = 0, failed = 0;
    for (uint32_t gpu = 0; gpu < node()->n_gpus; gpu++) {
        if (codes[gpu] == NVML_SUCCESS || codes[gpu] == NVML_ERROR_NOT_SUPPORTED) {
            continue;
        }
        if (failed++ == 0) {
            puts("The following GPUs could not be reset:");
        }
        bus_id(board_of((int)gpu), address);
        printf("  GPU %s: %s\n", address, nvmlErrorString(codes[gpu]));
        in_use += codes[gpu] == NVML_ERROR_IN_USE;
    }
    if (in_use > 0) {
        printf("\n%d %s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application,"
               " graphics application such as an X server, or a monitoring application such as another instance of"
               " nvidia-smi). Please first kill all processes using %s and all compute applications running in the"
               " system.\n",
               in_use, in_use == 1 ? "device is" : "devices are", in_use == 1 ? "this device" : "these devices");
    }
}

/* Each GPU that can be reset is, also when another one cannot. */
static int reset_gpus(const bool chosen[MAX_GPUS])
{
    nvmlReturn_t codes[MAX_GPUS] = {NVML_SUCCESS};
    char address[32];
    int status = DONE;
    if (!all_peers_chosen(chosen)) {
        return OTHER_ERROR;
    }
    for (uint32_t gpu = 0; gpu < node()->n_gpus; gpu++) {
        if (!chosen[gpu]) {
            continue;
        }
        codes[gpu] = reset_as_a_call((int)gpu);
        bus_id(board_of((int)gpu), address);
        if (codes[gpu] == NVML_SUCCESS) {
            printf("GPU %s was successfully reset.\n", address);
        } else if (codes[gpu] == NVML_ERROR_NOT_SUPPORTED) {
            printf("Resetting GPU %s is not supported.\n", address);
        }
        if (codes[gpu] != NVML_SUCCESS) {
            int its_own = status_of(codes[gpu]);
            status = status == DONE || status == its_own ? its_own : OTHER_ERROR;
        }
    }
    say_who_could_not(codes);
    if (status == DONE) {
        puts("All done.");
    }
    return status;
}

/* ---- -L ----------------------------------------------------------------------------------------------------------- */

static void list_mig_devices(nvmlDevice_t device)
{
    unsigned most = 0;
    char uuid[UUID_BUFFER];
    nvmlDeviceGetMaxMigDeviceCount(device, &most);
    for (unsigned index = 0; index < most; index++) {
        nvmlDevice_t mig;
        if (nvmlDeviceGetMigDeviceHandleByIndex(device, index, &mig) == NVML_SUCCESS &&
            nvmlDeviceGetUUID(mig, uuid, sizeof uuid) == NVML_SUCCESS) {
            printf("  %-15s Device %2u: (UUID: %s)\n", ci_profile_of_mig(mig)->name, index, uuid);
        }
    }
}

static int list_gpus(const bool chosen[MAX_GPUS])
{
    char name[96], uuid[UUID_BUFFER];
    for (unsigned gpu = 0; gpu < node()->n_gpus; gpu++) {
        nvmlDevice_t device;
        if (!chosen[gpu]) {
            continue;
        }
        nvmlReturn_t code = nvmlDeviceGetHandleByIndex_v2(gpu, &device);
        if (code == NVML_SUCCESS) {
            code = nvmlDeviceGetName(device, name, sizeof name);
        }
        if (code == NVML_SUCCESS) {
            code = nvmlDeviceGetUUID(device, uuid, sizeof uuid);
        }
        if (code != NVML_SUCCESS) {
            printf("Unable to determine the device handle for GPU%u: %s\n", gpu, nvmlErrorString(code));
            return status_of(code);
        }
        printf("GPU %u: %s (UUID: %s)\n", gpu, name, uuid);
        list_mig_devices(device);
    }
    return DONE;
}

int main(int count, char **words)
{
    struct options options = {0};
    bool chosen[MAX_GPUS] = {false};
    if (!read_options(count, words, &options)) {
        puts("Invalid combination of input arguments. This stand-in knows -L, and --gpu-reset (-r) with -i LIST.");
        return BAD_ARGUMENT;
    }
    nvmlReturn_t code = nvmlInit_v2();
    if (code == NVML_ERROR_DRIVER_NOT_LOADED) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
             " NVIDIA driver is installed and running.");
        return NO_DRIVER;
    }
    if (code != NVML_SUCCESS) {
        printf("Failed to initialize NVML: %s\n", nvmlErrorString(code));
        return OTHER_ERROR;
    }
    int status = BAD_ARGUMENT;
    if (choose_gpus(options.ids, chosen)) {
        status = options.list ? list_gpus(chosen) : reset_gpus(chosen);
    }
    nvmlShutdown();
    return status;
}
