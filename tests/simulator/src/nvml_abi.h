/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* The part of NVML's binary interface that the simulator answers: our own declarations, sizes asserted. */

#ifndef NVML_ABI_H
#define NVML_ABI_H

#include <stdint.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
    NVML_RETURN_IS_AN_INT = 0x7fffffff
} nvmlReturn_t;

/* All four kinds of handle are pointers to our own struct; clients never look inside. */
typedef struct handle *nvmlDevice_t;
typedef struct handle *nvmlGpuInstance_t;
typedef struct handle *nvmlComputeInstance_t;
typedef struct event_set *nvmlEventSet_t;

#define STRUCT_VERSION(type, number) ((unsigned)(sizeof(type) | ((unsigned)(number) << 24)))

enum {
    UUID_BUFFER = 80,
    PROFILE_NAME_BUFFER = 96,
    NO_INSTANCE_ID = -1 /* as unsigned: NVML's 0xFFFFFFFF for "outside MIG" */
};

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device;
    unsigned pci_device_id;    /* (device << 16) | vendor */
    unsigned pci_subsystem_id; /* likewise */
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device;
    unsigned pci_device_id;
} pci_info_v1;

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    unsigned reserved[4];
} pci_info_v2;

typedef struct {
    unsigned version;
    unsigned domain, bus, device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    unsigned base_class, sub_class;
    char bus_id[32];
} pci_info_ext_v1;

typedef struct {
    unsigned long long total, free, used; /* bytes; used includes what the driver reserves */
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned multiprocessors;
    unsigned copy, decoder, encoder, jpeg, ofa;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mb;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned start, size;
} nvmlPlacement_t; /* memory slices for a GI, compute slices for a CI */

typedef struct {
    unsigned id, p2p, slices, instances, multiprocessors;
    unsigned copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mb;
} gi_profile_info_v1;

typedef struct {
    unsigned version;
    unsigned id, p2p, slices, instances, multiprocessors;
    unsigned copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mb;
    char name[PROFILE_NAME_BUFFER];
} gi_profile_info_v2;

typedef struct {
    unsigned version;
    unsigned id, slices, instances, multiprocessors;
    unsigned copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mb;
    char name[PROFILE_NAME_BUFFER];
    unsigned capabilities;
} gi_profile_info_v3;

typedef struct {
    nvmlDevice_t device;
    unsigned id, profile_id;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned id, slices, instances, multiprocessors;
    unsigned copy, decoder, encoder, jpeg, ofa;
} ci_profile_info_v1;

typedef struct {
    unsigned version;
    unsigned id, slices, instances, multiprocessors;
    unsigned copy, decoder, encoder, jpeg, ofa;
    char name[PROFILE_NAME_BUFFER];
} ci_profile_info_v2;

typedef struct {
    unsigned version;
    unsigned id, slices, instances, multiprocessors;
    unsigned copy, decoder, encoder, jpeg, ofa;
    char name[PROFILE_NAME_BUFFER];
    unsigned capabilities;
} ci_profile_info_v3;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpu_instance;
    unsigned id, profile_id;
} ci_info_v1;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpu_instance;
    unsigned id, profile_id;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned pid;
    unsigned long long used_memory;
} process_info_v1;

typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance_id, compute_instance_id;
} process_info_v2;

typedef struct {
    nvmlDevice_t device;
    unsigned long long event_type, event_data;
    unsigned gpu_instance_id, compute_instance_id;
} nvmlEventData_t;

typedef struct {
    unsigned field_id, scope_id;
    long long timestamp, latency_usec;
    unsigned value_type;
    nvmlReturn_t code;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
    } value;
} nvmlFieldValue_t;

_Static_assert(sizeof(nvmlReturn_t) == 4, "nvmlReturn_t");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(pci_info_ext_v1) == 64, "nvmlPciInfoExt_v1_t");
_Static_assert(sizeof(nvmlMemory_t) == 24, "nvmlMemory_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "nvmlDeviceAttributes_t");
_Static_assert(sizeof(nvmlPlacement_t) == 8, "placements");
_Static_assert(sizeof(gi_profile_info_v1) == 48, "nvmlGpuInstanceProfileInfo_t");
_Static_assert(sizeof(gi_profile_info_v2) == 152, "nvmlGpuInstanceProfileInfo_v2_t");
_Static_assert(sizeof(gi_profile_info_v3) == 152, "nvmlGpuInstanceProfileInfo_v3_t");
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "nvmlGpuInstanceInfo_t");
_Static_assert(sizeof(ci_profile_info_v1) == 36, "nvmlComputeInstanceProfileInfo_t");
_Static_assert(sizeof(ci_profile_info_v2) == 136, "nvmlComputeInstanceProfileInfo_v2_t");
_Static_assert(sizeof(ci_profile_info_v3) == 140, "nvmlComputeInstanceProfileInfo_v3_t");
_Static_assert(sizeof(ci_info_v1) == 24, "nvmlComputeInstanceInfo_t of the unversioned call");
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32, "nvmlComputeInstanceInfo_t");
_Static_assert(sizeof(process_info_v1) == 16, "nvmlProcessInfo_v1_t");
_Static_assert(sizeof(process_info_v2) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");

#endif
