# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A gRPC client of the standard library, as much of one as a unary call over a unix socket needs.

This folder is private to the collection gpufleet.mig and may change at any time. It knows nothing of Ansible, and
nothing of GPUs.
"""
