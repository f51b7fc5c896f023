# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

packer {
  required_plugins {
    qemu = {
      source  = "github.com/hashicorp/qemu"
      version = "~> 1"
    }
    ansible = {
      source  = "github.com/hashicorp/ansible"
      version = "~> 1"
    }
  }
}

variable "base_image" {
  type        = string
  description = "A cloud image with an NVIDIA driver, or one that gets it from another provisioner."
}

variable "base_checksum" {
  type = string
}

source "qemu" "gpu" {
  iso_url          = var.base_image
  iso_checksum     = var.base_checksum
  disk_image       = true
  headless         = true
  ssh_username     = "packer"
  shutdown_command = "sudo shutdown -P now"
}

build {
  sources = ["source.qemu.gpu"]

  provisioner "ansible" {
    playbook_file = "${path.root}/image.yml"
    user          = "packer"
    use_proxy     = false
    extra_arguments = [
      "--become",
      "--diff",
    ]
  }
}
