/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* What the parts of the simulated driver share: the state file, the session of this process, a call in progress. */

#ifndef INTERNAL_H
#define INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml_abi.h"
#include "symbols_generated.h" /* enum of F_<function>, FUNCTION_COUNT: made from symbols.txt */

#define EXPORT __attribute__((visibility("default")))

enum {
    MAX_GPUS = 32, /* as many as the driver's static mig-minors table has */
    MAX_GI_IDS = 15,
    MAX_CI_IDS = 8,
    MAX_GI_PROFILES = 18,
    MAX_CI_PROFILES = 9,
    MAX_PLACES = 16,
    MAX_HOLDERS = 256,
    MAX_FAULTS = 32,
    RECORDS = 65536 /* power of two */
};

extern const char *const function_names[FUNCTION_COUNT]; /* symbols_generated.c */

/* ---- the node: written once by nvmlsim_create -------------------------------------------------------------- */

enum engine { COPY, DECODER, ENCODER, JPEG, OFA, ENGINES };

struct span {
    uint8_t start, size;
};

struct ci_profile {
    uint32_t enum_id, id, slices, count, multiprocessors, capabilities;
    uint32_t engines[ENGINES];
    uint32_t n_places;
    struct span places[MAX_PLACES];
    char name[PROFILE_NAME_BUFFER];
};

struct gi_profile {
    uint32_t enum_id, id, slices, count, reported_count, multiprocessors, memory_mib, p2p, capabilities;
    uint32_t since; /* first driver branch that offers it */
    uint32_t default_ci;
    uint32_t engines[ENGINES];
    uint32_t n_places;
    struct span places[MAX_PLACES];
    uint32_t n_ci;
    struct ci_profile ci[MAX_CI_PROFILES];
    char name[PROFILE_NAME_BUFFER];
};

enum architecture { VOLTA = 5, TURING, AMPERE, ADA, HOPPER, BLACKWELL };
enum virtualization { BARE_METAL, PASSTHROUGH, VGPU_GUEST, HOST_VGPU, HOST_VSGA };

struct board {
    char key[64], name[96], uuid[64];
    uint32_t pci_domain, pci_bus, pci_device, pci_function;
    uint32_t pci_device_id, pci_subsystem_id;
    uint32_t memory_mib, reserved_mib;
    uint32_t architecture, cc_major, cc_minor, minor, virtualization;
    uint32_t grid, compute_slices;
    uint32_t engines[ENGINES];
    bool mig, needs_reset, keeps_mode, broken_counts;
    char chip; /* 'N' or 'S': which of the two GI numberings */
    uint32_t n_gi;
    struct gi_profile gi[MAX_GI_PROFILES];
};

enum privileged { ROOT_OR_OWNER, ROOT_ONLY, NOBODY };

/* On a node with NVSwitches: whether Fabric Manager runs. */
enum fabric_manager { NO_NVSWITCH, FABRIC_MANAGER_ON, FABRIC_MANAGER_OFF };

/* Questions that the facts leave open; see assumptions.c. */
enum assumption {
    STRUCT_VERSION_CODE,
    PASSTHROUGH_ACTIVATION,
    PASSTHROUGH_CANCEL,
    DISABLE_WITH_INSTANCES,
    HOPPER_RESET_KEEPS_MODE,
    PLACEMENTS_NEED_ROOT,
    OWN_DESTROYS_STAY_LISTED,
    AMPERE_CI_WINDOWS,
    TAKEN_CI_SPAN,
    MODE_BESIDE_SESSIONS,
    ASSUMPTIONS
};

struct node {
    char driver[80], nvml[80];
    int32_t cuda;
    uint32_t branch; /* first number of the driver version */
    uint32_t privileged, owner, fabric_manager;
    bool persistence;
    bool never_reset; /* this computer has no way to reset a GPU */
    uint8_t assumptions[ASSUMPTIONS]; /* index of the chosen answer */
    uint32_t n_gpus;
    struct board gpus[MAX_GPUS];
};

/* ---- live state: two copies, the even or odd generation tells which one counts ------------------------------- */

struct live_ci {
    uint8_t used, profile; /* profile: index in the board's table, not an NVML id */
    struct span span;
    uint32_t serial; /* differs each time an instance is created: a handle to an earlier one is stale */
};

struct live_gi {
    uint8_t used, profile;
    struct span span;
    uint32_t serial;
    struct live_ci ci[MAX_CI_IDS];
};

enum remap { REMAP_NONE, REMAP_PENDING, REMAP_FAILED };

struct live_gpu {
    uint8_t current, pending, persistence;
    uint8_t ecc, ecc_pending, remap; /* remap: enum remap */
    struct live_gi gi[MAX_GI_IDS];
};

enum holder_kind { COMPUTE, GRAPHICS, HIDDEN, CLIENT };

struct holder {
    int32_t pid, gpu, gi, ci; /* gi, ci: -1 when it holds the whole GPU or GI */
    uint32_t kind, memory_mib;
    uint32_t pid_namespace; /* in which pid means that process; 0 when not known */
    uint64_t start_time; /* of the process, so that a reused pid is not taken for it */
    char name[64];
};

struct effect {
    int32_t code; /* NVML_SUCCESS: go on */
    uint32_t delay_ms;
    uint32_t checkpoint; /* kill not at once but at this step of a change, see state.c */
    bool hang, kill;
};

struct fault {
    uint64_t functions[(FUNCTION_COUNT + 63) / 64]; /* bit set of those it applies to */
    char pattern[64];
    int32_t gpu;  /* -1: any */
    uint32_t nth; /* 0: every call */
    bool after;
    struct effect effect;
    uint32_t counter; /* index in state_file.fault_seen */
};

struct live {
    uint32_t next_serial, boots;
    uint32_t n_holders, n_faults;
    uint64_t sessions_after; /* ticket of the last call before the last reboot: no session of before lives */
    struct live_gpu gpus[MAX_GPUS];
    struct holder holders[MAX_HOLDERS];
    struct fault faults[MAX_FAULTS];
};

/* ---- call record ------------------------------------------------------------------------------------------- */

enum { CALL_UNFINISHED = -1 };

struct record {
    _Atomic uint64_t ticket; /* number of the call + 1; 0 while being written */
    uint64_t started_us;     /* since the epoch */
    uint64_t duration_ns;
    int32_t pid, code;
    uint16_t function;
    int8_t gpu, gi, ci;
    uint8_t place_start, place_size; /* of an instance being created with placement */
    uint8_t is_write;
    int32_t argument; /* profile id or wanted mode, -1 when there is none */
    uint32_t pid_namespace; /* of a call that opens or closes a session, else 0 */
};

struct call_log {
    _Atomic uint64_t next;  /* ticket of the next call */
    _Atomic uint64_t first; /* tickets below were reset away */
    _Atomic uint64_t counts[FUNCTION_COUNT];
    struct record records[RECORDS];
};

struct state_file {
    char magic[8];
    uint32_t schema;
    uint32_t layout; /* check sum over sizes and function names: a file of another build is refused */
    struct node node;
    _Atomic uint64_t generation;
    struct live live[2];
    _Atomic uint32_t fault_seen[MAX_FAULTS];
    struct call_log log;
};

/* state.c */
struct mapping {
    struct state_file *file;
    char path[4096];
    uint64_t device, inode;
};
bool map_state(struct mapping *mapping, const char *path, const char **why);
void unmap_state(struct mapping *mapping);
bool same_state_file(const struct mapping *mapping, const char *path);
bool write_new_state(const char *path, const struct node *node, const struct live *live, const char **why);
void read_live(const struct state_file *file, void *copy, size_t offset, size_t size);
#define READ_LIVE(file, copy, member) read_live((file), (copy), offsetof(struct live, member), sizeof(*(copy)))

/* A change of the live state under the node's lock. It happens at one store, in edit_end, or not at all. */
struct edit {
    struct state_file *file;
    struct live *live;
    const char *path;
    int lock;
};
void die_at_checkpoint(uint32_t checkpoint);
bool edit_begin(struct edit *edit, const struct mapping *mapping);
nvmlReturn_t edit_end(struct edit *edit, nvmlReturn_t code);

/* ---- session of this process -------------------------------------------------------------------------------- */

enum handle_kind { NO_HANDLE, GPU_HANDLE, GI_HANDLE, CI_HANDLE, MIG_HANDLE };

struct handle {
    uint8_t kind, listed;
    int8_t gpu, gi, ci;
    uint8_t gi_profile, ci_profile; /* MIG_HANDLE: what it was when this session last listed it */
    uint32_t serial;
};

struct session {
    struct mapping mapping;
    int count; /* nvmlInit minus nvmlShutdown */
    int pid;
};
extern struct session session;

/* session.c */
bool session_mapping(void); /* opens the state file when that has not been done; false: driver not loaded */
bool privileged(void);
int handle_gpu(const struct handle *handle); /* index of its GPU, -1 for rubbish */
bool is_kind(const struct handle *handle, enum handle_kind kind);
struct handle *gpu_handle(int gpu);
struct handle *gi_handle(int gpu, int gi, uint32_t serial);
struct handle *ci_handle(int gpu, int gi, int ci, uint32_t serial);
struct handle *mig_handle(int gpu, int gi, int ci);
void lock_handles(void);
void unlock_handles(void);

static inline const struct node *node(void) { return &session.mapping.file->node; }
static inline const struct board *board_of(int gpu) { return &node()->gpus[gpu]; }
static inline void read_gpu(int gpu, struct live_gpu *copy)
{
    read_live(session.mapping.file, copy, offsetof(struct live, gpus) + (size_t)gpu * sizeof *copy, sizeof *copy);
}
nvmlReturn_t copy_text(const char *text, char *buffer, unsigned size);

/* ---- a call in progress -------------------------------------------------------------------------------------- */

struct where {
    int gpu, gi, ci;
};

struct call {
    struct record *record;
    uint64_t ticket, started_ns;
    struct effect after;
};

static inline struct where nowhere(void) { return (struct where){-1, -1, -1}; }
struct where where_is(const struct handle *handle);

/* record.c: a call is entered in the record when it begins, so that one that never returns is seen too. */
nvmlReturn_t call_begin(struct call *call, int function, struct where where);
nvmlReturn_t call_end(struct call *call, nvmlReturn_t code);
void call_argument(struct call *call, int argument, const nvmlPlacement_t *placement);
void call_made(struct call *call, int gi, int ci);
bool is_write_call(int function);
nvmlReturn_t stub_call(int function);
bool others_have_a_session(const struct state_file *file);

/* Begin the call, do `work` unless a fault or a missing nvmlInit says otherwise, end it. */
#define CALL(name, where, work)                                                                                       \
    do {                                                                                                              \
        struct call call_;                                                                                            \
        nvmlReturn_t code_ = call_begin(&call_, F_##name, where);                                                     \
        if (code_ == NVML_SUCCESS) {                                                                                  \
            code_ = (work);                                                                                           \
        }                                                                                                             \
        return call_end(&call_, code_);                                                                               \
    } while (0)

/* A function that clients bind and we do not simulate. Weak: the real one, where there is one, wins. */
#define STUB(name)                                                                                                    \
    EXPORT __attribute__((weak)) nvmlReturn_t name(void);                                                             \
    nvmlReturn_t name(void) { return stub_call(F_##name); }

/* faults.c */
bool find_fault(const struct state_file *file, int function, int gpu, struct effect *before, struct effect *after);
nvmlReturn_t suffer(const struct effect *effect);
bool parse_fault(const char *request, struct fault *fault, char *error, unsigned size);

/* places.c: pure rules about slots */
int gi_id_of_place(const struct board *board, struct span span);
bool gi_fits(const struct board *board, uint32_t branch, const struct live_gpu *live, int profile, struct span span);
int choose_gi_place(const struct board *board, uint32_t branch, const struct live_gpu *live, int profile);
int gi_capacity(const struct board *board, uint32_t branch, const struct live_gpu *live, int profile);
bool offered(const struct gi_profile *profile, uint32_t branch);
unsigned gi_profile_enums(uint32_t branch);
unsigned ci_profile_enums(uint32_t branch);
struct span ci_footprint(const struct board *board, const struct gi_profile *gi, struct span span);
bool ci_fits(const struct board *board, const struct live_gi *gi, int profile, struct span span);
bool ci_span_is_valid(const struct node *node, const struct board *board, const struct gi_profile *gi, int profile,
                      struct span span);
bool choose_ci_span(const struct node *node, const struct board *board, const struct live_gi *gi, int profile,
                    struct span *span);
int ci_capacity(const struct node *node, const struct board *board, const struct live_gi *gi, int profile);

/* process.c */
enum { ANY_LEVEL = -2 };
bool holder_is_alive(const struct holder *holder);
void drop_dead_holders(struct live *live);
bool is_held(const struct live *live, int gpu, int gi, int ci, bool clients_count);
uint64_t process_start_time(int pid);
uint32_t pid_namespace(void);

/* procfs.c */
void show_instances(const struct edit *edit, const struct live *before);

/* gi.c: what reset and reboot need too */
void forget_instances(struct live_gpu *gpu);
bool has_instances(const struct live_gpu *live);
void mend_memory(struct live_gpu *gpu);

/* control.c */
nvmlReturn_t reset_gpu(struct edit *edit, int gpu);
bool can_be_reset(const struct node *node, const struct board *board);

/* gi.c, ci.c: the live instance a handle means; false when it is stale or no such handle */
bool live_gi_of(const struct handle *handle, struct live_gpu *copy, struct live_gi **gi);
bool live_ci_of(const struct handle *handle, struct live_gpu *copy, struct live_ci **ci);

/* mig_device.c */
void mig_uuid(const struct node *node, const struct board *board, int gi, int ci, char text[UUID_BUFFER]);
bool find_mig_uuid(const char *uuid, struct handle **found);
void note_mig_devices(int gpu, const struct live_gpu *live);
const struct gi_profile *gi_profile_of_mig(const struct handle *mig);
const struct ci_profile *ci_profile_of_mig(const struct handle *mig);

/* description.c */
bool parse_description(const char *text, struct node *node, char *error, unsigned size);

/* assumptions.c */
bool set_assumption(struct node *node, const char *name, const char *value);
const char *assumption_name(int assumption);
const char *assumption_value(int assumption, int answer);
static inline int assumed(const struct node *node, enum assumption which) { return node->assumptions[which]; }

/* text.c: key=value words, numbers, JSON */
struct words {
    const char *rest;
};
bool next_word(struct words *words, char *key, size_t key_size, char *value, size_t value_size, bool *has_value);
bool to_number(const char *text, long long least, long long most, long long *number);
bool to_flag(const char *text, bool *flag);
const char *code_name(int code);
bool code_by_name(const char *name, int *code);

struct json {
    char *buffer;
    unsigned size, used; /* used counts on past the size, so that the caller learns how much room is needed */
    bool comma;
};
void json_raw(struct json *json, const char *text);
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
void json_string(struct json *json, const char *key, const char *value);
void json_number(struct json *json, const char *key, long long value);
void json_flag(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);
void json_id(struct json *json, const char *key, int value); /* null when negative */

#endif
