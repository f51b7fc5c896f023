# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Destroy the first MIG device of GPU 3 behind the back of Ansible (`DEMO_INTERFERE=1 make demo`)."""

from __future__ import annotations

import pynvml

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(3)
mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
gi = pynvml.nvmlDeviceGetGpuInstanceById(gpu, pynvml.nvmlDeviceGetGpuInstanceId(mig))
ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, pynvml.nvmlDeviceGetComputeInstanceId(mig))
pynvml.nvmlComputeInstanceDestroy(ci)
pynvml.nvmlGpuInstanceDestroy(gi)
pynvml.nvmlShutdown()
print("destroyed one GPU instance of GPU 3")
