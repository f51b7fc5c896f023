/* Copyright (c) 2026, the gpufleet.mig authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 */

/* Words of the text interface, names of codes, JSON. */

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "internal.h"

/* Next `word`, `key=value` or `key="value with spaces"` of a line. What does not fit its buffer is cut and so will not
 * be recognised. Returns false at the end of the line. */
bool next_word(struct words *words, char *key, size_t key_size, char *value, size_t value_size, bool *has_value)
{
    const char *at = words->rest;
    while (*at == ' ' || *at == '\t' || *at == '\r') {
        at++;
    }
    if (*at == '\0' || *at == '\n' || *at == '#') {
        return false;
    }
    size_t used = 0;
    while (*at && !isspace((unsigned char)*at) && *at != '=') {
        if (used + 1 < key_size) {
            key[used++] = *at;
        }
        at++;
    }
    key[used] = '\0';
    used = 0;
    *has_value = *at == '=';
    if (*has_value) {
        bool quoted = *++at == '"';
        at += quoted;
        while (*at && *at != '\n' && (quoted ? *at != '"' : !isspace((unsigned char)*at))) {
            if (used + 1 < value_size) {
                value[used++] = *at;
            }
            at++;
        }
        at += quoted && *at == '"';
    }
    value[used] = '\0';
    words->rest = at;
    return true;
}

bool to_number(const char *text, long long least, long long most, long long *number)
{
    char *end;
    errno = 0;
    *number = strtoll(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    return errno == 0 && end != text && *end == '\0' && *number >= least && *number <= most;
}

bool to_flag(const char *text, bool *flag)
{
    static const char *const yes[] = {"yes", "on", "true", "1"}, *const no[] = {"no", "off", "false", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *flag = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static const char *const code_names[] = {
    "SUCCESS",
    "UNINITIALIZED",
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "ALREADY_INITIALIZED",
    "NOT_FOUND",
    "INSUFFICIENT_SIZE",
    "INSUFFICIENT_POWER",
    "DRIVER_NOT_LOADED",
    "TIMEOUT",
    "IRQ_ISSUE",
    "LIBRARY_NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "CORRUPTED_INFOROM",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "OPERATING_SYSTEM",
    "LIB_RM_VERSION_MISMATCH",
    "IN_USE",
    "MEMORY",
    "NO_DATA",
    "VGPU_ECC_NOT_SUPPORTED",
    "INSUFFICIENT_RESOURCES",
    "FREQ_NOT_SUPPORTED",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "NOT_READY",
    "GPU_NOT_FOUND",
    "INVALID_STATE",
    "RESET_TYPE_NOT_SUPPORTED",
};
enum { CODE_NAMES = sizeof code_names / sizeof *code_names };

const char *code_name(int code)
{
    return code >= 0 && code < CODE_NAMES ? code_names[code] : "UNKNOWN";
}

/* IN_USE, NVML_ERROR_IN_USE or 19 */
bool code_by_name(const char *name, int *code)
{
    long long number;
    if (to_number(name, 0, NVML_ERROR_UNKNOWN, &number)) {
        *code = (int)number;
        return true;
    }
    static const char prefix[] = "NVML_ERROR_";
    name += strncasecmp(name, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    if (strcasecmp(name, "UNKNOWN") == 0) {
        *code = NVML_ERROR_UNKNOWN;
        return true;
    }
    for (*code = 0; *code < CODE_NAMES; (*code)++) {
        if (strcasecmp(name, code_names[*code]) == 0) {
            return true;
        }
    }
    return false;
}

static void put(struct json *json, char letter)
{
    if (json->used + 1 < json->size) {
        json->buffer[json->used] = letter;
        json->buffer[json->used + 1] = '\0';
    }
    json->used++;
}

void json_raw(struct json *json, const char *text)
{
    while (*text) {
        put(json, *text++);
    }
}

static void quoted(struct json *json, const char *text)
{
    put(json, '"');
    for (; *text; text++) {
        char escaped[8];
        if (*text == '"' || *text == '\\') {
            put(json, '\\');
            put(json, *text);
        } else if ((unsigned char)*text < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)*text);
            json_raw(json, escaped);
        } else {
            put(json, *text);
        }
    }
    put(json, '"');
}

static void begin(struct json *json, const char *key)
{
    if (json->comma) {
        put(json, ',');
    }
    json->comma = true;
    if (key != NULL) {
        quoted(json, key);
        put(json, ':');
    }
}

void json_open(struct json *json, const char *key, char bracket)
{
    begin(json, key);
    put(json, bracket);
    json->comma = false;
}

void json_close(struct json *json, char bracket)
{
    put(json, bracket);
    json->comma = true;
}

void json_string(struct json *json, const char *key, const char *value)
{
    begin(json, key);
    quoted(json, value);
}

void json_number(struct json *json, const char *key, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    begin(json, key);
    json_raw(json, text);
}

void json_flag(struct json *json, const char *key, bool value)
{
    begin(json, key);
    json_raw(json, value ? "true" : "false");
}

void json_null(struct json *json, const char *key)
{
    begin(json, key);
    json_raw(json, "null");
}

void json_id(struct json *json, const char *key, int value)
{
    if (value < 0) {
        json_null(json, key);
    } else {
        json_number(json, key, value);
    }
}
