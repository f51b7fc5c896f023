/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* The text that describes a node: one thing per line, `word key=value ...`. Nothing unknown passes. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum kind { NUMBER, TEXT, FLAG, CHOICE };

struct key {
    const char *name;
    enum kind kind;
    size_t offset, size; /* of the member it sets */
    const char *const *choices;
    int first_choice; /* number that the first choice stands for */
};

#define MEMBER(type, member) offsetof(struct type, member), sizeof(((struct type *)0)->member)
#define ENGINE(type, number) offsetof(struct type, engines) + (number) * sizeof(uint32_t), sizeof(uint32_t)

static const char *const privileged_words[] = {"owner", "root", "nobody", NULL};
static const char *const fabric_manager_words[] = {"none", "on", "off", NULL};
static const char *const architecture_words[] = {"volta", "turing", "ampere", "ada", "hopper", "blackwell", NULL};
static const char *const virtualization_words[] = {"none", "passthrough", "vgpu", "host-vgpu", "host-vsga", NULL};

static const struct key node_keys[] = {
    {"driver", TEXT, MEMBER(node, driver), NULL, 0},
    {"nvml", TEXT, MEMBER(node, nvml), NULL, 0},
    {"cuda", NUMBER, MEMBER(node, cuda), NULL, 0},
    {"persistence", FLAG, MEMBER(node, persistence), NULL, 0},
    {"never_reset", FLAG, MEMBER(node, never_reset), NULL, 0},
    {"privileged", CHOICE, MEMBER(node, privileged), privileged_words, ROOT_OR_OWNER},
    {"fabric_manager", CHOICE, MEMBER(node, fabric_manager), fabric_manager_words, NO_NVSWITCH},
    {NULL, NUMBER, 0, 0, NULL, 0},
};

static const struct key gpu_keys[] = {
    {"key", TEXT, MEMBER(board, key), NULL, 0},
    {"name", TEXT, MEMBER(board, name), NULL, 0},
    {"uuid", TEXT, MEMBER(board, uuid), NULL, 0},
    {"device", NUMBER, MEMBER(board, pci_device_id), NULL, 0},
    {"subsystem", NUMBER, MEMBER(board, pci_subsystem_id), NULL, 0},
    {"memory_mib", NUMBER, MEMBER(board, memory_mib), NULL, 0},
    {"reserved_mib", NUMBER, MEMBER(board, reserved_mib), NULL, 0},
    {"arch", CHOICE, MEMBER(board, architecture), architecture_words, VOLTA},
    {"virtualization", CHOICE, MEMBER(board, virtualization), virtualization_words, BARE_METAL},
    {"minor", NUMBER, MEMBER(board, minor), NULL, 0},
    {"mig", FLAG, MEMBER(board, mig), NULL, 0},
    {"grid", NUMBER, MEMBER(board, grid), NULL, 0},
    {"compute_slices", NUMBER, MEMBER(board, compute_slices), NULL, 0},
    {"copy", NUMBER, ENGINE(board, COPY), NULL, 0},
    {"decoder", NUMBER, ENGINE(board, DECODER), NULL, 0},
    {"encoder", NUMBER, ENGINE(board, ENCODER), NULL, 0},
    {"jpeg", NUMBER, ENGINE(board, JPEG), NULL, 0},
    {"ofa", NUMBER, ENGINE(board, OFA), NULL, 0},
    {"needs_reset", FLAG, MEMBER(board, needs_reset), NULL, 0},
    {"keeps_mode", FLAG, MEMBER(board, keeps_mode), NULL, 0},
    {"broken_counts", FLAG, MEMBER(board, broken_counts), NULL, 0},
    {NULL, NUMBER, 0, 0, NULL, 0},
};

static const struct key gi_keys[] = {
    {"enum", NUMBER, MEMBER(gi_profile, enum_id), NULL, 0},
    {"id", NUMBER, MEMBER(gi_profile, id), NULL, 0},
    {"slices", NUMBER, MEMBER(gi_profile, slices), NULL, 0},
    {"count", NUMBER, MEMBER(gi_profile, count), NULL, 0},
    {"reported_count", NUMBER, MEMBER(gi_profile, reported_count), NULL, 0},
    {"sm", NUMBER, MEMBER(gi_profile, multiprocessors), NULL, 0},
    {"copy", NUMBER, ENGINE(gi_profile, COPY), NULL, 0},
    {"decoder", NUMBER, ENGINE(gi_profile, DECODER), NULL, 0},
    {"encoder", NUMBER, ENGINE(gi_profile, ENCODER), NULL, 0},
    {"jpeg", NUMBER, ENGINE(gi_profile, JPEG), NULL, 0},
    {"ofa", NUMBER, ENGINE(gi_profile, OFA), NULL, 0},
    {"memory_mib", NUMBER, MEMBER(gi_profile, memory_mib), NULL, 0},
    {"p2p", NUMBER, MEMBER(gi_profile, p2p), NULL, 0},
    {"caps", NUMBER, MEMBER(gi_profile, capabilities), NULL, 0},
    {"name", TEXT, MEMBER(gi_profile, name), NULL, 0},
    {"default_ci", NUMBER, MEMBER(gi_profile, default_ci), NULL, 0},
    {"since", NUMBER, MEMBER(gi_profile, since), NULL, 0},
    {NULL, NUMBER, 0, 0, NULL, 0},
};

static const struct key ci_keys[] = {
    {"enum", NUMBER, MEMBER(ci_profile, enum_id), NULL, 0},
    {"id", NUMBER, MEMBER(ci_profile, id), NULL, 0},
    {"slices", NUMBER, MEMBER(ci_profile, slices), NULL, 0},
    {"count", NUMBER, MEMBER(ci_profile, count), NULL, 0},
    {"sm", NUMBER, MEMBER(ci_profile, multiprocessors), NULL, 0},
    {"copy", NUMBER, ENGINE(ci_profile, COPY), NULL, 0},
    {"decoder", NUMBER, ENGINE(ci_profile, DECODER), NULL, 0},
    {"encoder", NUMBER, ENGINE(ci_profile, ENCODER), NULL, 0},
    {"jpeg", NUMBER, ENGINE(ci_profile, JPEG), NULL, 0},
    {"ofa", NUMBER, ENGINE(ci_profile, OFA), NULL, 0},
    {"caps", NUMBER, MEMBER(ci_profile, capabilities), NULL, 0},
    {"name", TEXT, MEMBER(ci_profile, name), NULL, 0},
    {NULL, NUMBER, 0, 0, NULL, 0},
};

static bool set_number(void *member, size_t size, long long number)
{
    if (size == sizeof(bool)) {
        *(bool *)member = number != 0;
    } else {
        *(uint32_t *)member = (uint32_t)number;
    }
    return true;
}

static bool set_member(const struct key *keys, void *thing, const char *name, const char *value)
{
    for (const struct key *key = keys; key->name != NULL; key++) {
        if (strcmp(name, key->name) != 0) {
            continue;
        }
        void *member = (char *)thing + key->offset;
        long long number;
        bool flag;
        switch (key->kind) {
        case NUMBER:
            return to_number(value, 0, UINT32_MAX, &number) && set_number(member, key->size, number);
        case TEXT:
            return snprintf(member, key->size, "%s", value) < (int)key->size && *value != '\0';
        case FLAG:
            return to_flag(value, &flag) && set_number(member, key->size, flag);
        case CHOICE:
            for (int i = 0; key->choices[i] != NULL; i++) {
                if (strcmp(value, key->choices[i]) == 0) {
                    return set_number(member, key->size, key->first_choice + i);
                }
            }
            return false;
        }
    }
    return false;
}

/* places=0:4,4:4 */
static bool set_places(struct span *places, uint32_t *count, const char *value)
{
    *count = 0;
    while (*value) {
        unsigned start, size;
        int end = 0;
        if (*count == MAX_PLACES || sscanf(value, "%3u:%3u%n", &start, &size, &end) != 2 || size == 0 ||
            start + size > UINT8_MAX / 2) {
            return false;
        }
        places[(*count)++] = (struct span){(uint8_t)start, (uint8_t)size};
        value += end;
        value += *value == ',';
    }
    return *count > 0;
}

static bool set_pci(struct board *board, const char *value)
{
    int end = 0;
    return sscanf(value, "%8x:%2x:%2x.%1x%n", &board->pci_domain, &board->pci_bus, &board->pci_device,
                  &board->pci_function, &end) == 4 &&
           value[end] == '\0';
}

/* 8.0 */
static bool set_compute_capability(struct board *board, const char *value)
{
    int end = 0;
    return sscanf(value, "%2u.%2u%n", &board->cc_major, &board->cc_minor, &end) == 2 && value[end] == '\0';
}

struct parser {
    struct node *node;
    struct board *board;  /* that gi lines belong to */
    struct gi_profile *gi; /* that ci lines belong to */
};

static bool set_gpu(struct parser *parser, const char *key, const char *value)
{
    struct board *board = parser->board;
    if (strcmp(key, "pci") == 0) {
        return set_pci(board, value);
    }
    if (strcmp(key, "cc") == 0) {
        return set_compute_capability(board, value);
    }
    if (strcmp(key, "chip") == 0) {
        board->chip = value[0];
        return strcmp(value, "N") == 0 || strcmp(value, "S") == 0;
    }
    return set_member(gpu_keys, board, key, value);
}

static bool set_gi(struct parser *parser, const char *key, const char *value)
{
    if (strcmp(key, "places") == 0) {
        return set_places(parser->gi->places, &parser->gi->n_places, value);
    }
    return set_member(gi_keys, parser->gi, key, value);
}

static bool set_ci(struct parser *parser, const char *key, const char *value)
{
    struct ci_profile *ci = &parser->gi->ci[parser->gi->n_ci - 1];
    if (strcmp(key, "places") == 0) {
        return set_places(ci->places, &ci->n_places, value);
    }
    return set_member(ci_keys, ci, key, value);
}

static bool set_node(struct parser *parser, const char *key, const char *value)
{
    return set_member(node_keys, parser->node, key, value);
}

static bool set_assume(struct parser *parser, const char *key, const char *value)
{
    return set_assumption(parser->node, key, value);
}

typedef bool (*setter)(struct parser *, const char *key, const char *value);

/* Open the thing that a line describes; NULL when there is no room or it has no parent. */
static setter begin_line(struct parser *parser, const char *word)
{
    if (strcmp(word, "node") == 0) {
        return set_node;
    }
    if (strcmp(word, "assume") == 0) {
        return set_assume;
    }
    if (strcmp(word, "gpu") == 0 && parser->node->n_gpus < MAX_GPUS) {
        parser->board = &parser->node->gpus[parser->node->n_gpus];
        parser->board->minor = parser->node->n_gpus++;
        parser->board->chip = 'N';
        memset(parser->board->engines, 0xff, sizeof parser->board->engines);
        parser->gi = NULL;
        return set_gpu;
    }
    if (strcmp(word, "gi") == 0 && parser->board != NULL && parser->board->n_gi < MAX_GI_PROFILES) {
        parser->gi = &parser->board->gi[parser->board->n_gi++];
        return set_gi;
    }
    if (strcmp(word, "ci") == 0 && parser->gi != NULL && parser->gi->n_ci < MAX_CI_PROFILES) {
        parser->gi->n_ci++;
        return set_ci;
    }
    return NULL;
}

static bool parse_line(struct parser *parser, const char *line, char *problem, size_t size)
{
    struct words words = {line};
    char word[64], value[256];
    bool has_value;
    if (!next_word(&words, word, sizeof word, value, sizeof value, &has_value)) {
        return true;
    }
    setter set = has_value ? NULL : begin_line(parser, word);
    if (set == NULL) {
        snprintf(problem, size, "unexpected \"%s\"", word);
        return false;
    }
    while (next_word(&words, word, sizeof word, value, sizeof value, &has_value)) {
        if (!has_value || !set(parser, word, value)) {
            snprintf(problem, size, "cannot use %s=%.64s", word, value);
            return false;
        }
    }
    return true;
}

/* What follows from the rest, and what must hold for the rest of the library to be safe. */
static const char *complete_board(struct board *board)
{
    if (board->uuid[0] == '\0' || board->name[0] == '\0') {
        return "a gpu needs uuid and name";
    }
    if (board->mig && (board->grid == 0 || board->compute_slices == 0 || board->n_gi == 0)) {
        return "a gpu with mig=yes needs grid, compute_slices and gi lines";
    }
    for (int engine = 0; engine < ENGINES; engine++) {
        uint32_t most = 0;
        for (uint32_t i = 0; i < board->n_gi; i++) {
            most = board->gi[i].engines[engine] > most ? board->gi[i].engines[engine] : most;
        }
        if (board->engines[engine] == UINT32_MAX) {
            board->engines[engine] = most;
        }
    }
    for (uint32_t i = 0; i < board->n_gi; i++) {
        struct gi_profile *gi = &board->gi[i];
        if (gi->reported_count == 0) {
            gi->reported_count = gi->count;
        }
        if (gi->count == 0 || gi->reported_count < gi->count || gi->n_places == 0 || gi->n_ci == 0) {
            return "a gi needs count, reported_count >= count, places and ci lines";
        }
        for (uint32_t place = 0; place < gi->n_places; place++) {
            int id = gi_id_of_place(board, gi->places[place]);
            if (gi->places[place].start + gi->places[place].size > (int)board->grid || id >= MAX_GI_IDS) {
                return "a gi place lies outside the grid";
            }
        }
        for (uint32_t ci = 0; ci < gi->n_ci; ci++) {
            if (gi->ci[ci].count == 0 || gi->ci[ci].n_places == 0) {
                return "a ci needs count and places";
            }
        }
    }
    return NULL;
}

bool parse_description(const char *text, struct node *node, char *error, unsigned size)
{
    struct parser parser = {.node = node};
    char problem[256];
    int line = 1;
    for (; text != NULL && *text; line++) {
        if (!parse_line(&parser, text, problem, sizeof problem)) {
            snprintf(error, size, "description line %d: %s", line, problem);
            return false;
        }
        text = strchr(text, '\n');
        text += text != NULL;
    }
    node->branch = (uint32_t)strtoul(node->driver, NULL, 10);
    if (node->branch == 0 || node->nvml[0] == '\0') {
        snprintf(error, size, "description: the node line needs driver and nvml versions");
        return false;
    }
    for (uint32_t gpu = 0; gpu < node->n_gpus; gpu++) {
        const char *wrong = complete_board(&node->gpus[gpu]);
        if (wrong != NULL) {
            snprintf(error, size, "description: gpu %u: %s", gpu, wrong);
            return false;
        }
    }
    return true;
}
