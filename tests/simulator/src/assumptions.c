/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* What the public facts leave open, each with its answers. The first answer is the default; a node may choose another
 * with `assume NAME=VALUE` in its description. Programs under test should be right under every one. */

#include <string.h>

#include "internal.h"

struct question {
    const char *name;
    const char *answers[4];
    const char *meaning;
};

static const struct question questions[ASSUMPTIONS] = {
    [STRUCT_VERSION_CODE] = {"struct_version_code",
                             {"INVALID_ARGUMENT", "ARGUMENT_VERSION_MISMATCH"},
                             "code of the MIG profile queries for an unknown version word"},
    [PASSTHROUGH_ACTIVATION] = {"passthrough_activation",
                                {"NOT_SUPPORTED", "RESET_REQUIRED"},
                                "activation status of SetMigMode on Ampere inside a VM"},
    [PASSTHROUGH_CANCEL] = {"passthrough_cancel",
                            {"no", "yes"},
                            "whether setting the current mode cancels a pending one on Ampere inside a VM"},
    [DISABLE_WITH_INSTANCES] = {"disable_with_instances",
                                {"IN_USE", "pending", "destroy"},
                                "switching MIG off while GPU instances exist: refused, stored, or they go"},
    [HOPPER_RESET_KEEPS_MODE] = {"hopper_reset_keeps_mode",
                                 {"yes", "no"},
                                 "whether MIG mode of Hopper and later survives a plain GPU reset"},
    [PLACEMENTS_NEED_ROOT] = {"placements_need_root",
                              {"yes", "no"},
                              "whether listing possible placements is privileged, as the header says"},
    [OWN_DESTROYS_STAY_LISTED] = {"own_destroys_stay_listed",
                                  {"yes", "no"},
                                  "whether a session goes on listing MIG devices that it destroyed itself"},
    [AMPERE_CI_WINDOWS] = {"ampere_ci_windows",
                           {"any", "listed"},
                           "explicit compute placements on Ampere: every window that fits, or the listed ones only"},
    [TAKEN_CI_SPAN] = {"taken_ci_span",
                       {"IN_USE", "INSUFFICIENT_RESOURCES"},
                       "code for an explicit compute placement that is taken, on Hopper and later"},
    [MODE_BESIDE_SESSIONS] = {"mode_beside_sessions",
                              {"IN_USE", "SUCCESS"},
                              "activation status of SetMigMode on Ampere while another process has NVML open"},
};

bool set_assumption(struct node *node, const char *name, const char *value)
{
    for (int i = 0; i < ASSUMPTIONS; i++) {
        for (int answer = 0; strcmp(name, questions[i].name) == 0 && assumption_value(i, answer) != NULL; answer++) {
            if (strcmp(value, questions[i].answers[answer]) == 0) {
                node->assumptions[i] = (uint8_t)answer;
                return true;
            }
        }
    }
    return false;
}

const char *assumption_name(int assumption) { return questions[assumption].name; }

/* NULL when there is no such answer */
const char *assumption_value(int assumption, int answer)
{
    return answer < 4 ? questions[assumption].answers[answer] : NULL;
}

/* One line each: NAME=DEFAULT|OTHER... and what is asked. */
EXPORT const char *nvmlsim_assumptions(void)
{
    static char text[4096];
    struct json lines = {.buffer = text, .size = sizeof text};
    for (int i = 0; i < ASSUMPTIONS; i++) {
        json_raw(&lines, questions[i].name);
        for (int answer = 0; assumption_value(i, answer) != NULL; answer++) {
            json_raw(&lines, answer == 0 ? "=" : "|");
            json_raw(&lines, questions[i].answers[answer]);
        }
        json_raw(&lines, "  ");
        json_raw(&lines, questions[i].meaning);
        json_raw(&lines, "\n");
    }
    return text;
}
