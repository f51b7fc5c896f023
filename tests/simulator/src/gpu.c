/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* System and physical GPUs: versions, handles, names, memory, PCI, persistence, field values. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "internal.h"

static bool is_device(nvmlDevice_t device) { return is_kind(device, GPU_HANDLE) || is_kind(device, MIG_HANDLE); }

/* ---- errors and versions --------------------------------------------------------------------------------------- */

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient External Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
        "GPU requires reset",
        "GPU access blocked by the operating system",
        "Driver/library version mismatch",
        "In use by another client",
        "Insufficient Memory",
        "No Data",
        "The requested vgpu operation is not available on target device, because ECC is enabled",
        "Insufficient Resources",
        "The requested frequency is not supported",
        "Argument Version Mismatch",
        "Deprecated",
        "Not Ready",
        "GPU Not Found",
        "Invalid State",
        "Reset Type Not Supported",
    };
    unsigned number = (unsigned)code;
    return number < sizeof texts / sizeof *texts ? texts[number] : "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    CALL(nvmlSystemGetDriverVersion, nowhere(), copy_text(node()->driver, version, size));
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    if (!session_mapping()) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    CALL(nvmlSystemGetNVMLVersion, nowhere(), copy_text(node()->nvml, version, size));
}

static nvmlReturn_t cuda_version(int *version)
{
    if (version == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *version = node()->cuda;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    CALL(nvmlSystemGetCudaDriverVersion, nowhere(), cuda_version(version));
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    CALL(nvmlSystemGetCudaDriverVersion_v2, nowhere(), cuda_version(version));
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

static nvmlReturn_t count_gpus(unsigned *count)
{
    if (count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = node()->n_gpus;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { CALL(nvmlDeviceGetCount, nowhere(), count_gpus(count)); }
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    CALL(nvmlDeviceGetCount_v2, nowhere(), count_gpus(count));
}

static nvmlReturn_t handle_by_index(unsigned index, nvmlDevice_t *device)
{
    if (device == NULL || index >= node()->n_gpus) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = gpu_handle((int)index);
    return NVML_SUCCESS;
}

static struct where gpu_at(unsigned index) { return (struct where){index < MAX_GPUS ? (int)index : -1, -1, -1}; }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    CALL(nvmlDeviceGetHandleByIndex, gpu_at(index), handle_by_index(index, device));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    CALL(nvmlDeviceGetHandleByIndex_v2, gpu_at(index), handle_by_index(index, device));
}

static struct handle *find_uuid(const char *uuid)
{
    struct handle *mig = NULL;
    if (session.count == 0 || uuid == NULL) {
        return NULL;
    }
    for (uint32_t gpu = 0; gpu < node()->n_gpus; gpu++) {
        if (strcasecmp(uuid, board_of((int)gpu)->uuid) == 0) {
            return gpu_handle((int)gpu);
        }
    }
    return find_mig_uuid(uuid, &mig) ? mig : NULL;
}

static nvmlReturn_t handle_by_uuid(const char *uuid, struct handle *found, nvmlDevice_t *device)
{
    if (uuid == NULL || device == NULL || (strncmp(uuid, "GPU-", 4) != 0 && strncmp(uuid, "MIG-", 4) != 0)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (found == NULL) {
        return NVML_ERROR_NOT_FOUND;
    }
    *device = found;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct handle *found = find_uuid(uuid);
    CALL(nvmlDeviceGetHandleByUUID, where_is(found), handle_by_uuid(uuid, found, device));
}

/* "00000000:07:00.0", "0000:07:00.0", "07:00.0", with or without function; index of the GPU, -1 none, -2 no address */
static int find_pci(const char *address)
{
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    int end = 0;
    bool read = (sscanf(address, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) == 4 && !address[end]) ||
                (sscanf(address, "%8x:%2x:%2x%n", &domain, &bus, &device, &end) == 3 && !address[end]);
    if (!read) {
        domain = function = 0;
        read = (sscanf(address, "%2x:%2x.%1x%n", &bus, &device, &function, &end) == 3 && !address[end]) ||
               (sscanf(address, "%2x:%2x%n", &bus, &device, &end) == 2 && !address[end]);
    }
    for (uint32_t gpu = 0; read && gpu < node()->n_gpus; gpu++) {
        const struct board *board = board_of((int)gpu);
        if (board->pci_domain == domain && board->pci_bus == bus && board->pci_device == device &&
            board->pci_function == function) {
            return (int)gpu;
        }
    }
    return read ? -1 : -2;
}

static nvmlReturn_t handle_by_pci(const char *address, int found, nvmlDevice_t *device)
{
    if (address == NULL || device == NULL || found == -2) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (found < 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    *device = gpu_handle(found);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *address, nvmlDevice_t *device)
{
    int found = session.count > 0 && address != NULL ? find_pci(address) : -1;
    CALL(nvmlDeviceGetHandleByPciBusId, gpu_at((unsigned)found), handle_by_pci(address, found, device));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device)
{
    int found = session.count > 0 && address != NULL ? find_pci(address) : -1;
    CALL(nvmlDeviceGetHandleByPciBusId_v2, gpu_at((unsigned)found), handle_by_pci(address, found, device));
}

/* ---- identity --------------------------------------------------------------------------------------------------- */

static nvmlReturn_t name_of(nvmlDevice_t device, char *name, unsigned size)
{
    if (!is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    char text[sizeof((struct board *)0)->name + PROFILE_NAME_BUFFER + 1];
    snprintf(text, sizeof text, "%s", board_of(device->gpu)->name);
    if (device->kind == MIG_HANDLE) {
        snprintf(text, sizeof text, "%s %s", board_of(device->gpu)->name, ci_profile_of_mig(device)->name);
    }
    return copy_text(text, name, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size)
{
    CALL(nvmlDeviceGetName, where_is(device), name_of(device, name, size));
}

static nvmlReturn_t uuid_of(nvmlDevice_t device, char *uuid, unsigned size)
{
    if (!is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (device->kind == GPU_HANDLE) {
        return copy_text(board_of(device->gpu)->uuid, uuid, size);
    }
    char text[UUID_BUFFER];
    mig_uuid(node(), board_of(device->gpu), device->gi, device->ci, text);
    return copy_text(text, uuid, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size)
{
    CALL(nvmlDeviceGetUUID, where_is(device), uuid_of(device, uuid, size));
}

/* A number of the GPU; a MIG device answers for its GPU. */
static nvmlReturn_t number_of(nvmlDevice_t device, unsigned number, unsigned *answer)
{
    if (answer == NULL || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *answer = number;
    return NVML_SUCCESS;
}

/* The board behind any handle; rubbish gets the first board and is refused by number_of. */
static const struct board *its_board(nvmlDevice_t device) { return board_of(is_device(device) ? device->gpu : 0); }

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    CALL(nvmlDeviceGetMinorNumber, where_is(device), number_of(device, its_board(device)->minor, minor));
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
    CALL(nvmlDeviceGetArchitecture, where_is(device),
         number_of(device, its_board(device)->architecture, architecture));
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode)
{
    CALL(nvmlDeviceGetVirtualizationMode, where_is(device),
         number_of(device, its_board(device)->virtualization, mode));
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    CALL(nvmlDeviceGetComputeMode, where_is(device), number_of(device, 0 /* default */, mode));
}

static nvmlReturn_t compute_capability(nvmlDevice_t device, int *major, int *minor)
{
    if (major == NULL || minor == NULL || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *major = (int)board_of(device->gpu)->cc_major;
    *minor = (int)board_of(device->gpu)->cc_minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    CALL(nvmlDeviceGetCudaComputeCapability, where_is(device), compute_capability(device, major, minor));
}

/* ---- PCI --------------------------------------------------------------------------------------------------------- */

static void bus_id(const struct board *board, bool legacy, char *text, size_t size)
{
    snprintf(text, size, legacy ? "%04X:%02X:%02X.%X" : "%08X:%02X:%02X.%X", board->pci_domain, board->pci_bus,
             board->pci_device, board->pci_function);
}

static nvmlReturn_t pci_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    if (pci == NULL || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct board *board = board_of(device->gpu);
    memset(pci, 0, sizeof *pci);
    bus_id(board, true, pci->bus_id_legacy, sizeof pci->bus_id_legacy);
    bus_id(board, false, pci->bus_id, sizeof pci->bus_id);
    pci->domain = board->pci_domain;
    pci->bus = board->pci_bus;
    pci->device = board->pci_device;
    pci->pci_device_id = board->pci_device_id;
    pci->pci_subsystem_id = board->pci_subsystem_id;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    CALL(nvmlDeviceGetPciInfo_v3, where_is(device), pci_v3(device, pci));
}

static nvmlReturn_t pci_v2(nvmlDevice_t device, pci_info_v2 *pci)
{
    nvmlPciInfo_t full;
    nvmlReturn_t code = pci == NULL ? NVML_ERROR_INVALID_ARGUMENT : pci_v3(device, &full);
    if (code == NVML_SUCCESS) {
        *pci = (pci_info_v2){.domain = full.domain,
                             .bus = full.bus,
                             .device = full.device,
                             .pci_device_id = full.pci_device_id,
                             .pci_subsystem_id = full.pci_subsystem_id};
        memcpy(pci->bus_id, full.bus_id_legacy, sizeof pci->bus_id);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, pci_info_v2 *pci)
{
    CALL(nvmlDeviceGetPciInfo_v2, where_is(device), pci_v2(device, pci));
}

static nvmlReturn_t pci_v1(nvmlDevice_t device, pci_info_v1 *pci)
{
    pci_info_v2 more;
    nvmlReturn_t code = pci == NULL ? NVML_ERROR_INVALID_ARGUMENT : pci_v2(device, &more);
    if (code == NVML_SUCCESS) {
        memcpy(pci, &more, sizeof *pci); /* v2 begins like v1 */
    }
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, pci_info_v1 *pci)
{
    CALL(nvmlDeviceGetPciInfo, where_is(device), pci_v1(device, pci));
}

static nvmlReturn_t pci_ext(nvmlDevice_t device, pci_info_ext_v1 *pci)
{
    nvmlPciInfo_t full;
    if (pci == NULL || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (pci->version != STRUCT_VERSION(pci_info_ext_v1, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    nvmlReturn_t code = pci_v3(device, &full);
    if (code == NVML_SUCCESS) {
        *pci = (pci_info_ext_v1){.version = pci->version,
                                 .domain = full.domain,
                                 .bus = full.bus,
                                 .device = full.device,
                                 .pci_device_id = full.pci_device_id,
                                 .pci_subsystem_id = full.pci_subsystem_id,
                                 .base_class = 0x03,
                                 .sub_class = 0x02};
        memcpy(pci->bus_id, full.bus_id, sizeof pci->bus_id);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, pci_info_ext_v1 *pci)
{
    CALL(nvmlDeviceGetPciInfoExt, where_is(device), pci_ext(device, pci));
}

/* ---- topology ---------------------------------------------------------------------------------------------------- */

enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_NODE = 40 };

/* All GPUs of a simulated computer are on one NUMA node, each below a host bridge of its own, and no two on one board. */
static nvmlReturn_t common_ancestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
    if (level == NULL || !is_kind(one, GPU_HANDLE) || !is_kind(other, GPU_HANDLE)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *level = one->gpu == other->gpu ? TOPOLOGY_INTERNAL : TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
    CALL(nvmlDeviceGetTopologyCommonAncestor, where_is(one), common_ancestor(one, other, level));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static uint64_t held_memory_mib(const struct handle *device)
{
    uint32_t count;
    struct holder holders[MAX_HOLDERS];
    uint64_t sum = 0;
    READ_LIVE(session.mapping.file, &count, n_holders);
    if (count == 0) {
        return 0;
    }
    READ_LIVE(session.mapping.file, &holders, holders);
    for (uint32_t i = 0; i < count && i < MAX_HOLDERS; i++) {
        bool inside = holders[i].gpu == device->gpu && (device->kind == GPU_HANDLE || holders[i].gi == device->gi);
        sum += inside && holder_is_alive(&holders[i]) ? holders[i].memory_mib : 0;
    }
    return sum;
}

static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_v2_t *answer)
{
    static const unsigned long long MIB = 1024 * 1024;
    if (!is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct board *board = board_of(device->gpu);
    bool whole = device->kind == GPU_HANDLE;
    if (whole) {
        struct live_gpu live;
        read_gpu(device->gpu, &live);
        if (live.current && !privileged()) {
            return NVML_ERROR_NO_PERMISSION; /* it would tell what others use */
        }
    }
    unsigned long long total = whole ? board->memory_mib : gi_profile_of_mig(device)->memory_mib;
    unsigned long long reserved = whole ? board->reserved_mib : 0;
    unsigned long long used = held_memory_mib(device);
    used = used + reserved > total ? total - reserved : used;
    answer->total = total * MIB;
    answer->reserved = reserved * MIB;
    answer->used = used * MIB;
    answer->free = (total - reserved - used) * MIB;
    return NVML_SUCCESS;
}

static nvmlReturn_t memory_v1(nvmlDevice_t device, nvmlMemory_t *answer)
{
    nvmlMemory_v2_t more;
    nvmlReturn_t code = answer == NULL ? NVML_ERROR_INVALID_ARGUMENT : memory(device, &more);
    if (code == NVML_SUCCESS) {
        *answer = (nvmlMemory_t){more.total, more.free, more.used + more.reserved};
    }
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *answer)
{
    CALL(nvmlDeviceGetMemoryInfo, where_is(device), memory_v1(device, answer));
}

static nvmlReturn_t memory_v2(nvmlDevice_t device, nvmlMemory_v2_t *answer)
{
    if (answer == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return answer->version == STRUCT_VERSION(nvmlMemory_v2_t, 2) ? memory(device, answer)
                                                                 : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *answer)
{
    CALL(nvmlDeviceGetMemoryInfo_v2, where_is(device), memory_v2(device, answer));
}

/* ---- persistence ------------------------------------------------------------------------------------------------- */

static nvmlReturn_t persistence(nvmlDevice_t device, unsigned *mode)
{
    struct live_gpu live;
    if (mode == NULL || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (device->kind == MIG_HANDLE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    read_gpu(device->gpu, &live);
    *mode = live.persistence;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    CALL(nvmlDeviceGetPersistenceMode, where_is(device), persistence(device, mode));
}

static nvmlReturn_t set_persistence(struct call *call, nvmlDevice_t device, unsigned mode)
{
    call_argument(call, (int)mode, NULL);
    if (mode > 1 || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (device->kind == MIG_HANDLE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (!privileged()) {
        return NVML_ERROR_NO_PERMISSION;
    }
    struct edit edit;
    if (!edit_begin(&edit, &session.mapping)) {
        return NVML_ERROR_UNKNOWN;
    }
    edit.live->gpus[device->gpu].persistence = (uint8_t)mode;
    return edit_end(&edit, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    CALL(nvmlDeviceSetPersistenceMode, where_is(device), set_persistence(&call_, device, mode));
}

/* ---- health of the memory ---------------------------------------------------------------------------------------- */

static nvmlReturn_t ecc_mode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct live_gpu live;
    if (current == NULL || pending == NULL || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (device->kind == MIG_HANDLE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    read_gpu(device->gpu, &live);
    *current = live.ecc;
    *pending = live.ecc_pending;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    CALL(nvmlDeviceGetEccMode, where_is(device), ecc_mode(device, current, pending));
}

/* Ampere and later remap rows, earlier boards retire pages. While instances exist the header says it is not offered. */
static nvmlReturn_t remapped_rows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                  unsigned *pending, unsigned *failed)
{
    struct live_gpu live;
    if (correctable == NULL || uncorrectable == NULL || pending == NULL || failed == NULL || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    read_gpu(device->gpu, &live);
    if (device->kind == MIG_HANDLE || board_of(device->gpu)->architecture < AMPERE || has_instances(&live)) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *correctable = 0;
    *uncorrectable = live.remap != REMAP_NONE;
    *pending = live.remap == REMAP_PENDING;
    *failed = live.remap == REMAP_FAILED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
                                              unsigned *pending, unsigned *failed)
{
    CALL(nvmlDeviceGetRemappedRows, where_is(device),
         remapped_rows(device, correctable, uncorrectable, pending, failed));
}

/* ---- field values ------------------------------------------------------------------------------------------------ */

enum { FIELD_RESETLESS_MIG = 184, FIELD_PROFILES_WITH_MIG_OFF = 199, VALUE_IS_UNSIGNED_INT = 1 };

static bool field(const struct board *board, unsigned id, unsigned *value)
{
    if (id == FIELD_RESETLESS_MIG && node()->branch >= 535 && board->mig) {
        *value = !board->needs_reset;
        return true;
    }
    if (id == FIELD_PROFILES_WITH_MIG_OFF && node()->branch >= 550 && board->mig) {
        *value = 1;
        return true;
    }
    return false;
}

static nvmlReturn_t field_values(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    if (values == NULL || count < 1 || !is_device(device)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)time(NULL) * 1000000;
        values[i].latency_usec = 0;
        values[i].value_type = VALUE_IS_UNSIGNED_INT;
        values[i].value.ull = 0;
        values[i].code = field(board_of(device->gpu), values[i].field_id, &values[i].value.ui)
                             ? NVML_SUCCESS
                             : NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    CALL(nvmlDeviceGetFieldValues, where_is(device), field_values(device, count, values));
}
