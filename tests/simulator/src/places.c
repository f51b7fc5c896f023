/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* Rules about slots: which id a slot has, what fits, which slot the driver takes by itself. No state, no I/O. */

#include <string.h>

#include "internal.h"

/* ---- GPU instances ------------------------------------------------------------------------------------------- */

/* Ids are nodes of a binary tree over the memory of the chip: 0 the whole, 1-2 halves, 3-6 quarters, 7-14 eighths.
 * On a chip of type S another compute slice is fused off; it shows the two halves the other way round. */
int gi_id_of_place(const struct board *board, struct span span)
{
    int parts = 1, index = 0;
    while (parts < 8 && span.size * parts * 2 <= (int)board->grid) {
        parts *= 2;
    }
    index = span.start * parts / (int)board->grid;
    bool halves_swapped = board->chip == 'S' && board->grid == 8 && board->compute_slices == 7;
    if (halves_swapped && parts > 1) {
        index ^= parts / 2;
    }
    return parts - 1 + index;
}

bool offered(const struct gi_profile *profile, uint32_t branch) { return profile->since <= branch; }

/* How many profile enums the nvml.h of a driver branch knows. */
unsigned gi_profile_enums(uint32_t branch)
{
    return branch < 525 ? 8 : branch < 570 ? 10 : branch < 575 ? 13 : branch < 595 ? 17 : 18;
}

unsigned ci_profile_enums(uint32_t branch) { return branch < 525 ? 7 : branch < 610 ? 8 : 9; }

static bool overlap(struct span a, struct span b)
{
    return a.start < b.start + b.size && b.start < a.start + a.size;
}

static bool engines_left(const struct board *board, const struct live_gpu *live, const struct gi_profile *wanted)
{
    uint32_t used[ENGINES] = {0};
    for (int id = 0; id < MAX_GI_IDS; id++) {
        if (live->gi[id].used) {
            for (int engine = 0; engine < ENGINES; engine++) {
                used[engine] += board->gi[live->gi[id].profile].engines[engine];
            }
        }
    }
    for (int engine = 0; engine < ENGINES; engine++) {
        if (used[engine] + wanted->engines[engine] > board->engines[engine]) {
            return false;
        }
    }
    return true;
}

static bool span_is_free(const struct live_gpu *live, struct span span)
{
    for (int id = 0; id < MAX_GI_IDS; id++) {
        if (live->gi[id].used && overlap(live->gi[id].span, span)) {
            return false;
        }
    }
    return true;
}

/* Before R510 an A100 could not hold 4g and 3g together. */
static bool too_old_for_both(const struct board *board, uint32_t branch, const struct live_gpu *live, uint32_t slices)
{
    if (branch >= 510 || board->compute_slices != 7 || (slices != 3 && slices != 4)) {
        return false;
    }
    for (int id = 0; id < MAX_GI_IDS; id++) {
        if (live->gi[id].used && board->gi[live->gi[id].profile].slices == 7 - slices) {
            return true;
        }
    }
    return false;
}

bool gi_fits(const struct board *board, uint32_t branch, const struct live_gpu *live, int profile, struct span span)
{
    const struct gi_profile *wanted = &board->gi[profile];
    return span_is_free(live, span) && engines_left(board, live, wanted) &&
           !too_old_for_both(board, branch, live, wanted->slices);
}

static int creatable_pairs(const struct board *board, uint32_t branch, const struct live_gpu *live)
{
    int pairs = 0;
    for (uint32_t profile = 0; profile < board->n_gi; profile++) {
        if (!offered(&board->gi[profile], branch) || !engines_left(board, live, &board->gi[profile])) {
            continue;
        }
        for (uint32_t place = 0; place < board->gi[profile].n_places; place++) {
            pairs += gi_fits(board, branch, live, (int)profile, board->gi[profile].places[place]);
        }
    }
    return pairs;
}

/* The free place after which most (profile, place) pairs stay creatable; among equals the one with the lowest id.
 * Returns its index in the profile's places, -1 when there is none. */
int choose_gi_place(const struct board *board, uint32_t branch, const struct live_gpu *live, int profile)
{
    int best = -1, best_pairs = -1, best_id = 0;
    for (uint32_t place = 0; place < board->gi[profile].n_places; place++) {
        struct span span = board->gi[profile].places[place];
        if (!gi_fits(board, branch, live, profile, span)) {
            continue;
        }
        int id = gi_id_of_place(board, span);
        struct live_gpu then = *live;
        then.gi[id].used = 1;
        then.gi[id].profile = (uint8_t)profile;
        then.gi[id].span = span;
        int pairs = creatable_pairs(board, branch, &then);
        if (pairs > best_pairs || (pairs == best_pairs && id < best_id)) {
            best = (int)place;
            best_pairs = pairs;
            best_id = id;
        }
    }
    return best;
}

/* How many more of a profile fit now: places of one profile have one size and never half overlap. */
int gi_capacity(const struct board *board, uint32_t branch, const struct live_gpu *live, int profile)
{
    struct live_gpu then = *live;
    int count = 0;
    for (uint32_t place = 0; place < board->gi[profile].n_places; place++) {
        struct span span = board->gi[profile].places[place];
        if (gi_fits(board, branch, &then, profile, span)) {
            struct live_gi *gi = &then.gi[gi_id_of_place(board, span)];
            gi->used = 1;
            gi->profile = (uint8_t)profile;
            gi->span = span;
            count++;
        }
    }
    return count;
}

/* ---- compute instances --------------------------------------------------------------------------------------- */

static uint8_t next_power_of_two(uint8_t number)
{
    uint8_t power = 1;
    while (power < number) {
        power = (uint8_t)(power * 2);
    }
    return power;
}

/* Compute slices of a GI, in the units of its CI placements. */
static uint8_t width(const struct gi_profile *gi)
{
    uint8_t end = 0;
    for (uint32_t profile = 0; profile < gi->n_ci; profile++) {
        for (uint32_t place = 0; place < gi->ci[profile].n_places; place++) {
            struct span span = gi->ci[profile].places[place];
            end = span.start + span.size > end ? (uint8_t)(span.start + span.size) : end;
        }
    }
    return end;
}

/* What a CI really takes: on Ampere the span itself, later a whole node of a binary tree (cut off at the GI's end). */
struct span ci_footprint(const struct board *board, const struct gi_profile *gi, struct span span)
{
    if (board->architecture <= AMPERE) {
        return span;
    }
    struct span node = {span.start, next_power_of_two(span.size)};
    uint8_t end = width(gi);
    if (node.start + node.size > end && node.start < end) {
        node.size = (uint8_t)(end - node.start);
    }
    return node;
}

bool ci_fits(const struct board *board, const struct live_gi *gi, int profile, struct span span)
{
    const struct gi_profile *parent = &board->gi[gi->profile];
    struct span wanted = ci_footprint(board, parent, span);
    uint32_t same = 0;
    int used = 0;
    for (int ci = 0; ci < MAX_CI_IDS; ci++) {
        if (!gi->ci[ci].used) {
            continue;
        }
        if (overlap(ci_footprint(board, parent, gi->ci[ci].span), wanted)) {
            return false;
        }
        used++;
        same += gi->ci[ci].profile == profile;
    }
    return used < MAX_CI_IDS && same < parent->ci[profile].count;
}

/* Whether an explicit span may be asked for at all, taken or not. */
bool ci_span_is_valid(const struct node *node, const struct board *board, const struct gi_profile *gi, int profile,
                      struct span span)
{
    const struct ci_profile *wanted = &gi->ci[profile];
    for (uint32_t place = 0; place < wanted->n_places; place++) {
        if (wanted->places[place].start == span.start && wanted->places[place].size == span.size) {
            return true;
        }
    }
    bool any_window = board->architecture <= AMPERE && assumed(node, AMPERE_CI_WINDOWS) == 0;
    return any_window && wanted->n_places > 0 && span.size == wanted->places[0].size &&
           span.start + span.size <= width(gi);
}

static int creatable_ci_pairs(const struct board *board, const struct live_gi *gi)
{
    const struct gi_profile *parent = &board->gi[gi->profile];
    int pairs = 0;
    for (uint32_t profile = 0; profile < parent->n_ci; profile++) {
        for (uint32_t place = 0; place < parent->ci[profile].n_places; place++) {
            pairs += ci_fits(board, gi, (int)profile, parent->ci[profile].places[place]);
        }
    }
    return pairs;
}

static void put_ci(struct live_gi *gi, int profile, struct span span)
{
    for (int ci = 0; ci < MAX_CI_IDS; ci++) {
        if (!gi->ci[ci].used) {
            gi->ci[ci] = (struct live_ci){.used = 1, .profile = (uint8_t)profile, .span = span};
            return;
        }
    }
}

/* Ampere takes the first window that is free, listed ones first; later chips lose as little room as possible. */
bool choose_ci_span(const struct node *node, const struct board *board, const struct live_gi *gi, int profile,
                    struct span *span)
{
    const struct ci_profile *wanted = &board->gi[gi->profile].ci[profile];
    int best_pairs = -1;
    for (uint32_t place = 0; place < wanted->n_places; place++) {
        if (!ci_fits(board, gi, profile, wanted->places[place])) {
            continue;
        }
        if (board->architecture <= AMPERE) {
            *span = wanted->places[place];
            return true;
        }
        struct live_gi then = *gi;
        put_ci(&then, profile, wanted->places[place]);
        int pairs = creatable_ci_pairs(board, &then);
        if (pairs > best_pairs) {
            best_pairs = pairs;
            *span = wanted->places[place];
        }
    }
    if (best_pairs >= 0 || board->architecture > AMPERE || wanted->n_places == 0) {
        return best_pairs >= 0;
    }
    struct span window = {0, wanted->places[0].size};
    for (; ci_span_is_valid(node, board, &board->gi[gi->profile], profile, window); window.start++) {
        if (ci_fits(board, gi, profile, window)) {
            *span = window;
            return true;
        }
        if (window.start + window.size >= width(&board->gi[gi->profile])) {
            break;
        }
    }
    return false;
}

int ci_capacity(const struct node *node, const struct board *board, const struct live_gi *gi, int profile)
{
    struct live_gi then = *gi;
    struct span span;
    int count = 0;
    while (count < MAX_CI_IDS && choose_ci_span(node, board, &then, profile, &span)) {
        put_ci(&then, profile, span);
        count++;
    }
    return count;
}
